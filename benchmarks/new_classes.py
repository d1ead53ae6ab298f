"""Write docs/new-classes.md from the files in a folder of results."""

import json
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import growing
import many_page
from faustnet.report.paper import dataset_rank, dataset_title
from faustnet.report.table1 import ours, over_seeds, signed
from faustnet.report.tables import markdown
from faustnet.reproduce.new_classes import DRAWS, EPOCHS
from faustnet.reproduce.new_classes import TABLE as NEW_CLASSES
from faustnet.reproduce.rejection import ACCEPT
from faustnet.reproduce.rejection import EPOCHS as REJECTION_EPOCHS
from faustnet.reproduce.rejection import TABLE as REJECTION
from paragraphs import filled, listed

PAGE = """# New classes and rejection

FAUST predicts a class by the distance to its references. To add a class, it is enough to add a reference; no training
is needed. An image that is far from all references can be rejected as unknown.

## Add a class from a few examples

Train on nine digits, then add the tenth from ten images:

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
faustnet add-class runs/nine 9 nines --out ten.safetensors    # image files or folders
faustnet predict ten.safetensors nines/0.png                  # accepts a model file in place of a run
```

The same from Python:

```python
import faustnet

model = faustnet.load("runs/nine").add_class("9", pixels[~known & train][:10])  # returns a new model
nines = model.predict(pixels[~known & ~train])
print(sum(prediction.class_name == "9" for prediction in nines), "of", len(nines))
```

All FAUST methods support this. In every layer, the mean embedding of the examples becomes the reference of the new
class. The scores of the other classes do not change. Without `--out`, `add-class` replaces the model of the run. The
metrics of the run are not updated, so `faustnet report` then refuses the run, and the model card of `faustnet export` names
no accuracy; `evaluate`, `predict` and `play` accept it.

### Accuracy of new classes

<!-- not run: takes long -->
```sh
faustnet reproduce new-classes --out results
```

The command leaves out one class, trains for {epochs} epochs with three layers of 500 units, and then adds the class
from training images. It repeats this for every class, with {draws} random draws of examples each.

{reading}

All numbers are accuracies in % of the test images, averaged over the draws and the left-out classes. ± is the standard
deviation over the left-out classes; *minimum* is the lowest accuracy of a left-out class. *kind* is the way in
which references are made from the examples:

- *mean*: the mean embedding, repeated if a class has several references. This is the default, because it recognises
  most images of the new class.
- *k-means*: the examples closest to the cluster centres; the number of clusters is the number of references per class.
  It changes the old classes less. From Python: `add_class(…, kind="k-means")`.
- *examples*: randomly drawn examples; their number is the number of references per class.

With one example, all kinds are the same (*any*). `results/new-classes/` has one file per run.

{added}

The network was trained to map the old classes close to their references, but not the new class. Some images of the new
class are therefore closer to an old reference. This affects more images if the embeddings of each old class are close
together.

Both data sets use the recipe tuned on MNIST. The recipe tuned on Fashion-MNIST, which has more label smoothing and a
smaller scale, was worse on validation images of a few classes. The contrastive term with unit-length embeddings was also
worse.

Two other variants were tried and are not used. With cosine similarity, fewer images of the new class were recognised, but
the old classes changed less. A correction of the distances to the new class, estimated by leaving out one example at a
time, was slightly better on MNIST and much worse on Fashion-MNIST.

For `faust-prototype`, the mean embedding is scaled to the norm of the learned prototypes, which can be much smaller.

## Classes that come and go

Write a folder of images for each of two more classes, and change the model of the run:

```python
for label in (2, 6):
    folder = Path("turned", f"{{label}} turned")
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(pixels[labels == label][:5]):
        Image.fromarray(np.rot90(image).copy()).save(folder / f"{{number}}.png")
```

```sh
faustnet add-classes runs/nine turned                             # all folders at once, each named like its class
faustnet add-images runs/nine "6 turned" "turned/6 turned/0.png"  # more examples of a class
faustnet rename-class runs/nine "6 turned" six-turned
faustnet remove-class runs/nine 8
faustnet classes runs/nine                                        # lists classes and changes; also as --json
faustnet undo-classes runs/nine                                   # undoes the last change: class 8 is back
```

In Python, a model has the same methods, which return a changed copy; `faustnet.change_model` changes the stored model.
[FaustClassifier](scikit-learn.md) has them too; its `add_classes` takes samples and labels, and `add_samples` adds
samples to a class.

```python
examples = {{"2 turned": pixels[labels == 2][:5].swapaxes(1, 2), "6 turned": pixels[labels == 6][:5].swapaxes(1, 2)}}
model = model.add_classes(examples).rename_class("2 turned", "two, turned").remove_class("8")
model = faustnet.change_model("runs/nine", lambda stored: stored.undo_classes())
print([(one.name, one.learned, one.images) for one in model.classes])
```

- **More examples.** The references of an added class are computed again from all examples that it ever got, as if all of
  them had been given at once. The model file keeps the sum of their embeddings, not the images. A learned reference *r*
  changes little: it becomes 0.97 *r* + 0.03 *m*, where *m* is the mean embedding of all images that were added. A learned
  reference is not the mean of its class, and moving it further lowers the accuracy{learned}. For `faust-prototype`, the
  formula is for directions, and the lengths of references stay. To learn more from new images,
  [train further](going-on.md).
- **Data.** After a class is renamed, data sets may use its new name or its first one, with which it was trained or added.
  `evaluate` and `calibrate` leave out
  images of removed classes, and the confusion matrix has no row and no column for them.
- **Rejection.** A renamed class keeps the threshold of `calibrate`. Every other change removes it: calibrate again.
- **Undo.** The model file contains the last 100 changes with everything that is needed to undo them, including the
  threshold. Undoing all changes restores the file that training wrote, byte by byte.
- **Errors.** A change is made completely or not at all. While one command changes a model, other commands that would change
  it are refused, so that no change is lost. All files must be readable images; they are resized, as for `predict`.
- **Methods.** All FAUST methods support these commands. With other methods, classes can only be renamed.

{growing}{many}## Reject images of unknown classes

`faustnet calibrate` chooses a distance threshold on images of known classes that were not used for training. By
default, 5 % of these images are rejected (`--accept 0.95`).

```sh
faustnet calibrate runs/nine                       # uses the validation images (training.validation) or --dataset
faustnet predict runs/nine nines/0.png --reject    # prints the class or unknown
faustnet predict runs/nine nines/0.png             # prints the class, and says if the image is far from all classes
```

```python
nine = faustnet.load("runs/nine").calibrate(pixels[known & ~train], accept=0.95)
noise = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
print([prediction.class_name for prediction in nine.predict(noise, reject=True)])  # "unknown" if rejected
```

The threshold is stored in the model file. It is compared with the distance to the closest class in the first layer.
Later layers are trained to keep only the differences between the known classes, so they detect unknown images less
well. After you add a class, calibrate the model again. It then rejects fewer images, because the reference of an added
class is closer to unknown images than the references that were used in training.

### Accuracy of rejection

<!-- not run: takes long -->
```sh
faustnet reproduce rejection --datasets mnist,fashion-mnist,cifar10,omniglot --out results
```

The command trains on one data set and measures how well its test images can be distinguished from those of another data
set. Both data sets are standardised in the same way. MNIST and Fashion-MNIST use their tuned recipes with
{rejection_epochs} epochs, CIFAR-10 `best/cifar10/cnn`, and Omniglot the recipe of [few-shot classification](few-shot.md);
its unknown images are characters of other alphabets. The backprop twin has the same network and is trained for the same
number of epochs.

{reading_rejection}

AUROC is the area under the ROC curve in %. *false positives at 95 %* is the share of unknown test images that reach a
threshold which {accept:.0%} of the known test images reach. The last two columns use a threshold that accepts
{accept:.0%} of the validation images; {seeds}. *score* is the value that is compared with the threshold:

- *first layer*: the score of the best class in the first layer. faustnet uses this one. It was chosen on validation
  images and on training images of the other data set.
- *last layer*, *all layers*: the score of the best class in the last layer, or summed over all layers.
- *margin*: the difference between the best two classes, summed over all layers.
- *softmax*: the largest softmax probability. *output*: the largest output. *energy*: the logarithm of the sum of the
  exponentials of the outputs. For FAUST, the outputs are the negative scaled squared distances.
- *neighbour 1*, *neighbour 50*: the negative distance to the nearest, or to the 50th nearest, training image, of the last
  layer's embeddings divided by their lengths.

`results/rejection/` has one file per run.

{rejection}
"""


