"""Write RESULTS.md, docs/representatives.md, docs/new-classes.md and the tables in README.md, docs/scikit-learn.md and
docs/export.md from the files in results/.

    python benchmarks/results.py

Nothing is measured here; `faustnet reproduce` and `benchmarks/tuning.py` do that. A test fails when the pages and the
files disagree.
"""

import json
import statistics
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import beyond
import new_classes
from estimator import lines
from faustnet.report.comparisons import markdown
from faustnet.report.paper import TITLES
from faustnet.report.table1 import as_markdown, difference
from faustnet.reproduce.results import method_titles
from faustnet.reproduce.table1 import TABLE, summary
from faustnet.runs.recipes import recipe_from

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
TEMPLATE = """# Results

Every figure here is computed from a file in `results/`, by `python benchmarks/results.py`, and the command that wrote the
file is named with it (what things cost is in [docs/performance.md](docs/performance.md)). Accuracies are in % of the
test images, at the last epoch, never the best one; ± is the standard deviation over seeds. Hyper-parameters were chosen
on validation images, which are part of the training set.

## Table I

<!-- not run: takes long -->
```sh
faustnet reproduce table1 --out results --recipes tuned --jobs 8
faustnet reproduce table1 --out results --recipes paper --jobs 8 …   # so far for some --methods, --networks and --seeds
```

In each cell: ours, and below it the paper's figure and the difference. A cell without a second line is not in the
paper's table. There is one file for each run in `results/table1/` with its recipe, seed, history, versions, device and
time; the cells are in `results/table1.json`. {machine}

**Tuned**: hyper-parameters chosen for each method and data set (see below), 60 epochs, images as they are; but FFCM,
whose authors distort them, has random crops, and mirror images where that does no harm.

{tuned}

**As the paper states it**: Adam, learning rate 0.001, batches of 256, embeddings of 256, and nothing else: a constant
learning rate, distances as they are (scale 1), no dropout and no decay. 60 epochs. What it does not state is this
package's default, as in all recipes: images have mean 0 and variance 1, and Forward-Forward's label is half an image's
length where the paper writes a 1; SymBa's goodness is a mean over units; FFCM sees images as they are here.

{paper}

{reading}

### How the tuned recipes were chosen

<!-- not run: takes long -->
```sh
python benchmarks/tuning.py ask results/study.json     # Optuna proposes
python benchmarks/tuning.py run results/study.json     # train on 55,000 or 45,000 images, measure on 5,000 others
python benchmarks/tuning.py write results/study.json   # the best become src/faustnet/runs/recipes/tuned/
```

Trials are shorter than the recipes that come of them (25 epochs; 3×500; one seed). FAUST-vanilla tuplet on MNIST had nine
more, of 60 epochs and put in by hand, after its first recipe had come out below the paper's figure; they were compared on
validation images as well. The best validation accuracy and the number of trials, all of which are in `results/study.json`:

{study}

{beyond}## Figure 2: what each layer makes of Fashion-MNIST

`faustnet reproduce figure2 --out results`: FAUST-representative, tuned, 4×500, embeddings of 256, {figure2_accuracy:.2%} of the test
images, on {figure2_device}. F is the Fisher score of a layer's embeddings of all test images, the scatter between classes
over the scatter within them: F = Σ_c n_c ‖μ_c − μ‖² / Σ_i ‖x_i − μ_y(i)‖². By layer: {fisher}. The paper has 2.97 in the first layer and 9.81 in the
fourth, by a definition that it does not give. The facts are in `results/figure2.json`.

![t-SNE of each layer's embeddings](results/figures/figure2.png)

## Figure 3: convergence on CIFAR-10

`faustnet reproduce figure3 --out results --seeds {curves}`: the runs of Table I by the paper's recipes, 3×500; {{1}} is layer 1 alone,
{{1,2,3}} all three together; bands are a standard deviation over {curves} seeds.

![Accuracy by epoch](results/figures/figure3.png)

## Figure 1: the architecture

`faustnet reproduce figure1 --out results`, drawn from a network object.

![The architecture of FAUST](results/figures/figure1.png)

## In minutes on a CPU

`python benchmarks/core.py results/core.json`: 3×500, the package's defaults, seeds 0 to 2, two CPU cores.

{core}
"""


