"""MkDocs hooks of this site.

Links in the pages are relative paths in the repository. The hooks copy linked files from outside docs/ into the site and
adapt the links; README.md becomes the first page. LaTeX blocks become MathML, which browsers render without a script.
The scripts of the gallery are also notebooks, which are linked next to them.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from notebooks import EXAMPLES, GALLERY, notebook

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "RESULTS.md", "CONTRIBUTING.md", "CHANGELOG.md")  # pages outside docs/
LINK = re.compile(r"(?<=\]\()[^)\s#]+")
SCRIPT = re.compile(r"\[\w+\.py\]\(examples/(?P<name>\w+)\.py\)")
FORMULA = re.compile(r"```math\n(.*?)```", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    sources = [ROOT / page for page in PAGES]
    wanted = {*sources, *(target for page in (*sources, *(ROOT / "docs").glob("*.md")) for target in linked(page))}
    for path in sorted(path for path in wanted if ROOT / "docs" not in path.parents):
        files.append(File.generated(config, place(path), abs_src_path=str(path)))
    for name in GALLERY:
        files.append(File.generated(config, f"examples/{name}.ipynb", content=notebook(EXAMPLES / f"{name}.py")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = Path(page.file.abs_src_path).parent

    def moved(link: re.Match[str]) -> str:
        target = inside(folder, link[0])
        return place(target) if target else link[0]

    markdown = FORMULA.sub(drawn, LINK.sub(moved, markdown))
    return SCRIPT.sub(with_notebook, markdown) if page.file.src_path == "examples.md" else markdown


def with_notebook(script: re.Match[str]) -> str:
    """Return the link to a script of the gallery, and one to its notebook."""
    name = script["name"]
    return f"{script[0]}<br>[notebook](examples/{name}.ipynb){{ download }}" if name in GALLERY else script[0]


def linked(page: Path) -> Iterator[Path]:
    """Yield the files of this repository that a page links to."""
    found = (inside(page.parent, target) for target in LINK.findall(page.read_text(encoding="utf-8")))
    return (target for target in found if target)


def inside(folder: Path, link: str) -> Path | None:
    """Return the file of this repository that a link in `folder` points to, or None."""
    path = Path(os.path.normpath(folder / link))
    return path if path.is_relative_to(ROOT) and path.is_file() else None


def place(path: Path) -> str:
    """Return the path of a file in the site; all pages are at the top level."""
    folder = ROOT / "docs"
    inner = path.relative_to(folder if path.is_relative_to(folder) else ROOT).as_posix()
    return "index.md" if inner == "README.md" else inner


def drawn(formula: re.Match[str]) -> str:
    return f'<div class="formula">{convert(formula[1].strip(), display="block")}</div>'
