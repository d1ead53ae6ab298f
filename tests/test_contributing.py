"""The description of one training step in CONTRIBUTING.md names the functions that a step really calls, in that order."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import faustnet
from conftest import run_to_end, small_trainer
from faustnet.data import ImageSource

ROOT = Path(__file__).parents[1]
PACKAGE = Path(faustnet.__file__).parent
ROW = re.compile(r"^\| (\d+) \| `([\w.]+)` \|", re.MULTILINE)
MODULE = re.compile(r"^\| \| \*\*`([\w/.]+)`\*\* \|", re.MULTILINE)


def test_a_step_calls_the_named_functions_in_order(source: ImageSource, held_out: ImageSource) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = [name for _, name in ROW.findall(text)]
    modules = set(MODULE.findall(text))
    assert 1 < len(named) <= 15
    assert 1 < len(modules) <= 6
    trainer = small_trainer("faust-representative", source, held_out, epochs=1, schedule="sequential")
    called: list[str] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and str(path.relative_to(PACKAGE)) in modules:
            called.append(frame.f_code.co_qualname)

    sys.setprofile(watch)
    try:
        run_to_end(trainer)
    finally:
        sys.setprofile(None)
    position = 0
    for name in named:
        position = called.index(name, position)  # raises if it does not come after the one before
