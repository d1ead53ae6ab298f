"""How much it matters what stands for a class: which images, and how many."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faustnet.errors import require
from faustnet.report.figures import draw_choices, drawing, save
from faustnet.reproduce.results import ResultTable, mean_and_std
from faustnet.reproduce.wanted import Wanted
from faustnet.reproduce.work import Lines, reproduced
from faustnet.reproduce.workers import Workers
from faustnet.runs.recipes import Recipe, changed

DRAWS = 20  # random choices of a single representative
COUNTS = (1, 2, 5, 10, 20, 50)
SEEDS = 3  # of every other point
KINDS = ("random", "k-means", "prototype")


@dataclass(frozen=True)
class Choice:
    """One run: a kind of reference and how many of them a class has. The seed draws them, and the weights."""

    dataset: str
    network: str
    kind: str
    count: int
    seed: int

    @property
    def recipe(self) -> Recipe:
        """The tuned one of FAUST-representative, with other references."""
        tuned = Wanted("tuned", "faust-representative", self.dataset, self.network, self.seed).recipe
        if self.kind == "prototype":
            return changed(tuned, {"method": "faust-prototype", "options.prototypes": self.count})
        return changed(tuned, {"options.choice": self.kind, "options.representatives": self.count})

    @property
    def facts(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("dataset", "network", "kind", "count", "seed")}

    def file(self, out: Path) -> Path:
        name = f"{self.dataset}-{self.network}-{self.kind}-{self.count}-{self.seed}.json"
        return out / "representatives" / name

    def folder(self, out: Path) -> Path:
        return self.file(out).with_suffix(".run")

    def __str__(self) -> str:
        return f"{self.count} × {self.kind} on {self.dataset}, {self.network}, seed {self.seed}"


def choices(datasets: list[str], network: str, draws: int, counts: list[int]) -> list[Choice]:
    """Many draws of a single image, then every kind and number; all of them possible."""
    found = [Choice(dataset, network, "random", 1, seed) for dataset in datasets for seed in range(draws)]
    found += [
        Choice(dataset, network, kind, count, seed)
        for seed in range(min(draws, SEEDS))
        for dataset in datasets
        for count in counts
        for kind in KINDS
    ]
    for choice in found:
        require(choice.count >= 1, f"A class needs at least one reference, not {choice.count}.")
        choice.recipe  # noqa: B018 - says what is wrong with the data set or the network
    return list(dict.fromkeys(found))


def study_representatives(
    wanted: list[Choice], out: Path, workers: Workers, say: Callable[[object, str], None]
) -> list[Path]:
    """OUT/representatives.json of all results that are there, and a drawing of what was asked for."""
    with drawing():
        points = reproduced(TABLE, wanted, out, workers, Lines(out, say))
        found = {(one["dataset"], one["network"], one["kind"], one["count"]): one for one in points}
        asked = dict.fromkeys((one.dataset, one.network, one.kind, one.count) for one in wanted)
        return save(draw_choices([found[key] for key in asked]), out / "figures", "representatives")


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracies in % by data set, kind and number, with the mean and the standard deviation."""
    found: dict[tuple[str, str, str, int], list[float]] = {}
    for result in sorted(results, key=lambda one: (one["dataset"], one["network"], KINDS.index(one["kind"]), one["count"])):
        key = (result["dataset"], result["network"], result["kind"], result["count"])
        found.setdefault(key, []).append(round(100 * result["test_accuracy"], 3))
    return [
        {
            "dataset": dataset,
            "network": network,
            "kind": kind,
            "count": count,
            **mean_and_std(accuracies),
            "accuracies": accuracies,
        }
        for (dataset, network, kind, count), accuracies in found.items()
    ]


TABLE = ResultTable(
    "representatives",
    "representatives/*.json",
    "the study of representatives",
    job=lambda result: Choice(*(result[key] for key in ("dataset", "network", "kind", "count", "seed"))),
    cells=summary,
)
