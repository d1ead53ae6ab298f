"""Compare the method predsim with a second implementation of the recipe that its authors published for an MLP on CIFAR-10.

    python benchmarks/predsim.py results/predsim.json --epochs 100 --seeds 3 --jobs 6 --seconds 400

The second implementation is the module below: plain PyTorch with the published settings (Nøkland and Eidnes 2019: three
layers of 3,000 units, batch norm, leaky ReLU, dropout 0.1, Adam, learning rate 0.0005 divided by 4 four times, batch size
128, random crops and flips). It uses nothing of this package except the loading of images. The first is the recipe
benchmarks/predsim.toml. Both have the same number of epochs. The file is written after each run; run the command again to
continue.
"""

import argparse
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from faustnet.data import DataSet
from faustnet.report.table1 import ours
from faustnet.report.tables import markdown
from faustnet.reproduce.best import difference
from faustnet.reproduce.results import grouped, percent
from faustnet.reproduce.worker import cached_data
from faustnet.runs.recipes import Recipe, changed, read_recipe, recipe_from
from faustnet.runs.session import set_up
from faustnet.system.devices import choose_device
from faustnet.system.environment import environment
from trials import add_row, read, results_of

RECIPE = Path(__file__).with_suffix(".toml")
SIMILARITY = 0.99  # weight of the similarity matching loss
MILESTONES, FACTOR = (0.5, 0.75, 0.875, 0.9375), 0.25  # of the learning rate
CODES = {"package": "method predsim of this package", "plain": "plain PyTorch with the published settings"}

SECTION = """### predsim's published recipe

<!-- not run: takes long -->
```sh
python benchmarks/predsim.py results/predsim.json
```

The program trains the MLP that the authors of predsim describe for CIFAR-10 (3×3000, random crops and flips) twice: by the
method of this package, and by a second implementation in plain PyTorch with the authors' learning-rate schedule. Test
accuracy in %; ± after the difference is its 95 % interval, and ○ marks one that includes zero. The authors report 69.07
after 400 epochs.

{table}

"""


class LocalLayer(nn.Module):
    """Linear, batch norm and leaky ReLU, with a linear map for each of its two losses."""

    def __init__(self, inputs: int, width: int, classes: int):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.LeakyReLU(0.01))
        self.features, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)
        nn.init.zeros_(self.classifier.weight)

    def loss(self, activation: Tensor, y: Tensor, classes: int) -> Tensor:
        target = similarities(functional.one_hot(y, classes).float())
        matching = functional.mse_loss(similarities(self.features(activation)), target)
        return (1 - SIMILARITY) * functional.cross_entropy(self.classifier(activation), y) + SIMILARITY * matching


def similarities(rows: Tensor) -> Tensor:
    """Return the cosine similarities of centred rows. (B, n) → (B, B)"""
    unit = functional.normalize(rows - rows.mean(dim=1, keepdim=True), dim=1)
    return unit @ unit.T


