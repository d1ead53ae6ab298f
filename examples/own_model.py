"""Train a small vision transformer of your own, each block with a loss of its own.

python examples/own_model.py
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

import faustnet


class Patches(nn.Module):
    """Cut images into 16 patches of 2×2 pixels, and map each to a token. (R, 1, 8, 8) → (R, 16, width)"""

    def __init__(self, width: int):
        super().__init__()
        self.map = nn.Conv2d(1, width, 2, stride=2)
        self.positions = nn.Parameter(0.5 * torch.randn(16, width))

    def forward(self, images: Tensor) -> Tensor:
        return self.map(images).flatten(2).mT + self.positions


torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
images = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)
x_train, x_test, y_train, y_test = train_test_split(images, torch.tensor(labels), random_state=0)

blocks = [Patches(64), *(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(3))]
network = faustnet.Network(blocks, embedding=64, example=images[:2])
method = faustnet.FaustRepresentative(network, classes=10, representatives=3)
trainer = faustnet.Trainer(
    method,
    train=(x_train, y_train),
    test=(x_test, y_test),
    optimiser=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
    scheduler=lambda optimiser: OneCycleLR(optimiser, 3e-3, epochs=25, steps_per_epoch=42, cycle_momentum=False),
    scheduler_every="batch",
    batch_size=32,
)
trainer.fit(epochs=25)
print(trainer.evaluate().accuracy, trainer.evaluate().layer_accuracy)  # all layers together; each layer alone
