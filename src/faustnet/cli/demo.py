"""`faustnet demo`: what FAUST does differently from backpropagation, shown in two minutes on a small data set."""

import io
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from faustnet.cli import commands
from faustnet.cli.reproduce import resumable

if TYPE_CHECKING:
    from faustnet.reproduce.demo import Answers
    from faustnet.runs.folder import Run

WIDTH = 96  # of the text, at most
SHADES = " ░▒▓█"  # of a picture, from dark to light

INTRODUCTION = """\
Backpropagation trains a network with one loss at its output, whose gradient passes back through all layers. FAUST \
gives every layer a loss of its own: the layer learns to map an image close to the example of its class and far from \
the examples of the other classes, and no gradient leaves the layer. Is that as accurate, and what else does it allow? \
This demo tries it on {images:,} handwritten digits of 8×8 pixels and takes about two minutes."""
ACCURACY = """\
The same network, three layers of 500 units, is trained with each method on {train:,} of the digits, with two random \
seeds, and tested on the other {test}. The rows between the first and the last are other published methods with a loss \
in every layer."""
DIFFERENCE = """\
FAUST (last row, with one fixed training image of each class as its example) minus backpropagation (first row): \
{difference:+.2f} points. ± is the standard deviation over the two seeds. One test image is {image:.2f} points, so two \
seeds do not show differences below about one point. “Passes” are the forward passes for one prediction: several \
methods need one for each of the ten classes. The “read-out” of FFCM is an output layer that is trained after the \
others."""
LAYERS = """\
A network trained with FAUST compares an image with one example of each class in every layer. So every layer has an \
answer of its own, the class of the nearest example, and one forward pass computes all of them. The distances of all \
layers are added for the answer together. A network trained with backpropagation answers at its output only. One of \
the networks above, with three test images:"""
FIRST_IS_ENOUGH = " On images as easy as these, the first layer alone is about as good as all layers together."
NEW_CLASS = """\
Another network was trained with FAUST on the digits 0 to 8 and has never seen a 9. Now it is given {examples} images \
of a 9. In every layer, the mean of what the layer makes of them becomes the example of the new class. No weight \
changes. A network trained with backpropagation has one output for each class; it would need another output, and \
training for it."""
ADDED = """\
Test images of a 9 that it recognises: 0 of {0.images} before, when 9 was no possible answer, {0.recognised} of \
{0.images} after. Adding the class took {0.seconds:.2f} s. Accuracy on the digits 0 to 8: {0.others_before:.1%} \
before, {0.others_after:.1%} after."""
SUMMARY = """\
In short: FAUST reached {faust:.2f} %, backpropagation {backprop:.2f} %. With FAUST, no gradient passes between \
layers, every layer answers, one forward pass is enough for a prediction (Forward-Forward needs {passes}), and a new \
class needs {examples} images and no training."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; runs that are already there are reused.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Show what FAUST does differently from backpropagation, in two minutes on the digits data set.

    Trains six methods and prints their accuracies, shows the answers of every layer, adds a class without training, and
    writes a report and a page to play with. Nothing is downloaded. After Ctrl-C the same command continues.
    """
    from faustnet.report.page import plotly_script

    plotly_script()  # fails early if plotly is not installed
    with resumable(out):
        _Story(out).tell()