class PlainNetwork(nn.Module):
    """Layers with local losses, and a classifier of the last activation."""

    def __init__(self, inputs: int, widths: tuple[int, ...], classes: int, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList(LocalLayer(*sizes, classes) for sizes in pairwise([inputs, *widths]))
        self.output = nn.Linear(widths[-1], classes)
        self.classes, self.dropout = classes, nn.Dropout(dropout)

    def forward(self, rows: Tensor) -> Tensor:
        for layer in self.layers:
            rows = self.dropout(layer.body(rows))
        return self.output(rows)

    def losses(self, rows: Tensor, y: Tensor) -> Tensor:
        """Return the sum of all losses. No gradient crosses a layer boundary."""
        total = rows.new_zeros(())
        for layer in self.layers:
            activation = layer.body(rows)
            total = total + layer.loss(activation, y, self.classes)
            rows = self.dropout(activation.detach())
        return total + functional.cross_entropy(self.output(rows), y)


def train_plain(recipe: Recipe, data: DataSet, device: torch.device) -> float:
    """Train with the published settings and return the test accuracy. The sizes are those of the recipe."""
    torch.manual_seed(recipe.seed)
    pixels = data.train.all_pixels.to(device).float()  # (N, c, h, w)
    labels, count = data.train.labels.to(device), len(data.train)
    mean, std = pixels.mean(dim=(0, 2, 3)).view(-1, 1, 1), pixels.std(dim=(0, 2, 3)).view(-1, 1, 1)
    network = PlainNetwork(pixels[0].numel(), recipe.network.widths, len(data.class_names), recipe.network.dropout).to(
        device
    )
    adam = torch.optim.Adam(network.parameters(), lr=recipe.optimiser.learning_rate)
    epochs, batch = recipe.training.epochs, recipe.training.batch_size
    steps = torch.optim.lr_scheduler.MultiStepLR(adam, [round(share * epochs) for share in MILESTONES], FACTOR)
    for _ in range(epochs):
        for chosen in torch.randperm(count, device=device).split(batch):
            if len(chosen) < 2:
                continue  # batch norm needs two
            x = (crop_and_flip(pixels[chosen], recipe.data.crop, flip=recipe.data.flip) - mean) / std
            adam.zero_grad()
            network.losses(x.flatten(1), labels[chosen]).backward()
            adam.step()
        steps.step()
    network.eval()
    with torch.no_grad():
        test = (data.test.all_pixels.to(device).float() - mean) / std
        found = torch.cat([network(part.flatten(1)).argmax(dim=1) for part in test.split(1000)])
    return (found == data.test.labels.to(device)).float().mean().item()


def crop_and_flip(images: Tensor, most: int, *, flip: bool) -> Tensor:
    """Shift each image by up to `most` pixels, with black pixels at the edges, and mirror half of them if `flip`."""
    count, _, height, width = images.shape
    device = images.device
    padded = functional.pad(images, (most,) * 4)
    down, right = (torch.randint(0, 2 * most + 1, (count, 1), device=device) for _ in range(2))
    columns = torch.arange(width, device=device).expand(count, width)
    mirrored = torch.rand(count, 1, device=device) < (0.5 if flip else 0)
    columns = torch.where(mirrored, width - 1 - columns, columns) + right
    lines = torch.arange(height, device=device) + down
    first = torch.arange(count, device=device).view(-1, 1, 1)
    return padded.permute(0, 2, 3, 1)[first, lines.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def train_package(recipe: Recipe, data: DataSet, device: torch.device) -> float:
    """Train the method predsim of this package and return the test accuracy."""
    _, trainer = set_up(recipe, data, device)
    trainer.run(lambda: None, lambda epoch: None)
    return trainer.history[-1].accuracy


def measure(code: str, recipe: Recipe, device: str) -> dict[str, Any]:
    """Return the result of one run."""
    begin, where = time.perf_counter(), torch.device(device)
    train = {"package": train_package, "plain": train_plain}[code]
    accuracy = train(recipe, cached_data(recipe.dataset, None), where)
    return {
        "code": code,
        "dataset": recipe.dataset,
        "epochs": recipe.training.epochs,
        "seed": recipe.seed,
        "test_accuracy": accuracy,
        "seconds": round(time.perf_counter() - begin, 1),
        "environment": environment(where, recipe.seed),
    }


def run(path: Path, base: Recipe, seeds: int, jobs: int, device: str, seconds: float) -> None:
    """Train the missing runs. None is started after the given seconds."""
    done = {(row["code"], row["dataset"], row["epochs"], row["seed"]) for row in read(path)}
    missing = [
        (code, changed(base, {"seed": seed}), device)
        for seed in range(seeds)
        for code in CODES
        if (code, base.dataset, base.training.epochs, seed) not in done
    ]
    for _, row in results_of(measure, missing, [1] * len(missing), jobs, seconds):
        add_row(path, row, ("code", "dataset", "epochs", "seed"))
        print(f"{row['code']:8} seed {row['seed']} {row['test_accuracy']:.2%} {row['seconds']} s", flush=True)


def section(rows: list[dict[str, Any]]) -> str:
    """Return the section of RESULTS.md about both implementations, or nothing without rows."""
    lines = []
    for about, found in grouped(rows, "epochs"):
        cells = {one["code"]: {**percent(mine), "seeds": len(mine)} for one, mine in grouped(found, "code")}
        mine, plain = (cells.get(code) for code in CODES)
        both = ["–" if cell is None else ours(cell) for cell in (mine, plain)]
        lines.append([str(about["epochs"]), *both, difference(mine, plain) if mine and plain else "–"])
    return SECTION.format(table=markdown(["epochs", *CODES.values(), "difference"], lines)) if rows else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no new run after this time")
    given = parser.parse_args()
    changes = {"training.epochs": given.epochs, "training.evaluate_every": given.epochs}
    base = changed(recipe_from(read_recipe(RECIPE)), changes)
    run(given.file, base, given.seeds, given.jobs, choose_device(given.device).type, given.seconds)


if __name__ == "__main__":
    main()
