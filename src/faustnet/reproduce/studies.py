"""How much it matters what stands for a class: which images, and how many."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faustnet.errors import require
from faustnet.recipes import Recipe, changed
from faustnet.report.figures import draw_choices, drawing, save
from faustnet.reproduce.results import alone_in, mean_and_std, write_lines
from faustnet.reproduce.runner import results_of
from faustnet.reproduce.wanted import Wanted

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
    wanted: list[Choice],
    out: Path,
    device: str,
    data_dir: Path | None,
    jobs: int,
    say: Callable[[object, str], None],
) -> list[Path]:
    """Train what is missing, write OUT/representatives.json, and draw it."""
    with drawing(), alone_in(out):
        points = summary(results_of(wanted, out, device, data_dir, jobs, say))
        write_lines(out / "representatives.json", points)
        return save(draw_choices(points), out / "figures", "representatives")


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracies in % by data set, kind and number, with the mean and the standard deviation."""
    found: dict[tuple[str, str, str, int], list[float]] = {}
    for result in results:
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
