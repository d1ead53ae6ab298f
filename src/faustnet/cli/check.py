"""`faustnet check`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faustnet.cli.options import AsJson, DataDir, check_writable, option, print_json
from faustnet.errors import printable, require
from faustnet.report.tables import print_table
from faustnet.system.files import write_whole

if TYPE_CHECKING:
    from faustnet.data import DataSet
    from faustnet.data.findings import Finding, OnImages

SHOWN, ON_PAGE = 10, 100  # findings of one kind in the table and on the page, at most


def check(
    data: Annotated[str, typer.Argument(help="Data set: a name or a path, as for 'faustnet train --dataset'.")],
    page: Annotated[
        Path | None, option("HTML file to write, with pictures of the findings; an existing file is overwritten.", "no file")
    ] = None,
    text_column: Annotated[str, typer.Option(help="Name of the column with the texts.", show_default="a usual name")] = "",
    label_column: Annotated[str, typer.Option(help="Name of the column with the labels.", show_default="a usual name")] = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Look for mistakes in a data set that a training does not notice.

    Finds classes whose images are copies of one image, test images that are also training images, images with several
    labels, images of a single colour, classes with one image or without test images, labels that are no classes, such as -1,
    and files that cannot be read. The exit code is 0 if nothing is found, and 1 if anything is.
    """
    if page is not None:
        require(page.suffix.lower() in (".html", ".htm"), f"--page must end in .html, got {page}.")
        check_writable(page)
    from faustnet.data import check_data, load_data
    from faustnet.data.findings import Finding
    from faustnet.data.npy_file import BadLabels
    from faustnet.data.text import TextSettings

    loaded: DataSet | None = None
    try:
        text = TextSettings(text_column, label_column)
        loaded = load_data(data, data_dir, stream="always", text=text)
        with _progress(len(loaded.train) + len(loaded.test) + len(loaded.validation or ())) as on_images:
            found = check_data(loaded, on_images)
    except BadLabels as error:  # such data cannot be trained on
        found = [Finding("label", data, f"{error} The images were not checked.")]
    if page is not None:
        write_whole(page, _page(data, loaded, found).encode())
    if as_json:
        print_json([{"kind": one.kind, "where": one.where, "message": one.message} for one in found])
    else:
        _print(data, loaded, found, page)
    if found:
        raise typer.Exit(1)


@contextmanager
def _progress(total: int) -> "Iterator[OnImages]":
    """Show a progress bar on a terminal, for this number of images."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("images", total=total)
        yield lambda count: bar.advance(task, count)


def _print(name: str, data: "DataSet | None", found: "Sequence[Finding]", page: Path | None) -> None:
    """Print the findings, and of many findings of one kind only the first."""
    if data is not None:
        typer.echo(printable(f"{name}: {about(data)}"))
    first, more = _first(found, SHOWN)
    if first:
        print_table(("kind", "where", "finding"), [(one.kind, one.where, one.message) for one in first])
    for kind, count in more.items():
        typer.echo(f"{count:,} more findings of the kind {kind}: add --json to list all")
    if not found:
        typer.echo("Nothing was found.")
    else:
        typer.echo(f"written: {page}" if page else "To see the images, add --page FILE.html.")


def _first(found: "Sequence[Finding]", most: int) -> "tuple[list[Finding], Counter[str]]":
    """Return the first findings of each kind, and the numbers of the others."""
    seen, first = Counter[str](), []
    for finding in found:
        seen[finding.kind] += 1
        if seen[finding.kind] <= most:
            first.append(finding)
    return first, Counter({kind: count - most for kind, count in seen.items() if count > most})


def about(data: "DataSet") -> str:
    """Return the numbers of images and classes of a data set."""
    from faustnet.data.findings import noun_of

    noun = noun_of(data)
    parts = [f"{len(data.train):,} training {noun}", f"{len(data.test):,} test {noun}"]
    if data.validation is not None:
        parts.append(f"{len(data.validation):,} validation {noun}")
    return f"{', '.join(parts)}, {len(data.class_names)} classes"


def _page(name: str, data: "DataSet | None", found: "Sequence[Finding]") -> str:
    from faustnet.report.check_page import render_check

    first, more = _first(found, ON_PAGE)
    findings = [
        {
            "kind": finding.kind,
            "where": finding.where,
            "message": finding.message,
            "examples": [] if data is None else [_example(data, part, place) for part, place in finding.examples],
        }
        for finding in first
    ]
    return render_check(name, "" if data is None else about(data), findings, more)


def _example(data: "DataSet", part: str, place: int) -> dict[str, Any]:
    """Return an image or a text of a finding: where it is, its class and its content."""
    import torch

    from faustnet.data.findings import has_pixels, place_of

    images = {"train": data.train, "test": data.test, "validation": data.validation or data.test}[part]
    one = images.take(torch.tensor([place]))
    pixels = one.all_pixels.cpu()
    content: dict[str, Any] = {"pixels": None, "text": None}
    if data.tokeniser is not None:
        content["text"] = data.tokeniser.decode(pixels.long())[0]
    elif has_pixels(images):
        content["pixels"] = pixels[0].permute(1, 2, 0).numpy()  # (h, w, c)
    return {"place": place_of(data, (part, place)), "label": data.class_names[int(one.labels[0])], **content}
