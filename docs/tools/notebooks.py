"""Turn the scripts of the gallery into Jupyter notebooks without outputs.

    python docs/tools/notebooks.py FOLDER

A paragraph of code becomes a code cell. A paragraph of comments, and the docstring of the script, become text. The site
has the notebooks too.
"""

import ast
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
GALLERY = (
    "own_model", "own_data", "own_training_loop", "classify_texts", "add_classes", "plot_curves", "plot_embeddings",
)  # fmt: skip


def notebook(script: Path) -> str:
    """Return a notebook, in version 4.5 of the format."""
    cells = [_cell(number, kind, text) for number, (kind, text) in enumerate(cells_of(script.read_text(encoding="utf-8")))]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def cells_of(source: str) -> Iterator[tuple[str, str]]:
    """Yield the kind of each cell, "markdown" or "code", and its text. All imports at the beginning are one cell."""
    tree = ast.parse(source)
    title, _, commands = (ast.get_docstring(tree) or "").partition("\n\n")
    yield "markdown", f"# {title}" + (f"\n\n```sh\n{commands}\n```" if commands else "")
    paragraphs = [block for block in _paragraphs(source.splitlines()[tree.body[0].end_lineno :]) if block]
    imports = list(takewhile(_is_import, paragraphs))
    yield "code", "\n\n".join(imports)
    for paragraph in paragraphs[len(imports) :]:
        lines = paragraph.splitlines()
        if all(line.startswith("#") for line in lines):
            yield "markdown", " ".join(line.removeprefix("#").strip() for line in lines)
        else:
            yield "code", paragraph


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Yield blocks of code that end with an empty line before a line without indentation."""
    block: list[str] = []
    for line in lines:
        if block and not block[-1] and line and not line[0].isspace() and line[0] not in ")]}":
            yield "\n".join(block).strip("\n")
            block = []
        block.append(line)
    yield "\n".join(block).strip("\n")


def _is_import(paragraph: str) -> bool:
    nodes = ast.parse(paragraph).body
    return bool(nodes) and all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
    return {**cell, "execution_count": None, "outputs": []} if kind == "code" else cell


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Give the folder for the notebooks: python docs/tools/notebooks.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in GALLERY:
        (folder / f"{name}.ipynb").write_text(notebook(EXAMPLES / f"{name}.py"), encoding="utf-8")
        print(f"wrote {folder / name}.ipynb")
