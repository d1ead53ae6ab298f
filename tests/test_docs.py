"""What the pages say is so: their code runs, their links lead somewhere, and what is written by programs is up to date."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faustnet.cli import main
from faustnet.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in ("README.md", "RESULTS.md", "CONTRIBUTING.md"))])
BLOCK = re.compile(r"(<!-- not run: .+? -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
LONG = ("demo", "reproduce", "bench")  # commands that take minutes at least


@pytest.fixture(autouse=True)
def _same_methods() -> Iterator[None]:
    """A page may put a method into the table; others shall not find it there."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def run_page(path: Path) -> dict[str, Any]:
    """Run a page's code in the folder where we are, in order; the names that it has left."""
    names: dict[str, Any] = {"__name__": path.stem}
    for not_run, language, text in BLOCK.findall(path.read_text(encoding="utf-8")):
        if not_run:
            continue
        if language == "python":
            exec(compile(text, f"{path.name}: {text.splitlines()[0]}", "exec"), names)
        elif language in ("", "sh", "console"):
            for line in text.replace("\\\n", " ").splitlines():
                run_command(shlex.split(line, comments=True), line)
    return names


def run_command(words: list[str], line: str) -> None:
    if not words:
        return
    assert words[0] == "faustnet", f"mark this as <!-- not run: … -->, or leave it out: {line}"
    assert words[1] not in LONG, f"mark this as <!-- not run: … -->: {line}"
    with pytest.raises(SystemExit) as exit_:
        main(words[1:])
    assert exit_.value.code in (0, None), line


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_code_on_a_page_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(path)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    for link in LINK.findall(BLOCK.sub("", path.read_text(encoding="utf-8"))):
        name, _, heading = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.is_file(), link
        assert not heading or heading in headings(target), link


def headings(path: Path) -> set[str]:
    """What links call a page's headings."""
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_every_page_is_in_the_menu() -> None:
    listed = re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(listed)


@pytest.mark.parametrize("page", ["commands", "recipes"])
def test_every_option_is_described(page: str) -> None:
    rows = re.findall(
        r"^\| (`.+?`) \| (.*?) \| .*\|$", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 50
    assert [name for name, about in rows if len(about) < 5 or about.startswith("see ")] == []


def test_signatures_fit_the_page() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    signatures = [text for _, language, text in BLOCK.findall(page) if language == "text" and "→" in text]
    assert len(signatures) > 50
    long = [line for text in signatures for line in text.splitlines() if len(line) > 100]
    assert long == []
    wrapped = [text for text in signatures if "\n" in text.strip()]
    assert all(text.count("(") == text.count(")") and text.count("[") == text.count("]") for text in wrapped)
    assert any(text.startswith("faustnet.train(\n    recipe: Mapping[str, Any],\n") for text in wrapped)
