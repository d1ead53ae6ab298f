"""Networks of modules that know nothing of the package, and small trainings of them in double precision.

python own_models.py FOLDER trains all of them on the ranks of the environment, and writes what rank 1 has at the end.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import faustnet

CLASSES, BATCH, SAMPLES = 4, 16, 72  # half of a batch is left over


class Patches(nn.Module):
    """(R, 1, 8, 8) → (R, 16, width)"""

    def __init__(self, width: int):
        super().__init__()
        self.map = nn.Conv2d(1, width, 2, stride=2)
        self.positions = nn.Parameter(0.5 * torch.randn(16, width))

    def forward(self, images: Tensor) -> Tensor:
        return self.map(images).flatten(2).mT + self.positions


class Recurrent(nn.Module):
    """Takes the rows of an image, or the sequence and the last state of another; passes on both."""

    def __init__(self, inputs: int):
        super().__init__()
        self.gru = nn.GRU(inputs, 12, batch_first=True)

    def forward(self, given: Any) -> dict[str, Tensor]:
        if isinstance(given, Tensor):
            sequence, state = self.gru(given.squeeze(1))
        else:
            sequence, state = self.gru(given["sequence"], given["state"].transpose(0, 1).contiguous())
        return {"sequence": sequence, "state": state.transpose(0, 1)}  # rows of the batch first


class FrozenNorm(nn.Module):
    """A pretrained body: it stays in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.norm.running_mean.fill_(0.3)
        self.linear = nn.Linear(64, 12)
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> "FrozenNorm":
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.linear(self.norm(images).flatten(1)))


class Masked(nn.Module):
    """Attention among the tokens that are not padding; passes on the mask."""

    def __init__(self, first: bool = False):
        super().__init__()
        self.words = nn.Linear(8, 12) if first else None
        self.block = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, given: Any) -> tuple[Tensor, Tensor]:
        if self.words is not None:
            tokens, padding = self.words(given.squeeze(1)), torch.arange(8).expand(len(given), 8) >= 6
        else:
            tokens, padding = given
        return self.block(tokens, src_key_padding_mask=padding), padding


def transformer() -> list[nn.Module]:
    return [Patches(16), *(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2))]


def convolutions() -> list[nn.Module]:
    sizes = [(1, 6, 1), (6, 6, 2), (6, 8, 2)]
    return [nn.Sequential(nn.Conv2d(a, b, 3, s, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b, s in sizes]


def recurrent() -> list[nn.Module]:
    return [Recurrent(8), Recurrent(12), Recurrent(12)]


def frozen() -> list[nn.Module]:
    half = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
    half[0].requires_grad_(False)
    return [FrozenNorm(), half, nn.Sequential(nn.Linear(12, 12), nn.ReLU())]


def masked() -> list[nn.Module]:
    return [Masked(first=True), Masked(), Masked()]


def dense() -> list[nn.Module]:
    return [nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()), nn.Sequential(nn.Linear(16, 16), nn.ReLU())]


BLOCKS: dict[str, Callable[[], list[nn.Module]]] = {
    "transformer": transformer,
    "batch norm": convolutions,
    "gru": recurrent,
    "frozen body": frozen,
    "mask": masked,
}


def data() -> tuple[Tensor, Tensor]:
    """Noisy images of four classes, the same each time. (n, 1, 8, 8), (n,)"""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(SAMPLES) % CLASSES
    centres = torch.randn(CLASSES, 1, 8, 8, generator=generator, dtype=torch.float64)
    return centres[labels] + torch.randn(SAMPLES, 1, 8, 8, generator=generator, dtype=torch.float64), labels


def made(
    blocks: Callable[[], list[nn.Module]] = dense, kind: Any = faustnet.FaustRepresentative, **options: Any
) -> faustnet.Method:
    """A method on a network of such blocks, with the same weights each time."""
    torch.manual_seed(0)
    network = faustnet.Network([block.double() for block in blocks()], embedding=6, example=data()[0][:2])
    return kind(network, CLASSES, **options).double()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


def groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Which has no faster form in the package."""
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    return torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=3e-3)


def trained(method: faustnet.Method, epochs: int = 3, **options: Any) -> faustnet.Trainer:
    given = {"train": data(), "optimiser": adamw, "batch_size": BATCH, "schedule": "sequential", **options}
    return faustnet.Trainer(method, **given).fit(epochs, verbose=False)


def main(folder: Path) -> None:
    rank = os.environ["RANK"]
    with faustnet.join_ranks():
        for parallel in ("data", "layers"):
            for name, blocks in BLOCKS.items():
                method = made(blocks)
                trained(method, parallel=parallel, schedule="auto")
                if rank == "1":
                    save_file(method.state_dict(), folder / f"{name}-{parallel}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
