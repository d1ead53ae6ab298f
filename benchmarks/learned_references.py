"""Choose how far `add-images` moves a learned reference towards the mean embedding of the added images.

    python benchmarks/learned_references.py results/learned-references.json      ten minutes

Models of MNIST and Fashion-MNIST are trained on 10,000 training images for 5 epochs. Then each class in turn gets 1, 10 or
100 further images. They are training images that the model has not seen: like the first ones ("same"), or rotated by 20
degrees ("rotated"). Measured is how much the accuracy changes on 10,000 other training images. If the added images are
rotated, so is every second of these images of the class. Test images are not used. The share of the mean embedding with the
largest mean change is chosen.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from faustnet.data import DataSet, Images, load_data
from faustnet.methods import Faust
from faustnet.nn.references import reference_scores
from faustnet.report.tables import print_table
from faustnet.reproduce.jobs import Table1Job
from faustnet.runs.model import Model
from faustnet.runs.progress import ConsoleProgress
from faustnet.runs.recipes import changed
from faustnet.runs.session import train
from faustnet.system.environment import environment
from faustnet.training.evaluation import all_embeddings

SHARES = (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3)  # of the mean embedding of the added images in the new reference
DATASETS, METHODS, SEEDS = ("mnist", "fashion-mnist"), ("faust-representative", "faust-prototype"), 2
IMAGES, EPOCHS, DRAWS, DEGREES = 10_000, 5, 5, 20
ADDED, KINDS = (1, 10, 100), ("same", "rotated")


def parts(data: DataSet) -> list[Images]:
    """Return three parts of the training images: to train on, to add, and to validate on."""
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    pixels, labels = data.train.all_pixels, data.train.labels
    return [Images(pixels[own], labels[own]) for own in order.split(IMAGES)[:3]]


def rotated(pixels: Tensor) -> Tensor:
    """(n, 1, h, w) → the same shape"""
    turned = [np.asarray(Image.fromarray(one[0].numpy()).rotate(DEGREES, Image.Resampling.BILINEAR)) for one in pixels]
    return torch.from_numpy(np.stack(turned)).unsqueeze(1)


def make_model(dataset: str, method: str, seed: int, data: DataSet, folder: Path) -> Model:
    tuned = Table1Job("tuned", "faust-representative", "mnist", "3x500", seed).recipe
    settings = {"dataset": dataset, "training.epochs": EPOCHS, "training.evaluate_every": EPOCHS, "training.validation": 0}
    recipe = changed(tuned, settings)
    if method != "faust-representative":
        recipe = changed(recipe, {"method": method})
    return train(recipe, folder, device=torch.device("cpu"), progress=ConsoleProgress(), data=data).model()


class Validation:
    """Validation images of a model, whose scores are computed once."""

    def __init__(self, model: Model, method: Faust, pixels: Tensor, labels: Tensor):
        self.method, self.labels = method, labels
        self.embedded = all_embeddings(method, model.source(model.images(pixels)))
        layers = zip(self.embedded, method.references, strict=True)
        self.scores = torch.stack([reference_scores(own, layer, method.scale) for own, layer in layers])

    def accuracy(self, number: int, references: Sequence[Tensor] | None, rows: Tensor) -> float:
        """Return the accuracy on some rows, with other references of one class. (K, e_i) each"""
        total = self.scores.sum(dim=0)[rows]
        if references is not None:
            layers = zip(self.embedded, references, strict=True)
            own = [reference_scores(rows_[rows], one.unsqueeze(0), self.method.scale)[:, 0] for rows_, one in layers]
            total[:, number] = torch.stack(own).sum(dim=0)
        return (total.argmax(dim=1) == self.labels[rows]).double().mean().item() * 100


@torch.no_grad()
def changes(model: Model, pool: Images, held_out: Images) -> list[dict[str, Any]]:
    """Return the mean change of the accuracy, in points, for each kind and number of added images and each share."""
    method = model.method
    assert isinstance(method, Faust)
    pixels = torch.cat([held_out.all_pixels, rotated(held_out.all_pixels)])
    validation = Validation(model, method, pixels, held_out.labels.repeat(2))
    size = len(held_out.labels)
    every, alternate = torch.arange(size), torch.arange(size) % 2 > 0
    found: dict[tuple[str, int, float], list[float]] = {}
    for number, kind in product(range(len(model.class_names)), KINDS):
        shown = pool.all_pixels[pool.labels == number]
        embedded = all_embeddings(method, model.source(model.images(rotated(shown) if kind == "rotated" else shown)))
        turned = (kind == "rotated") & alternate & (held_out.labels == number)
        rows = every + size * turned
        before = validation.accuracy(number, None, rows)
        for added, draw in product(ADDED, range(DRAWS)):
            drawn = torch.randperm(len(shown), generator=torch.Generator().manual_seed(draw))[:added]
            for share in SHARES:
                after = validation.accuracy(number, moved(method, number, [own[drawn] for own in embedded], share), rows)
                found.setdefault((kind, added, share), []).append(after - before)
    return [
        {"images": kind, "added": added, "share": share, "change": statistics.mean(values), "worst": min(values)}
        for (kind, added, share), values in found.items()
    ]


def moved(method: Faust, number: int, embedded: Sequence[Tensor], share: float) -> list[Tensor]:
    """Return the references of a class after `add-images`, with this share of the added images. (K, e_i)"""
    pairs = zip(method.references, embedded, strict=True)
    blended = [method.blended(layer[number], own.mean(dim=0, keepdim=True), share) for layer, own in pairs]
    found = method.updated_class(number, method.count, method.network.example[:0], blended)
    return [found[f"references.layer_{i}"][0] for i in range(len(blended))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file to write")
    out = parser.parse_args().out
    cells = []
    for dataset, method, seed in product(DATASETS, METHODS, range(SEEDS)):
        data = load_data(dataset)
        known, pool, held_out = parts(data)
        small = DataSet(data.name, data.class_names, known, held_out)
        with tempfile.TemporaryDirectory() as folder:
            model = make_model(dataset, method, seed, small, Path(folder) / "run")
        about = {"dataset": dataset, "method": method, "seed": seed}
        cells += [{**about, **cell} for cell in changes(model, pool, held_out)]
    means = {share: statistics.mean(cell["change"] for cell in cells if cell["share"] == share) for share in SHARES}
    chosen = max(means, key=lambda share: means[share])
    result = {
        "chosen": chosen,
        "means": [{"share": share, "change": mean} for share, mean in means.items()],
        "cells": cells,
        "environment": environment(torch.device("cpu"), 0),
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    columns = [f"{kind}, {added}" for kind, added in product(KINDS, ADDED)]
    rows = [
        (str(share), *(_mean(cells, share, *setting) for setting in product(KINDS, ADDED)), f"{means[share]:+.3f}")
        for share in SHARES
    ]
    print_table(("share", *columns, "mean"), rows, numbers=("share", *columns, "mean"))
    print(f"chosen: {chosen}")


def _mean(cells: list[dict[str, Any]], share: float, kind: str, added: int) -> str:
    mine = [cell for cell in cells if (cell["share"], cell["images"], cell["added"]) == (share, kind, added)]
    return f"{statistics.mean(cell['change'] for cell in mine):+.3f}"


if __name__ == "__main__":
    main()
