"""Values that help texts show.

They are repeated here because the modules that define them import torch, which takes seconds; a test compares both.
"""

from typing import Any

RECIPE: dict[str, Any] = {
    "dataset": "digits",
    "method": "faust-representative",
    "seed": 0,
    "network.widths": [500, 500, 500],
    "network.embedding": 256,
    "optimiser.learning_rate": 0.001,
    "training.epochs": 20,
    "training.batch_size": 256,
    "training.schedule": "auto",
}
RECIPES = (
    "cifar10", "digits", "mnist", "best/DATASET/NAME", "few-shot/DATASET/METHOD", "paper/METHOD", "tuned/DATASET/METHOD"
)  # fmt: skip
DATASETS = (
    "digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "cifar100-coarse", "omniglot", "omniglot-rotated",
    "omniglot-evaluation", "sst2", "trec",
)  # fmt: skip
LARGEST_IMAGE = 512  # pixels per side
KEPT_SIZE, COMMON_SIZE = 64, 32  # pixels per side
BENCH_PARTS = ("steps", "scaling", "prediction", "memory", "convolutions", "early-exit", "training")
