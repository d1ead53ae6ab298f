"""Write RESULTS.md, docs/representatives.md, docs/class-counts.md, docs/new-classes.md and the tables in README.md,
docs/scikit-learn.md, docs/export.md, docs/play.md and docs/few-shot.md from the files in results/.

    python benchmarks/results.py

This program measures nothing; `faustnet reproduce` and `benchmarks/tuning.py` do. A test fails if a page and the files
disagree.
"""

import json
import statistics
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import beyond
import class_counts
import few_shot_page
import measurements
import new_classes
import performance_files
import performance_summary
import predsim
import stronger_in_short
from estimator import lines
from faustnet.report.paper import TITLES
from faustnet.report.table1 import as_markdown, difference, ours, over_seeds
from faustnet.report.tables import markdown
from faustnet.reproduce.jobs import Table1Job, table1_jobs
from faustnet.reproduce.results import method_titles
from faustnet.reproduce.table1 import TABLE, summary
from faustnet.runs.recipes import recipe_from
from paragraphs import filled
from trials import read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SEEDS = 5  # of Table I
TEMPLATE = """# Results

`python benchmarks/results.py` computes every number on this page from a file in `results/`. The command that wrote the
file is given in each section. Accuracies are in % of the test images after the last epoch, not the best epoch; ± is the
standard deviation over seeds. Hyper-parameters were chosen on validation images, which are a part of the training set.

## Table I

<!-- not run: takes long -->
```sh
faustnet reproduce table1 --out results --recipes tuned --jobs 8{unfinished_tuned}
faustnet reproduce table1 --out results --recipes paper --jobs 8{unfinished}
faustnet train --recipe tuned/cifar10/faust-representative --widths 500,500,500 --seed 0    # one run of one cell
```

Each cell shows our accuracy and, below it, the paper's and the difference. Cells with one line are not in the paper's
table. `results/table1/` has one file per run, with its recipe, seed, history, versions, device and time;
`results/table1.json` has the cells. {machine}

**Tuned**: hyper-parameters chosen for each method and data set ([how](#how-the-tuned-recipes-were-chosen)), 60 epochs,
no data augmentation. FFCM is the exception: like its authors, we use random crops and, on some data sets, horizontal
flips.

{tuned}

**With the settings of the paper's Figure 3**: Adam, learning rate 0.001, batch size 256, embedding size 256. The paper states
these for Figure 3 alone; for its table it tuned the optimiser, the batch size and the learning rate, and does not list what
it found. So these runs need not reach its table. They have 60 epochs, a constant learning rate, unscaled distances (scale
1), and no dropout or weight decay. For everything else that the paper does not state, they use the defaults of this
package: images are standardised to mean 0 and variance 1, the label vector of Forward-Forward has half the norm of an image
(the paper writes a 1), the goodness of SymBa is a mean over units, and FFCM uses no augmentation.

{paper}

{reading}

### How the tuned recipes were chosen

<!-- not run: takes long -->
```sh
python benchmarks/tuning.py ask results/study.json     # propose trials with Optuna
python benchmarks/tuning.py run results/study.json     # train on 55,000 or 45,000 images, validate on the other 5,000
python benchmarks/tuning.py write results/study.json   # write the best trials to src/faustnet/runs/recipes/tuned/
```

A trial is shorter than the final training: 25 epochs, 3×500, one seed. FAUST-vanilla tuplet on MNIST had nine
additional trials of 60 epochs, because its first recipe stayed below the paper's accuracy on the test images. They were
also compared on validation images. The table shows the best validation accuracy in % and the number of trials in
brackets; `results/study.json` has all trials.

{study}

{rerun}{beyond}{measured}## Figure 2: embeddings of Fashion-MNIST

`faustnet reproduce figure2 --out results` trains FAUST-representative (tuned, 4×500, embedding size 256) on
{figure2_device}. Its test accuracy is {figure2_accuracy:.2%}. F is the Fisher score of a layer's embeddings of all test
images, the between-class scatter divided by the within-class scatter: F = Σ_c n_c ‖μ_c − μ‖² / Σ_i ‖x_i − μ_y(i)‖². By
layer: {fisher}. The values are in `results/figure2.json`.

The paper reports 2.97 for the first layer and 9.81 for the fourth, but does not define its score. The table has the common
definitions, of the embeddings of all test images and of the 1,000 points of the map. None gives both numbers. Those of the
embeddings grow from layer to layer, as the paper's does; of these, the ratio of traces comes nearest in the first layer,
and the mean over the dimensions in the fourth.

{fisher_table}

![t-SNE of each layer's embeddings](results/figures/figure2.png)

## Figure 3: convergence on CIFAR-10

`faustnet reproduce figure3 --out results --seeds {curves}` draws the runs of Table I with the paper's recipes (3×500).
{{1}} is layer 1 alone, {{1,2,3}} all three layers together. Bands show one standard deviation over {curves} seeds.

![Accuracy by epoch](results/figures/figure3.png)

## Figure 1: the architecture

`faustnet reproduce figure1 --out results` draws a network of three layers.

![The architecture of FAUST](results/figures/figure1.png)

## Short trainings on a CPU

`python benchmarks/core.py results/core.json` trains 3×500 networks with the defaults of the package: seeds 0 to 2, two
CPU cores.

{core}
"""


