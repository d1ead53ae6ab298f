"""docs/new-classes.md, from the files in a folder of results."""

import json
from pathlib import Path
from typing import Any

from faustnet.report.classes import ADDED_COLUMNS, REJECTION_COLUMNS, added_rows, rejection_rows
from faustnet.report.comparisons import markdown
from faustnet.report.paper import dataset_rank, dataset_title
from faustnet.report.table1 import ours, over_seeds, signed
from faustnet.reproduce.new_classes import DRAWS, EPOCHS
from faustnet.reproduce.rejection import ACCEPT
from faustnet.reproduce.results import method_titles

PAGE = """# New classes, and images of none

A class is predicted by the distance to what stands for it, its references. So a class can be added without training, and
an image that is far from all of them can be told to be of none.

## A class from a few examples

Train on nine digits, then show ten images of the tenth:

```python
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

digits = load_digits()
pixels, labels = (digits.images * 15.9).astype(np.uint8), digits.target
known, train = labels != 9, np.arange(len(labels)) % 5 > 0
np.savez(
    "nine.npz",
    x_train=pixels[known & train],
    y_train=labels[known & train],
    x_test=pixels[known & ~train],
    y_test=labels[known & ~train],
)
Path("nines").mkdir(exist_ok=True)
for number, image in enumerate(pixels[~known & train][:10]):
    Image.fromarray(image).save(f"nines/{{number}}.png")
```

```sh
faustnet train --dataset nine.npz --widths 200,200 --epochs 10 --batch-size 64 \\
    --set training.validation=0.1 --out runs/nine
faustnet add-class runs/nine 9 nines --out ten.safetensors    # files, or folders of them
faustnet predict ten.safetensors nines/0.png                  # a model file serves as a run does
```

The same from Python:

```python
import faustnet

model = faustnet.load("runs/nine").add_class("9", pixels[~known & train][:10])  # the old model stays as it is
nines = model.predict(pixels[~known & ~train])
print(sum(prediction.class_name == "9" for prediction in nines), "of", len(nines))
```

All methods of FAUST can. In every layer the mean of the examples' embeddings becomes the class's reference; nothing else
changes, so the scores of the other classes stay what they were. The new model takes the place of the run's, or with
`--out FILE` a file of its own. The run's metrics stay those of its training, which `faustnet report` and `faustnet votes`
are about: for them keep a copy of the run as it was.

<!-- not run: takes long -->
```sh
faustnet reproduce new-classes --out results
```

trains on all classes but one, for each class in turn, for {epochs} epochs with three layers of 500 units, and adds that
class from training images, {draws} draws of each number. {reading}

Accuracy in % of the test images, means over the draws and over the classes that were left out; ± is the standard deviation
over those classes, and *its least* is that of the class that fares worst. *mean*: the mean embedding. *k-means*: the
examples in the middle of as many clusters as a class has references. *examples*: as many of the examples themselves. With
several references of a class the mean repeats. It finds most of the new class's images and is what is used; from Python
`add_class(…, kind="k-means")` keeps more of the old ones. Every run's file is in `results/new-classes/`.

{added}

The old classes were trained to be near their references, the new one was not: of a new class's images some are nearer to an
old reference, and the tighter a training draws its classes together the more of them are. On the validation images of a few
classes that was so with the contrastive term at unit length, and with the recipe that was tuned on Fashion-MNIST, which has
more label smoothing and a smaller scale: so the recipe here is the one that was tuned on MNIST, for both data sets. There
cosines in place of distances found fewer of the new class and lost fewer of the old. A shift of the new class's
distance by what its examples would need, each left out in turn, was a small gain on MNIST and a large loss on Fashion-MNIST.
Neither is applied. One correction is: learned prototypes may be far shorter than embeddings, so for `faust-prototype` the
mean is brought to their length.

## Images of no known class

How far from every class must an image be to be of none? That is found out on images of known classes that were not
trained on: the threshold is where a share of them, 5 % unless `--accept` says otherwise, would be rejected.

```sh
faustnet calibrate runs/nine                       # on the images that training.validation held out, or --data
faustnet predict runs/nine nines/0.png --reject    # the class, or unknown
```

```python
nine = faustnet.load("runs/nine").calibrate(pixels[known & ~train], accept=0.95)
noise = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
print([prediction.class_name for prediction in nine.predict(noise, reject=True)])  # "unknown" where it is rejected
```

The threshold is kept in the model file. It is of the distance to the nearest class in the first layer: later layers are
trained to see the differences between the classes and nothing else. A model that learns a class later is to be calibrated
anew, and then rejects less: the mean of a few embeddings lies nearer to strange images than a class that was trained.

<!-- not run: takes long -->
```sh
faustnet reproduce rejection --out results
```

trains on one data set and measures how well its test images are told from those of another, which are scaled in the same
way: the area under the ROC curve in %, for FAUST and for its twin, the same network trained by backprop for as many epochs.
{reading_rejection} The last two columns are for a threshold that accepts {accept:.0%} of the validation images; {seeds}.
FAUST's first score is the one that is used, and was chosen on validation images beside training images of the other set.
Every run's file is in `results/rejection/`.

{rejection}
"""


def page(folder: Path) -> str | None:
    """None where either study has no results."""
    added, rejection = (_read(folder / f"{name}.json") for name in ("new-classes", "rejection"))
    if not added or not rejection:
        return None
    return PAGE.format(
        epochs=EPOCHS,
        draws=DRAWS,
        accept=ACCEPT,
        reading=reading(added),
        added=markdown(ADDED_COLUMNS, added_rows(added)),
        reading_rejection=reading_rejection(rejection),
        seeds=over_seeds(rejection),
        rejection=markdown(REJECTION_COLUMNS, rejection_rows(rejection, method_titles())),
    )


def reading(cells: list[dict[str, Any]]) -> str:
    """What ten examples give, in words."""
    found = [
        f"of {dataset_title(cell['dataset'])} {ours(cell)}% of the new class are found, and the old classes change by "
        f"{signed(cell['old'] - cell['before'])} points"
        for cell in _in_order(cells)
        if (cell["references"], cell["kind"], cell["examples"]) == (1, "mean", 10)
    ]
    return f"From ten images, with one reference of each class: {'; '.join(found)}."


def reading_rejection(cells: list[dict[str, Any]]) -> str:
    """What the scores give that are used most, in words."""

    def has(method: str, score: str) -> str:
        mine = [cell for cell in _in_order(cells) if (cell["method"], cell["score"]) == (method, score)]
        return " and ".join(f"{ours(cell)} on {dataset_title(cell['dataset'])}" for cell in mine)

    faust, backprop = has("faust-representative", "first layer"), has("backprop", "softmax")
    return f"FAUST has {faust}; backprop's largest probability has {backprop}."


def _in_order(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(cells, key=lambda cell: dataset_rank(cell["dataset"]))


def _read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
