"""`faustnet demo` with small networks: its numbers are those of the files, and the next commands can be typed."""

import functools
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from conftest import Answer
from faustnet.cli import commands, main
from faustnet.cli.demo_table import DemoTable
from faustnet.data import DataSet
from faustnet.reproduce import demo
from faustnet.reproduce.estimate import TimeLeft, in_words
from faustnet.reproduce.jobs import Table1Job
from faustnet.reproduce.results import read_result
from faustnet.runs.model import Model
from faustnet.runs.recipes import changed

Command = Callable[..., Answer]


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """Three methods, small networks, five epochs, and few images in the report."""
    methods = (demo.BACKPROP, demo.FORWARD_FORWARD, demo.FAUST)
    full = vars(Table1Job)["recipe"].fget
    short = {"training.epochs": 5, "training.evaluate_every": 5}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"NETWORK": "2x24", "SEEDS": 1, "COMPARED": methods, "EPOCHS": 5}.items():
            patch.setattr(demo, name, value)
        patch.setattr(Table1Job, "recipe", property(lambda self: changed(full(self), short)))
        patch.setattr(commands, "report", functools.partial(commands.report, images=40))
        yield


@dataclass
class Told:
    out: Path
    text: str
    progress: str


@pytest.fixture(scope="module")
def told(small: None, tmp_path_factory: pytest.TempPathFactory) -> Told:
    out = tmp_path_factory.mktemp("demo") / "runs"
    text, progress = io.StringIO(), io.StringIO()
    with redirect_stdout(text), redirect_stderr(progress), pytest.raises(SystemExit) as end:
        main(["demo", "--out", str(out)])
    assert not end.value.code
    return Told(out, text.getvalue(), progress.getvalue())


def test_the_story_is_told_in_order(told: Told) -> None:
    """What is compared, the table, the answers of the layers, a new class, the result, the pages and the next commands."""
    places = [
        told.text.index(words)
        for words in (
            "Backpropagation trains a network with one loss at its output",
            "FAUST gives every layer a loss of its own",
            "1. Accuracy",
            "FAUST-representative tuplet",
            "2. Every layer answers",
            "layer 2:",
            "3. A new class without training",
            "In short:",
            "Open in a browser:",
            "Next, type one of these commands:",
        )
    ]
    assert places == sorted(places)
    assert "training" in told.progress
    assert " s left" in told.progress


def test_the_table_is_the_one_in_the_file(told: Told) -> None:
    cells = json.loads((told.out / "table1.json").read_text())
    assert {cell["method"] for cell in cells} == {"backprop", "forward-forward", "faust-representative"}
    rows = re.findall(r"^ (\S.*?)\s+([\d.]+)\s+(layers 1 to 2|output only)\s+(\d+)\s*$", told.text, re.MULTILINE)
    means = {cell["method"]: f"{cell['mean']:.2f}" for cell in cells}
    assert rows == [
        ("Backpropagation", means["backprop"], "output only", "1"),
        ("Forward-Forward", means["forward-forward"], "layers 1 to 2", "10"),
        ("FAUST-representative tuplet", means["faust-representative"], "layers 1 to 2", "1"),
    ]
    assert f"FAUST reached {means['faust-representative']} %, backpropagation {means['backprop']} %" in told.text


def test_the_answers_are_those_of_the_model(told: Told, digits: DataSet) -> None:
    model = Model.load(told.out / "faust" / "model.safetensors")
    first = model.predict(digits.test.all_pixels[:1])[0]
    shown = {
        name: found.split()[0] for name, found in re.findall(r"^  (true|layer \d|together): +(.+)$", told.text, re.MULTILINE)
    }
    assert shown == {
        "true": str(int(digits.test.labels[0])),
        "layer 1": first.votes[0],
        "layer 2": first.votes[1],
        "together": first.class_name,
    }


def test_the_new_class_is_that_of_the_written_model(told: Told, digits: DataSet) -> None:
    nines = digits.test.all_pixels[digits.test.labels == 9]
    nine, ten = (Model.load(told.out / name) for name in ("nine/model.safetensors", "ten.safetensors"))
    assert nine.class_names == tuple("012345678")
    assert ten.class_names == tuple("0123456789")
    recognised = sum(prediction.class_name == "9" for prediction in ten.predict(nines))
    assert recognised > len(nines) / 3
    text = " ".join(told.text.split())
    assert f"0 of {len(nines)} before, when 9 was no possible answer, {recognised} of {len(nines)} after." in text
    assert all(
        (nine.method.state_dict()[key] == value).all()
        for key, value in ten.method.network.state_dict(prefix="network.").items()
    )


