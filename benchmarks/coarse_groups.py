"""Train the first layers of a network on groups of classes, and measure the accuracy on validation images.

    python benchmarks/coarse_groups.py results/coarse-groups.json --base best/cifar100/cnn --jobs 3 --seconds 500

The groups are those of the data set DATASET-coarse, the 20 of CIFAR-100 by default. With --layers 0,1,2,3, none, one, two
and three of the first layers learn groups, and the other layers learn classes. Test images are not used. The file is
written after each run; run the command again to continue.
"""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from faustnet.data import Images
from faustnet.errors import FaustnetError, require
from faustnet.losses.objective import Contrastive, Objective, ReferenceTuplet, SimilarityMatching
from faustnet.methods import FaustRepresentative
from faustnet.nn.network import Network
from faustnet.nn.references import reference_scores
from faustnet.report.table1 import ours, over_seeds
from faustnet.report.tables import markdown
from faustnet.reproduce.best import difference
from faustnet.reproduce.jobs import on_validation
from faustnet.reproduce.results import grouped, mean_and_std
from faustnet.reproduce.worker import cached_data
from faustnet.runs.own import OwnMethod
from faustnet.runs.recipes import Recipe, as_table, changed, differences, read_recipe, recipe_from
from faustnet.runs.session import set_up
from faustnet.system.devices import choose_device
from faustnet.system.environment import environment
from faustnet.training.evaluation import accuracy, all_scores
from trials import add_row, read, results_of

HEADING = "## Groups of classes as targets of the early layers"
SECTION = """{heading}

<!-- not run: takes long -->
```sh
python benchmarks/coarse_groups.py results/coarse-groups.json --base {base}
```

Another idea for many classes: the early layers learn a few groups of classes, and only the later layers learn the classes.
CIFAR-100 has 20 groups of five classes. In a layer that learns groups, the references of a group are the representatives
of its classes, and all terms of the loss use the groups as labels. The program trains {base} for {epochs} epochs. The
table shows accuracies on validation images in %, over {seeds}; test images were not used.

*Later layers* predicts from the layers that learn classes. *Without groups* predicts from the same layers of the network
whose layers all learn classes. *All layers* also adds the scores of the layers that learn groups, where every class has the
score of its group; its difference is to all layers of the network without groups. ± after a difference is its 95 %
interval, and ○ marks one that includes zero.

{table}

{reading}"""
COLUMNS = ("layers that learn groups", "later layers", "without groups", "difference", "all layers", "difference")


