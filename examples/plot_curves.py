"""Plot the learning curves of a run: the loss and the accuracy of every layer by epoch.

pip install 'faustnet[figures]'
python examples/plot_curves.py
"""

import matplotlib.pyplot as plt

import faustnet

# Train a small network on digits. Every layer has a loss of its own, and every layer alone predicts a class.

recipe = {"dataset": "digits", "network": {"widths": [100, 100, 100]}, "training": {"epochs": 10, "batch_size": 64}}
run = faustnet.train(recipe, "runs/curves", device="cpu")

# `run.history` has one entry per epoch. The same numbers are in history.json and history.csv of the run folder.

epochs = [epoch["epoch"] for epoch in run.history]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for layer in range(3):
    left.plot(epochs, [epoch["losses"][layer] for epoch in run.history], label=f"layer {layer + 1}")
    right.plot(epochs, [100 * epoch["layer_accuracy"][layer] for epoch in run.history], label=f"layer {layer + 1}")
right.plot(epochs, [100 * epoch["accuracy"] for epoch in run.history], "k--", label="all layers")
left.set(xlabel="epoch", ylabel="loss", yscale="log")
right.set(xlabel="epoch", ylabel="test accuracy, %")
right.legend()
figure.savefig("curves.svg")
print("wrote curves.svg")
