"""N-way K-shot accuracy on characters of Omniglot's evaluation set, by networks that were trained on other alphabets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from faustnet.errors import require
from faustnet.report.table1 import signed
from faustnet.reproduce.jobs import Job, Load, check_known, check_seeds, check_shipped
from faustnet.reproduce.results import Cells, ResultTable, grouped, mean_and_std, method_titles
from faustnet.runs.few_shot import PIXELS, all_images, measure_task, model_features, pixel_features
from faustnet.runs.model import Model
from faustnet.runs.recipes import Recipe, choice_of_recipe, recipe_from, shipped_recipe
from faustnet.training.few_shot import ALPHABET, RANDOM, Task, mean_interval

DATASET = "omniglot"
UNSEEN = "omniglot-evaluation"  # the data set of the episodes
FAMILY = "few-shot"
METHODS = ("faust-representative", "faust-prototype", "backprop")
QUERIES = 5  # images of each class that are classified in an episode
TASKS = (
    *(Task(ways, shots, QUERIES, RANDOM) for ways in (5, 20) for shots in (1, 5)),
    Task(20, 1, QUERIES, ALPHABET),
)
KEYS = ("dataset", "protocol", "ways", "shots", "method")
MEANS = ("layer_accuracy", "first_layers_accuracy")


@dataclass(frozen=True)
class FewShotJob(Job):
    """A network that is trained on the background alphabets, with one seed, which also determines the episodes."""

    table = "few-shot"
    method: str
    episodes: int  # of each task
    seed: int

    def __post_init__(self) -> None:
        check_known("method of the comparison", [self.method], METHODS)
        check_shipped(self.recipe_name)

    @property
    def recipe_name(self) -> str:
        return f"{FAMILY}/{DATASET}/{self.method}"

    @property
    def recipe(self) -> Recipe:
        return recipe_from({**shipped_recipe(self.recipe_name), "seed": self.seed})

    @property
    def path(self) -> str:
        return f"{self.table}/{DATASET}-{self.method}-{self.episodes}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.method} on {DATASET}, {self.episodes:,} episodes, seed {self.seed}"

    def measure(self, model: Model, load: Load) -> dict[str, Any]:
        """Return the accuracy of every task by the model and by raw pixels, in the same episodes."""
        data = load(UNSEEN)
        images = all_images(data).to(model.device)
        features = {"tasks": model_features(model, images, **readout_of(self.method)), PIXELS: pixel_features(images)}
        settings = images.labels, data.class_names, self.episodes, self.seed
        return {name: [measure_task(one, task, *settings) for task in TASKS] for name, one in features.items()}


def readout_of(method: str) -> dict[str, Any]:
    """Return the arguments of `model_features` that were chosen for a method together with its recipe."""
    return (choice_of_recipe(f"{DATASET}/{method}", FAMILY) or {}).get("readout", {})


def few_shot_jobs(methods: Sequence[str], episodes: int, seeds: int) -> list[FewShotJob]:
    """Return jobs for these methods, seed by seed."""
    check_seeds(seeds)
    require(episodes >= 2, f"--episodes must be at least 2, for an interval, got {episodes}.")
    require(bool(methods), f"--methods must be one or more of {', '.join(METHODS)}, got none.")
    return list(dict.fromkeys(FewShotJob(method, episodes, seed) for seed in range(seeds) for method in methods))


def summary(results: list[dict[str, Any]]) -> Cells:
    """Return one cell per task and method, in %: the mean accuracy over all seeds and episodes with its 95 % interval, and
    the standard deviation over the seeds. All methods have the same episodes, so raw pixels are taken from one of them."""
    measured = [{**_about(one), **task} for one in results for task in one["tasks"]]
    by_seed = {(one["seed"], one["episodes"]): one for one in reversed(results)}
    measured += [{**_about(one), "method": PIXELS, **task} for _, one in sorted(by_seed.items()) for task in one[PIXELS]]
    cells = [_cell(about, mine) for about, mine in grouped(measured, *KEYS)]
    order = [(task.protocol, task.ways, task.shots) for task in TASKS]
    methods = [*METHODS, PIXELS]
    return sorted(
        cells,
        key=lambda cell: (order.index((cell["protocol"], cell["ways"], cell["shots"])), methods.index(cell["method"])),
    )


def _about(result: dict[str, Any]) -> dict[str, Any]:
    return {"dataset": DATASET, "method": result["method"], "seed": result["seed"]}


def _cell(about: dict[str, Any], mine: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the cell of a task and a method from its measurements, one per seed."""
    episodes = [one["episodes"] for one in mine]
    mean, interval = mean_interval([one["mean"] for one in mine], [one["variance"] for one in mine], episodes)
    return {
        **about,
        "mean": round(100 * mean, 3),
        "interval": [round(100 * end, 3) for end in interval],
        "episodes": sum(episodes),
        "seeds": len(mine),
        "std": mean_and_std([100 * one["mean"] for one in mine])["std"],
        "queries": mine[0]["queries"],
        "layers": mine[0]["layers"],
        **{key: [_mean_percent(values) for values in zip(*(one[key] for one in mine), strict=True)] for key in MEANS},
    }


def _mean_percent(values: Sequence[float]) -> float:
    return round(100 * sum(values) / len(values), 3)


def rows(cells: Cells) -> list[list[str]]:
    """Return one row per task and method."""
    twins = {task_of(cell): cell for cell in cells if cell["method"] == "backprop"}
    return [
        [
            task_of(cell),
            {PIXELS: "raw pixels", **method_titles()}[cell["method"]],
            interval_text(cell),
            _difference(cell, twins.get(task_of(cell))),
            " / ".join(f"{one:.2f}" for one in cell["layer_accuracy"]) if len(cell["layers"]) > 1 else "–",
            f"{cell['episodes']:,}",
        ]
        for cell in cells
    ]


def task_of(cell: dict[str, Any]) -> str:
    """Return the task of a cell in words."""
    return str(Task(cell["ways"], cell["shots"], cell["queries"], cell["protocol"]))


def interval_text(cell: dict[str, Any]) -> str:
    """Return the accuracy of a cell with half the length of its interval."""
    return f"{cell['mean']:.2f} ± {(cell['interval'][1] - cell['interval'][0]) / 2:.2f}"


def _difference(cell: dict[str, Any], twin: dict[str, Any] | None) -> str:
    """Return the difference to backprop. A ○ says that the two intervals overlap."""
    if twin is None or cell["method"] in ("backprop", PIXELS):
        return "–"
    overlap = cell["interval"][0] <= twin["interval"][1] and twin["interval"][0] <= cell["interval"][1]
    return signed(cell["mean"] - twin["mean"]) + (" ○" if overlap else "")


COLUMNS = ("task", "method", "accuracy", "difference to backprop", "each layer alone", "episodes")
TABLE = ResultTable(FewShotJob, summary, KEYS, COLUMNS, rows)