METHODS = """**The methods of the paper**: MLP of four layers of 800 units, 60 epochs, {seeds}. The hyper-parameters of each
method were chosen on 5,000 validation images. Only FFCM uses data augmentation, because its authors use it.
[Methods](docs/methods.md) explains the names. [Table I](RESULTS.md#table-i) also has a smaller network, the accuracies in the
paper and the number of trials."""


def pages() -> dict[Path, str]:
    """Return the text of every page, by its path. A section without a result file is left out."""
    results = TABLE.read(RESULTS)
    cells = summary(results)
    figure2 = _read("figure2.json")
    text = TEMPLATE.format(
        machine=machine(results),
        unfinished_tuned=unfinished(results, "tuned"),
        unfinished=unfinished(results, "paper"),
        tuned=as_markdown(cells, "tuned", method_titles()),
        paper=as_markdown(cells, "paper", method_titles()),
        reading=" ".join(reading(cells, family) for family in ("tuned", "paper")),
        study=study(),
        rerun=predsim.section(read(RESULTS / "predsim.json")),
        beyond="".join(f"{section}\n\n" for section in beyond.sections(RESULTS)),
        measured=f"{section}\n\n" if (section := measurements.section(RESULTS)) else "",
        figure2_accuracy=figure2["test_accuracy"],
        figure2_device={"cpu": "a CPU"}.get(figure2["environment"]["device"], figure2["environment"]["device"]),
        fisher=", ".join(f"{layer['fisher']:.2f}" for layer in figure2["layers"]),
        fisher_table=fisher_table(figure2["layers"]),
        curves=sum(run["family"] == "paper" and run["dataset"] == "cifar10" and run["network"] == "3x500"
                   and run["method"] == "backprop" for run in results),
        core=core(),
    )  # fmt: skip
    return {
        ROOT / "RESULTS.md": text,
        **with_tables(
            ROOT / "README.md",
            {
                "table1": f"{methods_in_short(cells)}\n\n{table1_in_short(cells)}",
                "best": stronger_in_short.section(_read("best.json"), _read("best-study.json")),
                "few-shot": few_shot_page.in_short(RESULTS),
                "speed": performance_summary.speed_in_short(performance_files.read()),
            },
        ),
        **with_tables(ROOT / "docs/scikit-learn.md", {"estimator": "\n".join(lines(_read("estimator.json")))}),
        **with_tables(ROOT / "docs/export.md", {"export": exported()}),
        **with_tables(ROOT / "docs/play.md", {"play": played()}),
        **with_tables(ROOT / "docs/few-shot.md", {"few-shot": few_shot_page.section(RESULTS)}),
        **({ROOT / "docs/representatives.md": page} if (page := beyond.representatives(RESULTS)) else {}),
        ROOT / "docs/class-counts.md": class_counts.page(RESULTS),
        **({ROOT / "docs/new-classes.md": page} if (page := new_classes.page(RESULTS)) else {}),
    }


def with_tables(page: Path, tables: dict[str, str]) -> dict[Path, str]:
    """Return a page with the text between each pair of marks replaced."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by `python benchmarks/results.py` -->\n", f"\n<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = before + begin + table + end + rest.split(end)[1]
    return {page: text}


def methods_in_short(cells: list[dict[str, Any]]) -> str:
    """Return the text about the tuned recipes in README.md."""
    return filled([METHODS.format(seeds=over_seeds(_in_short(cells)))])


def table1_in_short(cells: list[dict[str, Any]]) -> str:
    """Our accuracies with the tuned recipes and one network."""
    found = {(cell["method"], cell["dataset"]): ours(cell) for cell in _in_short(cells)}
    titles = method_titles()
    methods, datasets = (
        [name for name in names if any(name == key[part] for key in found)] for part, names in enumerate((titles, TITLES))
    )
    rows = [[titles[method], *(found.get((method, dataset), "–") for dataset in datasets)] for method in methods]
    return markdown(["method", *(TITLES[dataset] for dataset in datasets)], rows)


def _in_short(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of Table I that README.md shows."""
    return [cell for cell in cells if (cell["recipe"], cell["network"]) == ("tuned", "4x800")]


def machine(results: list[dict[str, Any]]) -> str:
    """Describe the devices and the training time."""
    kinds = Counter((run["family"], run["environment"]["device"]) for run in results)
    where = ", ".join(f"{count} {family} runs on {device}" for (family, device), count in kinds.most_common())
    versions = " and ".join(sorted({run["environment"]["torch"] for run in results}))
    tuned = [run for run in results if run["family"] == "tuned"]
    seconds = [run["seconds"] for run in tuned]
    return (
        f"Hardware: {where}, torch {versions}. The {len(tuned)} tuned runs took {busy(tuned) / 60:.0f} minutes in total, "
        f"several at a time ({min(seconds):.0f} to {max(seconds):.0f} s per run)."
    )


