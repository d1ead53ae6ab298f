"""`faustnet reproduce`: experiments that are not in the paper."""

from typing import Annotated

import typer

from faustnet.cli.options import numbers, option
from faustnet.cli.reproduce import Network, Seeds, Training, listed, names_in, print_paths
from faustnet.errors import require


def representatives(
    training: Training,
    datasets: Annotated[str, listed("Data sets")] = "fashion-mnist,cifar10",
    network: Network = "3x500",
    draws: Annotated[int, typer.Option(help="Number of random draws of a single image per class.")] = 20,
    counts: Annotated[str, listed("Numbers of references per class")] = "1,2,5,10,20,50",
) -> None:
    """Compare kinds and numbers of references per class: random images, k-means images, and learned vectors.

    Not in the paper; uses the tuned recipes. Writes the results to OUT/representatives and OUT/representatives.json, and a
    figure.
    """
    require(1 <= draws <= 1000, f"--draws must be from 1 to 1000, got {draws}.")
    from faustnet.reproduce.representatives import draw_representatives, representatives_jobs

    point_jobs = representatives_jobs(names_in(datasets), network, draws, numbers(counts, "--counts"))
    print_paths(draw_representatives(point_jobs, training.out, training.workers()))


def best(
    training: Training,
    names: Annotated[
        str | None, option("Recipes, separated by commas, for example cifar10/mlp,mnist/mlp.", "all except those of digits")
    ] = None,
    seeds: Seeds = 3,
    twins: Annotated[
        bool,
        typer.Option(help="Also train the twins of each recipe, with backprop and, if it has one, with deep supervision."),
    ] = True,
) -> None:
    """Compare the strongest recipes with their twins, trained by backprop or with deep supervision.

    Not in the paper. A twin has the same network, data, optimiser and number of epochs, except for what was tuned. Writes
    the result of each run to OUT/best, and the table to OUT/best.json and .md. After Ctrl-C the same command continues.
    """
    from faustnet.reproduce.best import TABLE, best_jobs

    table_jobs = best_jobs(None if names is None else names_in(names), seeds, twins=twins)
    two = " Several numbers in a cell are those of the columns before, in their order." if twins else ""
    training.tabulate(TABLE, table_jobs, f"Test accuracy in %, mean ± standard deviation.{two}")


def class_counts(
    training: Training,
    base: Annotated[str, typer.Option(help="Recipe, as DATASET/NAME.")] = "cifar10/cnn",
    counts: Annotated[str, listed("Numbers of classes")] = "2,5,10",
    seeds: Seeds = 3,
) -> None:
    """Measure the accuracy of a recipe and of its twins on some of the classes of their data set.

    Not in the paper. The seed determines the classes. Results of `faustnet reproduce best` in OUT are reused where all
    classes are wanted. Writes the results to OUT/class-counts and OUT/class-counts.json, and a figure.
    """
    from faustnet.reproduce.class_counts import class_count_jobs, draw_counts

    print_paths(draw_counts(class_count_jobs(base, numbers(counts, "--counts"), seeds), training.out, training.workers()))


def incremental(
    training: Training,
    base: Annotated[
        str, typer.Option(help="Recipe of a FAUST method with a backprop twin, as DATASET/NAME.")
    ] = "cifar100/cnn",
    first: Annotated[int, typer.Option(help="Number of classes to train on.")] = 50,
    step: Annotated[int, typer.Option(help="Number of classes that are added in each step.")] = 5,
    seeds: Seeds = 3,
) -> None:
    """Add classes over time: train on some classes, then add the others in steps, and measure the accuracy after each step.

    Not in the paper. FAUST without further training, FAUST with a short training of its heads, and backprop with the nearest
    class mean. The seed determines the order of the classes. Writes the results to OUT/incremental and
    OUT/incremental.json, and a figure.
    """
    from faustnet.reproduce.incremental import draw_steps, incremental_jobs

    print_paths(draw_steps(incremental_jobs(base, first, step, seeds), training.out, training.workers()))


