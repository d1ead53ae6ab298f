"""Check that the generated pages agree with the code and with the result files. `make docs` runs this.

python docs/tools/freshness.py
"""

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import killing  # noqa: E402
import performance  # noqa: E402
import ranks  # noqa: E402
import ranks_page  # noqa: E402
from faustnet.report.animation import draw_svg  # noqa: E402


def pages() -> Iterator[tuple[Path, str, str]]:
    """Yield every generated page: its path, its content as generated now, and the command that writes it."""
    for script in ("docs/tools/reference.py", "benchmarks/results.py"):
        for path, text in runpy.run_path(str(ROOT / script))["pages"]().items():
            yield path, text, f"python {script}"
    page = performance.PAGE
    yield page, performance.with_tables(_read(page), performance.read()), "python benchmarks/performance.py"
    page = ranks_page.PAGE
    yield page, ranks_page.with_tables(_read(page), ranks.read(ranks.RESULTS)), "python benchmarks/ranks_page.py"
    found = json.loads(_read(ROOT / "results" / "animation.json"))
    yield ROOT / "results" / "figures" / "animation.svg", draw_svg(found), "faustnet reproduce animation --out results"
    page, found = killing.PAGE, json.loads(_read(killing.RESULTS))
    yield page, killing.with_table(_read(page), found), "python benchmarks/killing.py page"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    stale = {f"{path.relative_to(ROOT)} is out of date: {command}" for path, text, command in pages() if _read(path) != text}
    if stale:
        sys.exit("\n".join(sorted(stale)))
