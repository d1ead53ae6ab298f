"""Plot the embeddings of test images in every layer, from an own model and its `embed`.

pip install 'faustnet[figures]'
python examples/plot_embeddings.py
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE
from torch import nn

import faustnet

# Train three layers on digits, each with its own loss.

torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
blocks = [nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.LayerNorm(100))]
blocks += [nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.LayerNorm(100)) for _ in range(2)]
network = faustnet.Network(blocks, embedding=32, example=x[:1])
method = faustnet.FaustRepresentative(network, classes=10)
trainer = faustnet.Trainer(method, train=(x[:1400], y[:1400]), optimiser=lambda p: torch.optim.AdamW(p, lr=2e-3))
trainer.fit(epochs=5, verbose=False)

# `embed` returns the embeddings of the layers that are asked for, here of one layer, (n, 32). t-SNE maps them to the plane.
# Every layer separates the classes, although no layer receives a gradient from a later one.

figure, panels = plt.subplots(1, len(network), figsize=(9, 3), layout="constrained")
for number, panel in enumerate(panels, start=1):
    embeddings = method.embed(x[1400:1600], layers=[number])
    points = TSNE(init="pca", random_state=0).fit_transform(embeddings.numpy())
    dots = panel.scatter(*points.T, c=y[1400:1600], cmap="tab10", s=8)
    panel.set(title=f"layer {number}", xticks=[], yticks=[])
figure.legend(*dots.legend_elements(), loc="outside right center", frameon=False)
figure.savefig("embeddings.svg")
print("wrote embeddings.svg")