def test_the_next_commands_can_be_typed(told: Told, faustnet: Command) -> None:
    lines = told.text[told.text.index("Next, type") :].splitlines()[1:]
    typed = [words for line in lines if (words := shlex.split(line, comments=True))]
    assert [words[: words.index("faustnet") + 2][-1] for words in typed] == ["evaluate", "reproduce", "train"]
    evaluate, *others = [words[words.index("faustnet") + 1 :] for words in typed]
    assert faustnet(*evaluate).code == 0
    for words in others:
        known = faustnet(*words[: 2 if words[0] == "reproduce" else 1], "--help")
        assert known.code == 0
        assert all(word in known.out for word in words if word.startswith("--"))


def test_the_pages_are_there(told: Told) -> None:
    for name in ("report.html", "play.html"):
        assert str(told.out / name) in told.text.replace("\n", "")
        assert (told.out / name).read_text(encoding="utf-8").startswith("<!")


def test_the_same_command_again_trains_nothing(told: Told, faustnet: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []
    monkeypatch.setattr(commands, "report", lambda runs, **options: pages.append(options["out"].name))
    monkeypatch.setattr(commands, "play", lambda run, **options: pages.append(options["out"].name))
    before = {path: path.stat().st_mtime_ns for path in told.out.rglob("model.safetensors")}
    again = faustnet("demo", "--out", told.out)
    assert again.code == 0
    assert ": training" not in again.err
    assert {path: path.stat().st_mtime_ns for path in told.out.rglob("model.safetensors")} == before
    assert pages == ["report.html", "play.html"]
    timed = re.compile(r"\d+\.\d+ s")
    assert timed.sub("", again.out) == timed.sub("", told.text)


def test_the_table_fills_up_on_a_terminal(told: Told) -> None:
    jobs = demo.table_jobs()
    file = io.StringIO()
    table = DemoTable(jobs, told.out / "empty", Console(file=file, force_terminal=True, width=90))
    pending = dict.fromkeys(jobs)
    table.start(len(jobs), pending.keys())
    console = Console(file=io.StringIO(), width=90)
    console.print(table.live.get_renderable())
    for job in jobs[:1]:
        table.begin(job)
        del pending[job]
        table.result(job, read_result(job.file(told.out)))
    console.print(table.live.get_renderable())
    before, after = console.file.getvalue().split("method", 2)[1:]  # type: ignore[attr-defined]
    assert before.count("…") == len(jobs) + 1
    assert after.count("…") == len(jobs) - 1
    assert re.search(r"1 of 3 runs, about \d+ s left until the end of the demo", after)


def job(method: str, seed: int) -> Table1Job:
    return Table1Job("tuned", method, "digits", "2x24", seed)


def test_the_estimate_knows_which_jobs_are_slow() -> None:
    """Two workers; backprop takes 10 s and faust-tuplet 100 s."""
    now = 0.0
    left = TimeLeft(clock=lambda: now)
    slow, fast = [job("faust-tuplet", seed) for seed in (0, 1)], [job("backprop", seed) for seed in range(4)]
    assert left.of([*slow, *fast]) is None, "nothing has been measured"
    left.begin(slow[0])
    for number, one in enumerate(fast[:3]):
        now = 10.0 * number
        left.begin(one)
        now += 10.0
        left.end(one, 10.0)
    now = 100.0
    left.end(slow[0], 100.0)
    left.begin(slow[1])
    left.begin(fast[3])
    now = 105.0
    assert left.of([slow[1], fast[3]]) == pytest.approx(95.0), "as long as the slow one"
    now = 195.0
    left.end(fast[3], 10.0)
    assert left.of([slow[1]]) == pytest.approx(9.5), "almost done, although half of the jobs of its kind are missing"
    left.end(slow[1], 100.0)
    assert left.of([]) == 0


def test_the_estimate_counts_the_work_after_the_jobs() -> None:
    now = 0.0
    left = TimeLeft(after=3.0, clock=lambda: now)
    left.begin(job("backprop", 0))
    now = 4.0
    left.end(job("backprop", 0), 4.0)
    assert left.of([]) == pytest.approx(12.0)
    assert left.of([job("backprop", 1)]) == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "5 s"), (12, "15 s"), (61, "65 s"), (115, "115 s"), (116, "2 min"), (3601, "61 min")]
)
def test_times_are_rounded_up(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
