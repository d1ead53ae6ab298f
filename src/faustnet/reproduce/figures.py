"""The paper's figures: train what is missing, gather the facts, draw them."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faustnet.data import DataSet
from faustnet.errors import FaustnetError
from faustnet.nn.layers import DenseLayer
from faustnet.report.figures import drawing, figure1, figure2, figure3, save
from faustnet.reproduce.claims import claimed
from faustnet.reproduce.results import mean_and_std, writing_to
from faustnet.reproduce.runner import CLAIMS, data_of, trained
from faustnet.reproduce.wanted import Wanted, all_wanted
from faustnet.reproduce.work import Lines, results_of
from faustnet.reproduce.workers import Workers
from faustnet.runs.analysis import balanced_sample, fisher_score, layer_embeddings, tsne
from faustnet.runs.model import Model
from faustnet.runs.recipes import as_table, recipe_from
from faustnet.runs.session import Progress
from faustnet.system.files import write_whole

POINTS = 1000  # test images in a panel of figure 2
COMPARED = {"forward-forward": "FF", "faust-representative": "FAUST", "backprop": "BP"}  # figure 3's panels


def draw_figure1(out: Path, dataset: str, network: str, data_dir: Path | None) -> list[Path]:
    """The architecture of a network that is made for the purpose."""
    wanted = Wanted("tuned", "faust-representative", dataset, network, 0)
    data = data_of(dataset, data_dir)
    model = Model.fresh(wanted.recipe, data.train, data.class_names)
    return save(figure1(architecture(model)), out / "figures", "figure1")


def architecture(model: Model) -> dict[str, Any]:
    """A FAUST network as it is, for the drawing."""
    layers = [layer for layer in model.method.network if isinstance(layer, DenseLayer)]
    return {
        "method": model.recipe.method,
        "input_shape": list(model.shape),
        "inputs": layers[0].inputs,
        "classes": model.method.classes,
        "layers": [
            {
                "inputs": layer.inputs,
                "width": layer.linear.out_features,
                "embedding": layer.projection.out_features if layer.projection is not None else 0,
                "passes_on": layer.outputs,
            }
            for layer in layers
        ],
        "passes_on": model.recipe.network.passes_on,
        "representatives": model.recipe.options.get("representatives", 1),
    }


def draw_figure2(
    out: Path, dataset: str, network: str, device: torch.device, data_dir: Path | None, progress: Progress
) -> list[Path]:
    """t-SNE of each layer's embeddings of test images, and its Fisher score; the facts are kept in OUT/figure2.json."""
    wanted = Wanted("tuned", "faust-representative", dataset, network, 0)
    path, folder = out / "figure2.json", out / "figure2.run"
    with writing_to(out):  # to find out now whether it can be
        pass
    with drawing():
        if not path.exists():
            with claimed(out / CLAIMS / "figure2.claim"):
                facts = embedded(wanted, folder, device, data_of(dataset, data_dir), progress)
                write_whole(path, (json.dumps(facts) + "\n").encode())
                shutil.rmtree(folder, ignore_errors=True)
        facts = _facts(path)
        if recipe_from(facts["recipe"]) != wanted.recipe:
            raise FaustnetError(f"{path} was made with another recipe: move it away, or choose another --out.")
        return save(figure2(facts), out / "figures", "figure2")


def embedded(wanted: Wanted, folder: Path, device: torch.device, data: DataSet, progress: Progress) -> dict[str, Any]:
    """Train a run and look at where it puts test images: scores of all of them, a map of as many of each class."""
    run = trained(wanted.recipe, folder, device, data, progress)
    labels = data.test.labels.numpy()
    chosen = balanced_sample(labels, POINTS)
    layers = layer_embeddings(run.model(device), data.test)
    return {
        "class_names": list(data.class_names),
        "labels": labels[chosen].tolist(),
        "layers": [
            {"fisher": round(fisher_score(layer, labels), 4), "points": np.round(tsne(layer[chosen]), 1).tolist()}
            for layer in layers
        ],
        "test_accuracy": run.metrics["test_accuracy"],
        "recipe": as_table(run.recipe),
        "environment": run.environment,
    }


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        counts = {len(layer["points"]) for layer in facts["layers"] if layer["fisher"] >= 0}
        if counts == {len(facts["labels"])} and max(facts["labels"]) < len(facts["class_names"]) and facts["recipe"]:
            return facts
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise FaustnetError(f"{path} is damaged: delete it, and it will be made again.")


def draw_figure3(
    out: Path, dataset: str, network: str, seeds: int, workers: Workers, say: Callable[[object, str], None]
) -> list[Path]:
    """Accuracy by epoch of the table's runs by the paper's recipes, for each layer alone and for the first ones together."""
    runs = all_wanted(["paper"], list(COMPARED), [dataset], [network], seeds)
    with drawing():
        results = results_of(runs, out, workers, Lines(out, say))
        drawn = [
            {"title": title, "curves": curves([result for result in results if result["method"] == method])}
            for method, title in COMPARED.items()
        ]
        return save(figure3({"panels": drawn}), out / "figures", "figure3")


def curves(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over runs that differ in their seed, in %, by epoch."""
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
