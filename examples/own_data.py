"""Train on data of several kinds: arrays, a pandas table, a data set, a data loader and a stream.

python examples/own_data.py
"""

import importlib.util
from collections.abc import Iterator

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import faustnet

pixels, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(pixels / 16, labels, random_state=0)  # numpy arrays


class Digits(Dataset):
    """A map-style data set. Items are read when they are used, so they may be files or augmented at random."""

    targets = y_train.tolist()  # optional: labels that can be read without the items

    def __len__(self) -> int:
        return len(x_train)

    def __getitem__(self, position: int) -> tuple[np.ndarray, int]:
        return x_train[position], int(y_train[position])


class Stream(IterableDataset):
    """A stream: its length need not be known, and it may be larger than the memory."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for position in np.random.default_rng().permutation(len(x_train)):
            yield torch.tensor(x_train[position]), int(y_train[position])


kinds = {
    "numpy arrays": (x_train, y_train),
    "torch tensors": (torch.tensor(x_train), torch.tensor(y_train)),
    "a data set": Digits(),
    "a data loader": DataLoader(Digits(), batch_size=32, shuffle=True, num_workers=1),
    "a stream": Stream(),
}
if importlib.util.find_spec("pandas"):
    import pandas as pd

    kinds["a pandas table"] = pd.DataFrame(x_train), pd.Series(y_train)

for name, train in kinds.items():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Sequential(nn.Linear(64, 64), nn.ReLU())]
    network = faustnet.Network(blocks, embedding=32, example=torch.zeros(1, 64))  # samples get its type, float32
    method = faustnet.FaustRepresentative(network, classes=10, representatives=3)
    trainer = faustnet.Trainer(
        method,
        train=train,
        optimiser=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
        batch_size=32,
    )
    trainer.fit(epochs=5, verbose=False)
    print(f"{name}: accuracy {trainer.evaluate((x_test, y_test)).accuracy:.2%}")
