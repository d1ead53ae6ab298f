"""The figures of the paper: train what is missing, collect the numbers, draw them."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faustnet.data import DataSet
from faustnet.errors import FaustnetError
from faustnet.nn.bodies import DenseBody
from faustnet.report.figures import drawing, figure1, figure2, figure3, save
from faustnet.reproduce.dispatch import results_of
from faustnet.reproduce.jobs import Table1Job, table1_jobs
from faustnet.reproduce.results import mean_and_std, writing_to
from faustnet.reproduce.worker import cached_data, train_or_resume
from faustnet.reproduce.workers import Workers
from faustnet.runs.analysis import fisher_definitions, fisher_score, layer_embeddings, tsne
from faustnet.runs.examples import balanced_sample
from faustnet.runs.model import Model
from faustnet.runs.recipes import as_table, recipe_from
from faustnet.runs.session import Progress
from faustnet.system.files import write_whole

POINTS = 1000  # test images in each panel of figure 2
COMPARED = {"forward-forward": "FF", "faust-representative": "FAUST", "backprop": "BP"}  # figure 3's panels


def draw_figure1(out: Path, dataset: str, network: str, data_dir: Path | None) -> list[Path]:
    """Draw the architecture of a new network."""
    job = Table1Job("tuned", "faust-representative", dataset, network, 0)
    data = cached_data(dataset, data_dir)
    model = Model.fresh(job.recipe, data.train, data.class_names, data.tokeniser)
    return save(figure1(architecture(model)), out / "figures", "figure1")


def architecture(model: Model) -> dict[str, Any]:
    """Return the sizes of a FAUST network, for the drawing."""
    layers = [(layer.body.linear, layer) for layer in model.method.network if isinstance(layer.body, DenseBody)]
    return {
        "input_shape": list(model.shape),
        "inputs": layers[0][0].in_features,
        "references": model.method.classes * model.recipe.options["representatives"],
        "layers": [
            {
                "inputs": linear.in_features,
                "width": linear.out_features,
                "embedding": layer.embedding_size if layer.projection is not None else 0,
            }
            for linear, layer in layers
        ],
    }


def draw_figure2(
    out: Path, dataset: str, network: str, device: torch.device, data_dir: Path | None, progress: Progress
) -> list[Path]:
    """Draw t-SNE maps of each layer's embeddings of test images, with Fisher scores; the points are in OUT/figure2.json."""
    job = Table1Job("tuned", "faust-representative", dataset, network, 0)
    path, folder = out / "figure2.json", out / "figure2.run"
    with writing_to(out):  # fails now if the folder is not writable
        pass
    with drawing():
        if not path.exists():
            facts = embedded(job, folder, device, cached_data(dataset, data_dir), progress)
            write_whole(path, (json.dumps(facts) + "\n").encode())
            shutil.rmtree(folder, ignore_errors=True)
        facts = _facts(path)
        if recipe_from(facts["recipe"]) != job.recipe:
            raise FaustnetError(f"{path} was made with another recipe: move or delete it, or choose another --out.")
        return save(figure2(facts), out / "figures", "figure2")


def embedded(job: Table1Job, folder: Path, device: torch.device, data: DataSet, progress: Progress) -> dict[str, Any]:
    """Train a run and return the Fisher scores and a t-SNE map of each layer; maps have equally many images of each class.
    The scores by all definitions are for a comparison with those of the paper, which does not define its own."""
    run = train_or_resume(job.recipe, folder, device, data, progress)
    labels = data.test.labels.numpy()
    chosen = balanced_sample(labels, POINTS)
    layers = layer_embeddings(run.model(device), data.test)
    maps = [tsne(layer[chosen]) for layer in layers]
    return {
        "class_names": list(data.class_names),
        "labels": labels[chosen].tolist(),
        "layers": [
            {
                "fisher": round(fisher_score(layer, labels), 4),
                "of_embeddings": _rounded(fisher_definitions(layer, labels)),
                "of_the_map": _rounded(fisher_definitions(points, labels[chosen])),
                "points": np.round(points, 1).tolist(),
            }
            for layer, points in zip(layers, maps, strict=True)
        ],
        "test_accuracy": run.metrics["test_accuracy"],
        "recipe": as_table(run.recipe),
        "environment": run.environment,
    }


def _rounded(scores: dict[str, float]) -> dict[str, float]:
    return {name: round(score, 4) for name, score in scores.items()}


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        counts = {len(layer["points"]) for layer in facts["layers"] if layer["fisher"] >= 0}
        if counts == {len(facts["labels"])} and max(facts["labels"]) < len(facts["class_names"]) and facts["recipe"]:
            return facts
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise FaustnetError(f"{path} is damaged: delete it and run the same command again.")


def draw_figure3(out: Path, dataset: str, network: str, seeds: int, workers: Workers) -> list[Path]:
    """Draw the test accuracy by epoch of runs of table 1, for each layer and for the first layers together."""
    jobs = table1_jobs(["paper"], list(COMPARED), [dataset], [network], seeds)
    with drawing():
        results = results_of(jobs, out, workers)
        drawn = [
            {"title": title, "curves": curves([result for result in results if result["method"] == method])}
            for method, title in COMPARED.items()
        ]
        return save(figure3({"panels": drawn}), out / "figures", "figure3")


def curves(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean and standard deviation over the seeds, in %, by epoch."""
    voters = len(results[0]["voters"])
    if voters == 1:
        return [_curve(results[0]["voters"][0], results, "layer_accuracy", 0)]
    alone = [_curve(f"{{{number + 1}}}", results, "layer_accuracy", number) for number in range(voters)]
    sets = [",".join(map(str, range(1, number + 2))) for number in range(1, voters)]
    together = [_curve(f"{{{names}}}", results, "first_layers_accuracy", n) for n, names in enumerate(sets, start=1)]
    return alone + together


def _curve(label: str, results: Sequence[dict[str, Any]], key: str, number: int) -> dict[str, Any]:
    histories = [[100 * epoch[key][number] if epoch[key] else None for epoch in result["history"]] for result in results]
    nothing: dict[str, float | None] = {"mean": None, "std": None}
    spread = [nothing if None in values else mean_and_std(values) for values in zip(*histories, strict=True)]
    epochs = [epoch["epoch"] for epoch in results[0]["history"]]
    return {"label": label, "epochs": epochs, **{key: [one[key] for one in spread] for key in nothing}}