class _Story:
    """The demo, step by step. The story goes to standard output, the progress to standard error."""

    def __init__(self, out: Path):
        self.out = out
        self.console = Console(highlight=False, markup=False, emoji=False)
        self.console.width = min(self.console.width, WIDTH) if self.console.is_terminal else WIDTH
        self.notes = Console(stderr=True, highlight=False, markup=False, emoji=False)

    def tell(self) -> None:
        from faustnet.reproduce.demo import EXAMPLES, digits, one_thread

        data = digits()
        self._say(INTRODUCTION.format(images=len(data.train) + len(data.test)))
        accuracies = self._compare(len(data.train), len(data.test))
        with one_thread():
            runs = self._layers()
            self._new_class()
            self._pages(runs)
        self._say(SUMMARY.format(**accuracies, examples=EXAMPLES))
        self._files()
        self._next()

    def _say(self, text: str) -> None:
        self.console.print(text)
        self.console.print()

    def _heading(self, number: int, title: str) -> None:
        self.console.print(f"{number}. {title}", style="bold")

    @contextmanager
    def _working(self, what: str) -> Iterator[None]:
        """Show what is being done: on a terminal until it is done."""
        if self.notes.is_terminal:
            with self.notes.status(f"{what} …"):
                yield
        else:
            self.notes.print(f"{what} …")
            yield

    def _compare(self, train: int, test: int) -> dict[str, float]:
        """Train and print the table. Returns the numbers of the summary."""
        from faustnet.cli.demo_table import DemoTable
        from faustnet.reproduce.demo import BACKPROP, FAUST, FORWARD_FORWARD, table_jobs, table_workers
        from faustnet.reproduce.dispatch import reproduce
        from faustnet.reproduce.table1 import TABLE

        self._heading(1, "Accuracy")
        self._say(ACCURACY.format(train=train, test=test))
        jobs = table_jobs()
        with DemoTable(jobs, self.out, self.console) as table:
            cells = {cell["method"]: cell for cell in reproduce(TABLE, jobs, self.out, table_workers(), table)}
        faust, backprop = cells[FAUST]["mean"], cells[BACKPROP]["mean"]
        self.console.print()
        self._say(DIFFERENCE.format(difference=faust - backprop, image=100 / test))
        return {"faust": faust, "backprop": backprop, "passes": table.passes(FORWARD_FORWARD)}

    def _layers(self) -> list["Run"]:
        from faustnet.reproduce.demo import BACKPROP, FAUST, kept_run, layer_answers

        self._heading(2, "Every layer answers")
        self._say(LAYERS)
        with self._working("training one network with FAUST and one with backpropagation"):
            runs = [kept_run(FAUST, self.out / "faust"), kept_run(BACKPROP, self.out / "backprop")]
        self._say(_pictures(layer_answers(runs[0])))
        metrics = runs[0].metrics
        shares = zip(metrics["voters"], metrics["layer_accuracy"], strict=True)
        alone = ", ".join(f"{name} {share:.1%}" for name, share in shares)
        whole = metrics["test_accuracy"]
        enough = FIRST_IS_ENOUGH if abs(metrics["layer_accuracy"][0] - whole) < 0.01 else ""
        self._say(f"Accuracy on all test images: {alone}; all layers together {whole:.1%}.{enough}")
        return runs

    def _new_class(self) -> None:
        from faustnet.reproduce.demo import EXAMPLES, with_class, without_class, write_new_class

        self._heading(3, "A new class without training")
        self._say(NEW_CLASS.format(examples=EXAMPLES))
        with self._working("training with FAUST on the digits 0 to 8"):
            write_new_class(self.out)
            run = without_class(self.out)
        self._say(ADDED.format(with_class(run, self.out)))

    def _pages(self, runs: Sequence["Run"]) -> None:
        """Write the pages; their paths are printed below."""
        self.notes.print("writing the report and the page to play with …")
        with redirect_stdout(io.StringIO()):
            commands.report([run.folder for run in runs], out=self.out / "report.html", device="cpu")
            commands.play(runs[0].folder, out=self.out / "play.html")

    def _files(self) -> None:
        self._listed(
            "Open in a browser:",
            ("draw a digit and see what every layer answers", str(self.out / "play.html")),
            ("the networks of FAUST and backpropagation side by side: curves, maps, errors", str(self.out / "report.html")),
        )

    def _next(self) -> None:
        faustnet, run = _program(), shlex.quote(str(self.out / "faust"))
        self._listed(
            "Next, type one of these commands:",
            (
                "how many images the first layers can answer, and how much work that saves",
                f"{faustnet} evaluate {run} --early-exit",
            ),
            ("watch the layers learn: an animation as SVG and GIF", f"{faustnet} reproduce animation"),
            (
                "train on your own images: FOLDER has one folder per class",
                f"{faustnet} train --dataset FOLDER --out runs/mine",
            ),
        )

    def _listed(self, title: str, *rows: tuple[str, str]) -> None:
        self.console.print(title, style="bold")
        for about, words in rows:
            self.console.print(f"  # {about}\n  {words}", soft_wrap=True)
        self.console.print()


def _pictures(answers: Sequence["Answers"]) -> str:
    """Return pictures of digits side by side, with the answers below."""
    drawn = [_picture(one.pixels.tolist()) for one in answers]
    lines = ["   ".join(parts) for parts in zip(*drawn, strict=True)]
    names = [f"layer {number}" for number in range(1, len(answers[0].votes) + 1)]
    for label, column in [
        ("true", [one.label for one in answers]),
        *((name, [one.votes[place] for one in answers]) for place, name in enumerate(names)),
        ("together", [one.together for one in answers]),
    ]:
        lines.append("   ".join(f"{label + ':':10}{word:6}" for word in column))
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _picture(pixels: list[list[int]]) -> list[str]:
    """Return a grey picture as lines of text, two characters per pixel."""
    return ["".join(2 * SHADES[value * len(SHADES) // 256] for value in row) for row in pixels]


def _program() -> str:
    """Return how this program is called: by name if that finds it, otherwise by its path."""
    called = Path(sys.argv[0])
    found = shutil.which("faustnet")
    if found and called.exists() and Path(found).samefile(called):
        return "faustnet"
    return shlex.quote(str(called)) if called.name == "faustnet" else "python -m faustnet"