def page(folder: Path) -> str | None:
    """Return the page, or None if one of the two studies has no results."""
    added, rejection = (_read(folder / f"{name}.json") for name in ("new-classes", "rejection"))
    if not added or not rejection:
        return None
    return PAGE.format(
        epochs=EPOCHS,
        draws=DRAWS,
        accept=ACCEPT,
        rejection_epochs=REJECTION_EPOCHS,
        reading=reading(added),
        added=markdown(NEW_CLASSES.columns, NEW_CLASSES.rows(added)),
        growing=growing.section(_read(folder / "incremental.json")),
        many=many_page.section(folder),
        learned=reading_learned(_read(folder / "learned-references.json")),
        reading_rejection=reading_rejection(rejection),
        seeds=over_seeds(rejection),
        rejection=markdown(REJECTION.columns, REJECTION.rows(rejection)),
    )


def reading(cells: list[dict[str, Any]]) -> str:
    """Summarise the accuracy with ten examples."""
    found = [
        f"- {dataset_title(cell['dataset'])}: {ours(cell)} % of its images are recognised; the accuracy of the old classes "
        f"changes by {signed(cell['old'] - cell['before'])} points."
        for cell in _in_order(cells)
        if (cell["references"], cell["kind"], cell["examples"]) == (1, "mean", 10)
    ]
    return "\n".join(["Accuracy of the new class with ten examples and one reference per class:", "", *found])