def ablation(
    training: Training,
    base: Annotated[str, typer.Option(help="Recipe to change, as DATASET/NAME.")] = "cifar10/mlp",
    epochs: Annotated[int | None, option("Number of epochs of every run.", "as in the recipe")] = None,
    seeds: Seeds = 3,
) -> None:
    """Ablation of a strong recipe: change one setting at a time and measure the accuracy on validation images.

    Not in the paper. 5,000 training images (20% of digits) are held out for validation. Writes the result of each run to
    OUT/ablation, and the table to OUT/ablation.json and .md. After Ctrl-C the same command continues.
    """
    from faustnet.reproduce.ablation import TABLE, ablation_jobs

    note = "Validation accuracy in %, mean ± standard deviation."
    training.tabulate(TABLE, ablation_jobs(base, seeds, epochs), note)


def new_classes(
    training: Training,
    datasets: Annotated[str, listed("Data sets")] = "mnist,fashion-mnist",
    classes: Annotated[
        str, typer.Option(help="Classes to leave out, as numbers separated by commas; each run leaves out one.")
    ] = "0,1,2,3,4,5,6,7,8,9",
    references: Annotated[str, listed("Numbers of references per class")] = "1,10",
    seeds: Seeds = 1,
) -> None:
    """Add classes without training: train on all classes but one, then add that class from 1, 10 and 100 images.

    Not in the paper. Writes the result of each run to OUT/new-classes, and the table to OUT/new-classes.json and .md. After
    Ctrl-C the same command continues.
    """
    from faustnet.reproduce.new_classes import TABLE, new_class_jobs

    numbered, counts = numbers(classes, "--classes"), numbers(references, "--references")
    table_jobs = new_class_jobs(names_in(datasets), numbered, counts, seeds)
    training.tabulate(TABLE, table_jobs, "Test accuracy in %, mean ± standard deviation over the classes.")


def rejection(
    training: Training,
    datasets: Annotated[
        str,
        listed(
            "Data sets to train on",
            "mnist (images of fashion-mnist count as unknown), fashion-mnist (mnist), cifar10 (cifar100), omniglot "
            "(omniglot-evaluation)",
        ),
    ] = "mnist,fashion-mnist",
    seeds: Seeds = 3,
) -> None:
    """Measure how well FAUST and backprop distinguish images of another data set from images of known classes.

    Not in the paper. Writes the result of each run to OUT/rejection, and the table to OUT/rejection.json and .md. After
    Ctrl-C the same command continues.
    """
    from faustnet.reproduce.rejection import TABLE, rejection_jobs

    note = "In %, on test images unless the column says otherwise."
    training.tabulate(TABLE, rejection_jobs(names_in(datasets), seeds), note)


def few_shot(
    training: Training,
    methods: Annotated[str, listed("Methods")] = "faust-representative,faust-prototype,backprop",
    episodes: Annotated[int, typer.Option(help="Number of random episodes of each kind, for each seed.")] = 1000,
    seeds: Seeds = 3,
) -> None:
    """Recognise new characters of Omniglot from one or five drawings: N-way K-shot accuracy with 95 % intervals.

    Not in the paper. Trains on the background alphabets, and classifies characters of the evaluation alphabets, also by raw
    pixels. Writes the result of each run to OUT/few-shot, and the table to OUT/few-shot.json and .md. After Ctrl-C the same
    command continues.
    """
    from faustnet.reproduce.few_shot import TABLE, few_shot_jobs

    note = "Accuracy in % with half the length of its 95 % interval; ○: the intervals of the two methods overlap."
    training.tabulate(TABLE, few_shot_jobs(names_in(methods), episodes, seeds), note)


STUDIES = (  # in the order of --help
    representatives,
    best,
    class_counts,
    incremental,
    ablation,
    new_classes,
    rejection,
    few_shot,
)