def pages() -> dict[Path, str]:
    """The files' contents. A part whose result file is not there is left out."""
    results = TABLE.read(RESULTS)
    cells = summary(results)
    figure2 = _read("figure2.json")
    text = TEMPLATE.format(
        machine=machine(results),
        tuned=as_markdown(cells, "tuned", method_titles()),
        paper=as_markdown(cells, "paper", method_titles()),
        reading=" ".join(reading(cells, family) for family in ("tuned", "paper")),
        study=study(),
        beyond="".join(f"{section}\n\n" for section in beyond.sections(RESULTS)),
        figure2_accuracy=figure2["test_accuracy"],
        figure2_device={"cpu": "a CPU"}.get(figure2["environment"]["device"], figure2["environment"]["device"]),
        fisher=", ".join(f"{layer['fisher']:.2f}" for layer in figure2["layers"]),
        curves=sum(run["family"] == "paper" and run["dataset"] == "cifar10" and run["network"] == "3x500"
                   and run["method"] == "backprop" for run in results),
        core=core(),
    )  # fmt: skip
    return {
        ROOT / "RESULTS.md": text,
        **with_tables(
            ROOT / "README.md",
            {"table1": as_markdown(cells, "tuned", method_titles()), "best": beyond.in_short(_read("best.json"))},
        ),
        **with_tables(ROOT / "docs/scikit-learn.md", {"estimator": "\n".join(lines(_read("estimator.json")))}),
        **with_tables(ROOT / "docs/export.md", {"export": exported()}),
        **({ROOT / "docs/representatives.md": page} if (page := beyond.representatives(RESULTS)) else {}),
        **({ROOT / "docs/new-classes.md": page} if (page := new_classes.page(RESULTS)) else {}),
    }


def with_tables(page: Path, tables: dict[str, str]) -> dict[Path, str]:
    """A page with each table written anew between its marks."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by `python benchmarks/results.py` -->\n", f"\n<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = before + begin + table + end + rest.split(end)[1]
    return {page: text}


def machine(results: list[dict[str, Any]]) -> str:
    """What they were trained on, and for how long."""
    kinds = Counter((run["family"], run["environment"]["device"]) for run in results)
    where = ", ".join(f"{count} {family} runs on {device}" for (family, device), count in kinds.most_common())
    versions = " and ".join(sorted({run["environment"]["torch"] for run in results}))
    tuned = [run for run in results if run["family"] == "tuned"]
    seconds = [run["seconds"] for run in tuned]
    return (
        f"{where}, torch {versions}. The {len(tuned)} tuned ones took {busy(tuned) / 60:.0f} minutes, several at a time "
        f"(each {min(seconds):.0f} to {max(seconds):.0f} s beside the others)."
    )


def busy(results: list[dict[str, Any]]) -> float:
    """Seconds during which one of them or more was being trained."""
    total, until = 0.0, 0.0
    for run in sorted(results, key=lambda run: run["environment"]["started"]):
        begin = datetime.fromisoformat(run["environment"]["started"]).timestamp()
        end = begin + run["seconds"]
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def reading(cells: list[dict[str, Any]], family: str) -> str:
    """What can be read off a family's table, computed."""
    known = [cell for cell in cells if cell["recipe"] == family and cell["paper"] is not None]
    above = sum(cell["mean"] >= cell["paper"] for cell in known)
    worst = min(known, key=lambda cell: cell["mean"] - cell["paper"])
    where = f"{method_titles()[worst['method']]} on {TITLES[worst['dataset']]}, {worst['network'].replace('x', '×')}"
    return (
        f"Of {len(known)} of the paper's figures the {family} recipes reach or pass {above}; the farthest below is {where}, "
        f"{difference(worst)}."
    )


def study() -> str:
    trials = _read("study.json")
    datasets = [name for name in TITLES if any(trial["dataset"] == name for trial in trials)]
    rows = []
    for method in dict.fromkeys(trial["method"] for trial in trials):
        row = [method_titles()[method]]
        for dataset in datasets:
            found = [t["validation_accuracy"] for t in trials if (t["method"], t["dataset"]) == (method, dataset)]
            row.append(f"{100 * max(found):.2f} of {len(found)}")
        rows.append(row)
    return markdown(["method", *(TITLES[name] for name in datasets)], rows)


def exported() -> str:
    rows = [
        [f"{line['network']}, `{line['method']}`, {line['images']} at once", f"{line['torch_us']:,.0f}",
         f"{line['onnx_us']:,.0f}", f"{line['onnx_us'] / line['torch_us']:.2f}"]
        for line in _read("export.json")["lines"]
    ]  # fmt: skip
    return markdown(["images of 28×28", "PyTorch, µs", "ONNX Runtime, µs", "ONNX Runtime ÷ PyTorch"], rows)


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def core() -> str:
    """Mean ± standard deviation over the seeds of results/core.json."""
    runs = _read("core.json")
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        found.setdefault((run["method"], run["recipe_name"]), []).append(100 * run["test_accuracy"])
    recipes = list(dict.fromkeys(run["recipe_name"] for run in runs))
    epochs = {run["recipe_name"]: recipe_from(run["recipe"]).training.epochs for run in runs}
    rows = []
    for method in dict.fromkeys(run["method"] for run in runs):
        cells = (found.get((method, name)) for name in recipes)
        shown = (f"{statistics.mean(cell):.2f} ± {statistics.stdev(cell):.2f}" if cell else "–" for cell in cells)
        rows.append([method_titles()[method], *shown])
    return markdown(["method", *(f"{TITLES[name]}, {epochs[name]} epochs" for name in recipes)], rows)


if __name__ == "__main__":
    for path, content in pages().items():
        path.write_text(content, encoding="utf-8")
        print(f"{path.relative_to(ROOT)} is written")