def reading_rejection(cells: list[dict[str, Any]]) -> str:
    """Summarise the scores that are used most, and the best ones."""

    def has(method: str, score: str) -> str:
        mine = [cell for cell in _in_order(cells) if (cell["method"], cell["score"]) == (method, score)]
        return listed([f"{ours(cell)} on {dataset_title(cell['dataset'])}" for cell in mine])

    def best(method: str) -> str:
        mine = [cell for cell in _in_order(cells) if cell["method"] == method and "validation_auroc" in cell]
        chosen = [max(found, key=itemgetter("validation_auroc")) for _, found in groupby(mine, key=itemgetter("dataset"))]
        return ", ".join(f"*{cell['score']}* on {dataset_title(cell['dataset'])} ({ours(cell)})" for cell in chosen)

    faust, backprop = has("faust-representative", "first layer"), has("backprop", "softmax")
    sentences = [f"AUROC of FAUST's first layer: {faust}. AUROC of backprop's largest softmax probability: {backprop}."]
    if best("faust-representative") and best("backprop"):
        sentences.append(
            "The best scores by the AUROC on validation images, with their AUROC on test images, are, for FAUST: "
            f"{best('faust-representative')}; for backprop: {best('backprop')}."
        )
    if any(cell["score"].startswith("neighbour") for cell in cells):
        sentences.append(
            "The scores *neighbour* need the embeddings of all training images; the others need only the model."
        )
    return filled(sentences)


def reading_learned(result: Any) -> str:
    """Say how the accuracy changes if references are moved further."""
    if not result:
        return ""
    change, most = result["means"][-1]["change"], result["means"][-1]["share"]
    return f": by {-change:.1f} points with {most:g} in place of {result['chosen']:g} (`results/learned-references.json`)"


def _in_order(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(cells, key=lambda cell: dataset_rank(cell["dataset"]))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