class GroupTargets(FaustRepresentative):
    """FAUST-representative whose first layers learn groups of classes.

    In these layers, the label of an image is the group of its class, and the references of a group are the representatives
    of all its classes. Every class gets the score of its group there, so these layers cannot tell the classes of a group
    apart.

    Options:
        groups: Group of each class, numbered from 0. All groups have the same number of classes.
        coarse_layers: Number of layers, from the first, that learn groups.

    All other options are those of FAUST-representative.
    """

    name: ClassVar[str] = "group-targets"
    summary: ClassVar[str] = "FAUST-representative whose first layers learn groups of classes"

    groups: Tensor  # of each class, (C,)
    order: Tensor  # classes, group by group, (C,)

    def __init__(
        self, network: Network, classes: int, *, groups: Sequence[int] = (), coarse_layers: int = 0, **options: Any
    ):
        super().__init__(network, classes, **options)
        sizes = torch.bincount(torch.tensor(groups, dtype=torch.long))
        require(
            len(groups) == classes and len(set(sizes.tolist())) == 1,
            f"groups must have one number for each of {classes} classes, and every group as many classes as the others, got "
            f"{list(groups)}.",
        )
        require(
            0 <= coarse_layers < len(network),
            f"coarse_layers must be from 0 to {len(network) - 1}, so that the last layer learns classes, got "
            f"{coarse_layers}.",
        )
        require(self.classes_per_step == "all", f"classes_per_step must be all with groups, got {self.classes_per_step!r}.")
        self.coarse_layers = coarse_layers
        self.register_buffer("groups", torch.tensor(groups), persistent=False)
        self.register_buffer("order", self.groups.argsort(stable=True), persistent=False)
        chosen = FaustRepresentative.options() | options
        scales = chosen["scale"], chosen["final_scale"], chosen["label_smoothing"]
        self.group_objective = Objective(
            [
                ReferenceTuplet(len(sizes), *scales),
                Contrastive(chosen["contrast"], chosen["temperature"]),
                SimilarityMatching(chosen["matching"]),
            ]
        )

    def enter_epoch(self, progress: float) -> None:
        super().enter_epoch(progress)
        self.group_objective.enter_epoch(progress)

    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        coarse = sum(number < self.coarse_layers for number in range(len(self.network))[layers])
        losses = []
        if coarse:
            rows, labels = self.by_group(embedding[:coarse], y.shape[-1]), self.groups[y[:coarse]]
            losses.append(self.group_objective(rows, labels, self.mixing.own(y.shape[-1])))
        if coarse < len(embedding):
            losses.append(super().batched_loss(embedding[coarse:], y[coarse:], layers))
        return torch.cat(losses)

    def by_group(self, embedding: Tensor, batch: int) -> Tensor:
        """Put the representatives after the anchors in the order of the groups. (…, B + C · K, e) → the same shape"""
        anchors, references = embedding[..., :batch, :], embedding[..., batch:, :]
        of_classes = references.unflatten(-2, (self.classes, -1))
        return torch.cat([anchors, of_classes.index_select(-3, self.order).flatten(-3, -2)], dim=-2)

    def scores(self, x: Tensor) -> Tensor:
        found = []
        for number, (embedding, references) in enumerate(zip(self.network.embeddings(x), self.references, strict=True)):
            if number < self.coarse_layers:
                of_groups = references[self.order].unflatten(0, (self.group_objective.terms[0].classes, -1)).flatten(1, 2)
                found.append(reference_scores(embedding, of_groups, self.scale)[:, self.groups])
            else:
                found.append(reference_scores(embedding, references, self.scale))
        return torch.stack(found)


def groups_of(fine: Images, coarse: Images) -> list[int]:
    """Return the group of each class, from the same images with labels of both kinds."""
    pairs = sorted(set(zip(fine.labels.tolist(), coarse.labels.tolist(), strict=True)))
    require(
        [label for label, _ in pairs] == list(range(len(pairs))),
        "The images of every class must belong to one group, but those of some class belong to several.",
    )
    return [group for _, group in pairs]


def measure(recipe: Recipe, groups: list[int], coarse_layers: int, device: str) -> dict[str, Any]:
    """Train one run and return its accuracies on the validation images: of the last L, L − 1, … layers together, and of each
    layer on the groups."""
    begin, where = time.perf_counter(), torch.device(device)
    options = {**recipe.options, "groups": groups, "coarse_layers": coarse_layers}
    own = OwnMethod(GroupTargets, options, recipe.network)
    _, trainer = set_up(recipe, cached_data(recipe.dataset, None), where, own=own)
    trainer.method.set_prediction(recipe.prediction)
    trainer.run(lambda: None, lambda epoch: None)
    scores, labels = all_scores(trainer.method, trainer.held_out), trainer.held_out.labels
    of_class = torch.tensor(groups, device=where)
    last = [accuracy(scores[first:].sum(dim=0).argmax(dim=1), labels) for first in range(len(scores))]
    return {
        "epochs": recipe.training.epochs,
        "coarse_layers": coarse_layers,
        "seed": recipe.seed,
        "validation_accuracy": last[coarse_layers],
        "last_layers_accuracy": last,
        "group_accuracy": [accuracy(of_class[layer.argmax(dim=1)], of_class[labels]) for layer in scores],
        "seconds": round(time.perf_counter() - begin, 1),
        "recipe": as_table(recipe),
        "environment": environment(where, recipe.seed),
    }


