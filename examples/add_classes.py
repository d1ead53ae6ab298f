"""Few-shot learning: train on nine classes, then add the tenth from a few images, without training.

python examples/add_classes.py
"""

import numpy as np
from sklearn.datasets import load_digits

import faustnet

# Train on the digits 0 to 8. The network never sees a 9.

digits = load_digits()
images, labels = (digits.images * 15.9).astype(np.uint8), digits.target  # (n, 8, 8)
train, known = np.arange(len(labels)) % 5 > 0, labels < 9
run = faustnet.train(
    {"network": {"widths": [200, 200]}, "training": {"epochs": 10, "batch_size": 64}},
    "runs/nine",
    data=(images[known & train], labels[known & train]),
    test=(images[known & ~train], labels[known & ~train]),
    device="cpu",
)
model = run.model()

# Add the 9. In every layer, the mean embedding of the examples becomes the reference of the new class; the weights stay as
# they are. More examples make a better reference.

nines = images[train & ~known]
for count in (1, 10, 50):
    larger = model.add_class("9", nines[:count])
    predicted = np.array([int(prediction.class_name) for prediction in larger.predict(images[~train])])
    right = predicted == labels[~train]
    old, new = right[known[~train]], right[~known[~train]]
    print(f"{count} examples: {new.mean():.1%} of the nines are recognised, and {old.mean():.1%} of the other digits")

# Images far from every reference can be rejected, too: here, random noise. The threshold is chosen on images that were not
# used for training.

careful = model.calibrate(images[known & ~train], accept=0.95)
noise = np.random.default_rng(0).integers(0, 256, (100, 8, 8), dtype=np.uint8)
rejected = sum(prediction.class_name == "unknown" for prediction in careful.predict(noise, reject=True))
print(f"{rejected} of 100 images of noise are rejected")