def unfinished(results: list[dict[str, Any]], family: str) -> str:
    """Say how many runs of a family are there, if some are missing."""
    wanted, found = (
        table1_jobs([family], None, None, ["3x500", "4x800"], SEEDS),
        {Table1Job.of_result(run) for run in results},
    )
    there = sum(job in found for job in wanted)
    return f"    # {there} of {len(wanted)} runs so far" if there < len(wanted) else ""


def busy(results: list[dict[str, Any]]) -> float:
    """Seconds during which at least one run was training."""
    total, until = 0.0, 0.0
    for run in sorted(results, key=lambda run: run["environment"]["started"]):
        begin = datetime.fromisoformat(run["environment"]["started"]).timestamp()
        end = begin + run["seconds"]
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def reading(cells: list[dict[str, Any]], family: str) -> str:
    """Summarise the table of a family of recipes."""
    known = [cell for cell in cells if cell["recipe"] == family and cell["paper"] is not None]
    above = sum(cell["mean"] >= cell["paper"] for cell in known)
    worst = min(known, key=lambda cell: cell["mean"] - cell["paper"])
    where = f"{method_titles()[worst['method']]} on {TITLES[worst['dataset']]}, {worst['network'].replace('x', '×')}"
    return (
        f"The {family} recipes reach or exceed {above} of the {len(known)} accuracies in the paper; the lowest difference is "
        f"{difference(worst)} ({where})."
    )


def fisher_table(layers: list[dict[str, Any]]) -> str:
    """Return a row for each definition of the Fisher score, with a column for each layer."""
    titles = {"of_embeddings": "embeddings", "of_the_map": "points of the map"}
    rows = [
        [f"{definition}, {title}", *(f"{layer[key][definition]:.2f}" for layer in layers)]
        for key, title in titles.items()
        for definition in layers[0][key]
    ]
    return markdown(["definition", *(f"layer {number}" for number in range(1, len(layers) + 1))], rows)


def study() -> str:
    trials = [trial for trial in _read("study.json") if trial["validation_accuracy"] is not None]
    datasets = [name for name in TITLES if any(trial["dataset"] == name for trial in trials)]
    rows = []
    for method in dict.fromkeys(trial["method"] for trial in trials):
        row = [method_titles()[method]]
        for dataset in datasets:
            found = [t["validation_accuracy"] for t in trials if (t["method"], t["dataset"]) == (method, dataset)]
            row.append(f"{100 * max(found):.2f} ({len(found)})" if found else "–")
        rows.append(row)
    return markdown(["method", *(TITLES[name] for name in datasets)], rows)


def exported() -> str:
    rows = [
        [f"{line['network']}, `{line['method']}`, {line['images']} per batch", f"{line['torch_us']:,.0f}",
         f"{line['onnx_us']:,.0f}", f"{line['onnx_us'] / line['torch_us']:.2f}"]
        for line in _read("export.json")["lines"]
    ]  # fmt: skip
    return markdown(["images of 28×28", "PyTorch, µs", "ONNX Runtime, µs", "ONNX Runtime ÷ PyTorch"], rows)


def played() -> str:
    rows = [
        [line["network"], f"{line['page_ms']:.1f}", f"{line['torch_ms']:.1f}", f"{line['largest_difference']:.0e}",
         str(line["different_votes"]), f"{line['megabytes']:.1f}"]
        for line in _read("play.json")["lines"]
    ]  # fmt: skip
    columns = [
        "images of 28×28",
        "page, ms",
        "PyTorch, ms",
        "largest difference of a distance",
        "different votes",
        "page, MB",
    ]
    return markdown(columns, rows)


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def core() -> str:
    """Mean ± standard deviation over the seeds in results/core.json."""
    runs = _read("core.json")
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        found.setdefault((run["method"], run["recipe_name"]), []).append(100 * run["test_accuracy"])
    recipes = list(dict.fromkeys(run["recipe_name"] for run in runs))
    epochs = {run["recipe_name"]: recipe_from(run["recipe"]).training.epochs for run in runs}
    rows = []
    for method in dict.fromkeys(run["method"] for run in runs):
        cells = (found.get((method, name)) for name in recipes)
        shown = (f"{statistics.mean(cell):.2f} ± {statistics.stdev(cell):.2f}" if cell else "–" for cell in cells)
        rows.append([method_titles()[method], *shown])
    return markdown(["method", *(f"{TITLES[name]}, {epochs[name]} epochs" for name in recipes)], rows)


if __name__ == "__main__":
    for path, content in pages().items():
        path.write_text(content, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
