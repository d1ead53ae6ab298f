"""Train an own model in several processes, the ranks, each with some of the layers.

torchrun --nproc-per-node 2 examples/ranks.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import faustnet

torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)

with faustnet.join_ranks():  # does nothing without torchrun; only rank 0 prints
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64)) for _ in range(4)]
    network = faustnet.Network(blocks, embedding=32, example=x[:1])
    method = faustnet.FaustRepresentative(network, classes=10, representatives=3)
    trainer = faustnet.Trainer(
        method,
        train=(x[:1397], y[:1397]),
        test=(x[1397:], y[1397:]),
        optimiser=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
        parallel="layers",  # or "data", or a grid such as "2x2"
    )
    trainer.fit(epochs=5)
    print(f"accuracy {trainer.evaluate().accuracy:.2%}")  # every rank has the whole trained network