def run(path: Path, base: tuple[str, Recipe], groups: list[int], layers: Sequence[int], seeds: int, **how: Any) -> None:
    """Train the missing runs. `how` are the arguments `jobs`, `device` and `seconds`."""
    name, recipe = base
    check_base(recipe)
    done = set()
    for row in read(path):
        for key in differences(recipe_from(row["recipe"]), changed(recipe, {"seed": row["seed"]})):
            raise FaustnetError(f"{path} has runs with another {key}: move or delete it, or name another file.")
        done.add((row["coarse_layers"], row["seed"]))
    missing = [
        (changed(recipe, {"seed": seed}), groups, count, how["device"])
        for seed in range(seeds)
        for count in layers
        if (count, seed) not in done
    ]
    for _, row in results_of(measure, missing, [1] * len(missing), how["jobs"], how["seconds"]):
        add_row(path, {"base": name, **row}, ("base", "epochs", "coarse_layers", "seed"))
        print(
            f"{row['coarse_layers']} layers learn groups, seed {row['seed']}: {row['validation_accuracy']:.2%}, all layers "
            f"{row['last_layers_accuracy'][0]:.2%} ({row['seconds']} s)",
            flush=True,
        )


def check_base(recipe: Recipe) -> None:
    require(
        recipe.method == FaustRepresentative.name,
        f"--base must be a recipe of {FaustRepresentative.name}, got one of {recipe.method}.",
    )
    require(
        not recipe.prediction.weights and recipe.prediction.layers == "all",
        "--base must be a recipe that predicts from all layers with equal weights.",
    )


def section(rows: list[dict[str, Any]]) -> str:
    """Return the section about these runs, or nothing without them."""
    if not rows:
        return ""
    found = {about["coarse_layers"]: mine for about, mine in grouped(rows, "coarse_layers")}
    lines, later, together = [], {}, {}
    for count in sorted(found):
        mine, both = _cell(found[count], count), _cell(found[count], 0)
        plain, whole = (_cell(found[0], first) if count and 0 in found else None for first in (count, 0))
        later[count], together[count] = (difference(*pair) if pair[1] else "–" for pair in ((mine, plain), (both, whole)))
        shown = [ours(cell) if cell else "–" for cell in (mine, plain, both)]
        first = f"first {count}" if count else "none"
        lines.append([first, shown[0], shown[1], later[count], shown[2], together[count]])
    return SECTION.format(
        heading=HEADING,
        base=rows[0]["base"],
        epochs=rows[0]["epochs"],
        seeds=over_seeds([_cell(mine, 0) for mine in found.values()]),
        table=markdown(COLUMNS, lines),
        reading=f"{_reading('the later layers', later)} {_reading('all layers', together)}",
    )


def _cell(rows: list[dict[str, Any]], first: int) -> dict[str, Any]:
    """Return the mean accuracy in % of all layers but the first ones."""
    return {**mean_and_std([100 * row["last_layers_accuracy"][first] for row in rows]), "seeds": len(rows)}


def _reading(voters: str, differences: dict[int, str]) -> str:
    """Say for which numbers of layers groups raise or lower the accuracy."""
    known = {count: text for count, text in differences.items() if "±" in text}
    if not known:
        return f"For {voters}, there are too few runs for an interval."
    said = []
    for sign, verb in (("+", "higher"), ("−", "lower")):
        counts = [str(count) for count, text in known.items() if text.startswith(sign) and not text.endswith("○")]
        said += [f"{verb} with {' or '.join(counts)}"] if counts else []
    if not said:
        return f"There is no clear difference in the accuracy of {voters} with any number of layers of groups."
    return f"The accuracy of {voters} is {' and '.join(said)} layers of groups."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--base", default="best/cifar100/cnn", help="an included recipe, or a TOML file")
    parser.add_argument("--layers", default="0,1,2,3", help="numbers of layers that learn groups, separated by commas")
    parser.add_argument("--epochs", type=int, help="epochs of every run (default: as in the recipe)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no new run after this time")
    given = parser.parse_args()
    try:
        recipe = recipe_from(read_recipe(given.base))
        if given.epochs is not None:
            recipe = changed(recipe, {"training.epochs": given.epochs})
        groups = groups_of(*(cached_data(recipe.dataset + ending, None).train for ending in ("", "-coarse")))
        base, layers = (given.base, on_validation(recipe)), list(map(int, given.layers.split(",")))
        how = {"jobs": given.jobs, "device": choose_device(given.device).type, "seconds": given.seconds}
        run(given.file, base, groups, layers, given.seeds, **how)
    except FaustnetError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
