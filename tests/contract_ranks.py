"""Trains a user's classes on two ranks: python contract_ranks.py FOLDER writes what the first rank has at the end, as
tensors, or the sentence with which the training was refused."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from faustnet.errors import FaustnetError
from faustnet.training.distributed import RankGrid, grid_size
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
)

CASES: dict[str, tuple[Any, ...]] = {  # what `own_trainer` is given, by name
    "batch norm": ((OwnLayer, NormLayer, NormLayer),),
    "batch norm of pictures": ((PictureNormLayer, PictureNormLayer),),
    "mean of all batches": ((partial(NormLayer, momentum=None),) * 2,),
    "several tensors": ((CarryingLayer,) * 4,),
    "temperature": ((TemperatureLayer,) * 3, "sequential", TemperatureMethod),
    "page": (
        (partial(scaled_layer, width=WIDTH, embedding=5, classes=CLASSES),) * 3,
        "sequential",
        LearnedScale,
    ),
    "own parameter": ((OwnLayer,) * 3, "sequential", OwnsParameter),
}


def train_all(folder: Path) -> None:
    """What one of the ranks does."""
    for name in ("1x2", "2x1"):
        arrangement = RankGrid.create(*grid_size(name, 2), torch.device("cpu"))
        for case, about in CASES.items():
            try:
                found = outcome(own_trainer(*about, communicator=arrangement))
            except FaustnetError as error:
                (folder / f"{case}-{name}-{arrangement.rank}.txt").write_text(str(error))
                continue
            if arrangement.is_first:
                save_file(found, folder / f"{case}-{name}.safetensors")


if __name__ == "__main__":
    on_ranks(2, train_all, Path(sys.argv[1]))
