"""`faustnet tokens`."""

from pathlib import Path
from typing import Annotated

import typer

from faustnet.cli.options import DataDir, check_writable, option
from faustnet.errors import require


def tokens(
    source: Annotated[str, typer.Argument(help="Data set of texts: a name or a path, as for 'faustnet train --dataset'.")],
    out: Annotated[Path, typer.Argument(help=".npz file to write; 'faustnet train --dataset' reads it.")],
    length: Annotated[int | None, option("Tokens of a text.", "those of the longest training text, from 32 to 128")] = None,
    vocabulary: Annotated[int, typer.Option(help="Largest number of different tokens.")] = 8000,
    text_column: Annotated[str, typer.Option(help="Name of the column with the texts.", show_default="a usual name")] = "",
    label_column: Annotated[str, typer.Option(help="Name of the column with the labels.", show_default="a usual name")] = "",
    data_dir: DataDir = None,
) -> None:
    """Convert texts to tokens, for machines without the package tokenizers.

    The file contains token ids, labels, class names and the tokeniser, which is trained on the training texts.
    """
    require(out.suffix == ".npz", f"OUT must end in .npz, got {out}.")
    check_writable(out)
    from faustnet.data import load_data, write_tokens
    from faustnet.runs.recipes import DataSettings

    settings = DataSettings(text_column=text_column, label_column=label_column, tokens=length or 0, vocabulary=vocabulary)
    data = load_data(source, data_dir, text=settings.text)
    write_tokens(data, out)
    for line in data.left_out:
        typer.echo(f"skipped: {line}", err=True)
    typer.echo(
        f"{out}: {len(data.train):,} training texts and {len(data.test):,} test texts of {data.train.shape[0]} tokens, "
        f"{len(data.class_names)} classes"
    )
