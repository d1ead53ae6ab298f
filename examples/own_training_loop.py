"""Train an own network in an own training loop: `prepare`, `train_step` and `make_ready` are all that a loop needs.

python examples/own_training_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import faustnet

torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
train, test = random_split(dataset, [1397, 400])
loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)

model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64)) for _ in range(3)))
network = faustnet.Network(model, embedding=32, example=dataset.tensors[0][:2])
method = faustnet.FaustRepresentative(network, classes=10, representatives=3)

method.prepare(train)  # chooses the representatives
optimisers = method.optimisers(lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))  # one for each layer
schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9) for optimiser in optimisers]
for epoch in range(10):
    total = torch.zeros(len(network))
    for x, y in loader:
        total += method.train_step(x, y, optimisers)  # the loss of each layer
    for scheduler in schedulers:
        scheduler.step()
    print(f"epoch {epoch + 1}  losses {(total / len(loader)).tolist()}")
method.make_ready(train)  # computes the references

x, y = dataset[test.indices]
for layers in (None, [1]):  # all layers together, and the first one alone
    print(f"accuracy {(method.predict(x, layers) == y).float().mean():.2%}")
method.save("own.safetensors")
method.load("own.safetensors")
