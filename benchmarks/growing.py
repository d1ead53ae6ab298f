"""The section of docs/new-classes.md about classes that come over time, from results/incremental.json."""

from typing import Any

from faustnet.report.paper import dataset_title
from faustnet.report.table1 import over_seeds
from faustnet.report.tables import markdown
from faustnet.reproduce.growth import BATCH, EXEMPLARS, RATE, STEPS, VARIANTS
from faustnet.reproduce.incremental import SHARES, difference, shown
from faustnet.reproduce.results import grouped

SECTION = """## Classes that come over time

<!-- not run: takes long -->
```sh
faustnet reproduce incremental --base {base} --first {first} --step {step} --seeds {seeds} --out results
```

The command trains the recipe best/{base} and its backprop twin on {first} of the {classes} classes of {dataset}, and then
adds the others in steps of {step}. The order of the classes depends on the seed. After every step, the models predict among
all classes so far:

- *{added}*: the mean embedding of the training images of a new class becomes its reference, as with `add-classes`. Nothing
  is trained.
- *{means}*: the same for the first classes too, in place of the references from the training. Nothing is trained.
- *{tuned}*: each time that classes are added, the heads of all layers are trained on {steps} batches of {batch} images,
  each by the loss of its own layer. Of every class so far, {exemplars} images are kept for this. The optimiser is AdamW with
  learning rate {rate:g}; these settings were chosen on the digits data set. The other weights stay as they are.
- *{backprop}*: the class whose mean of normalised features of the last layer is nearest. Nothing is trained.

![Accuracy by the number of classes so far](../results/figures/incremental.svg)

Accuracy in % of the test images of all classes so far, of the first {first} classes, and of all classes that were added
since; mean over {over}. ± is the 95 % interval of the mean over the seeds. The last column is the accuracy of all classes
so far minus that of *{backprop}*, with its 95 % interval (Welch's t); ○ marks an interval that includes zero.
`results/incremental/` has one file per run, and `results/incremental.json` has every step.

{tables}

"""


def section(cells: list[dict[str, Any]]) -> str:
    """Return the section, or nothing without results."""
    return "".join(_of_one(about, mine) for about, mine in grouped(cells, "of", "dataset", "first", "step"))


def _of_one(about: dict[str, Any], cells: list[dict[str, Any]]) -> str:
    counts = sorted({cell["classes"] for cell in cells})
    return SECTION.format(
        base=about["of"],
        first=about["first"],
        step=about["step"],
        dataset=dataset_title(about["dataset"]),
        classes=counts[-1],
        seeds=max(cell["seeds"] for cell in cells),
        over=over_seeds(cells),
        added=VARIANTS["added"],
        means=VARIANTS["means"],
        tuned=VARIANTS["fine-tuned"],
        backprop=VARIANTS["backprop"],
        steps=STEPS,
        exemplars=EXEMPLARS,
        rate=RATE,
        batch=BATCH,
        tables=_table(cells, [counts[0], counts[len(counts) // 2], counts[-1]]),
    )


def _table(cells: list[dict[str, Any]], counts: list[int]) -> str:
    rows = [
        [VARIANTS[cell["variant"]], str(cell["classes"]), *(shown(cell[share]) for share in SHARES), difference(cell)]
        for cell in cells
        if cell["classes"] in counts
    ]
    return markdown(["", "classes so far", "all", "first classes", "added classes", "difference to backprop"], rows)
