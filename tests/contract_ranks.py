"""Trains a user's classes on two ranks: python contract_ranks.py FOLDER writes what the first rank has at the end, as
tensors, or the sentence with which the training was refused."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from faustnet.errors import FaustnetError
from faustnet.training.distributed import RankGrid, grid_size
from faustnet.training.loop import TrainingLoop
from page_method import LearnedScale, scaled_layer
from ranks import on_ranks, outcome
from user_classes import (
    CLASSES,
    WIDTH,
    CarryingLayer,
    NormLayer,
    OwnLayer,
    OwnsParameter,
    PictureNormLayer,
    TemperatureLayer,
    TemperatureMethod,
    own_trainer,
    text_trainer,
)

CASES: dict[str, Callable[..., TrainingLoop]] = {  # called with `communicator`
    "batch norm": partial(own_trainer, (OwnLayer, NormLayer, NormLayer)),
    "batch norm of pictures": partial(own_trainer, (PictureNormLayer, PictureNormLayer)),
    "mean of all batches": partial(own_trainer, (partial(NormLayer, momentum=None),) * 2),
    "several tensors": partial(own_trainer, (CarryingLayer,) * 4),
    "temperature": partial(own_trainer, (TemperatureLayer,) * 3, "sequential", TemperatureMethod),
    "page": partial(
        own_trainer,
        (partial(scaled_layer, width=WIDTH, embedding=5, classes=CLASSES),) * 3,
        "sequential",
        LearnedScale,
    ),
    "own parameter": partial(own_trainer, (OwnLayer,) * 3, "sequential", OwnsParameter),
    "texts": partial(text_trainer, "faust-representative"),
    "texts that are drawn": partial(text_trainer, "faust-tuplet"),
}


def train_all(folder: Path) -> None:
    """What one of the ranks does."""
    for name in ("1x2", "2x1"):
        arrangement = RankGrid.create(*grid_size(name, 2), torch.device("cpu"))
        for case, make in CASES.items():
            try:
                found = outcome(make(communicator=arrangement))
            except FaustnetError as error:
                (folder / f"{case}-{name}-{arrangement.rank}.txt").write_text(str(error))
                continue
            if arrangement.is_first:
                save_file(found, folder / f"{case}-{name}.safetensors")


if __name__ == "__main__":
    on_ranks(2, train_all, Path(sys.argv[1]))
