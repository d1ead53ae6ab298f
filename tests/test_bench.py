"""The benchmark runs, and the page shows what the result files hold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Answer
from faustnet.bench import MeasurementCache, measurement_cache, memory, residual_memory, suite, trainings
from faustnet.bench import starts as bench_starts
from faustnet.bench.steps import Case
from faustnet.errors import FaustnetError
from faustnet.nn.architectures import NetworkSettings
from faustnet.runs.recipes import recipe_from

ROOT = Path(__file__).parents[1]
PROMISED = {"device", "layers", "width", "embedding", "batch", "backprop_us", "sequential_us", "wavefront_us"}
SMALL = Case(width=32, embedding=8, batch=16, shape=(1, 4, 4), precision="float32")
Command = Callable[..., Answer]


def test_what_is_measured_goes_to_the_terminal_and_to_a_file(
    faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "base", lambda device: SMALL)
    monkeypatch.setattr(suite, "DEPTHS", {"cpu": (2, 3)})
    out = tmp_path / "bench.json"
    answer = faustnet("bench", "steps", "--seconds", "0.01", "--out", out, "--device", "cpu")
    assert answer.code == 0, answer.err
    found = json.loads(out.read_text())
    assert [line["layers"] for line in found["steps"]] == [2, 3]
    assert all(line.keys() >= PROMISED and line["wavefront_us"] > 0 for line in found["steps"])
    assert found["environment"]["torch"] == torch.__version__
    assert "3 × 32, embedding 8, batch 16" in answer.out


def test_parts_that_are_not_measured_again_stay_in_the_file(faustnet: Command, tmp_path: Path) -> None:
    before, now = {"commit": "a"}, {"commit": "b"}
    first = suite.together({"environment": before, "steps": [1], "memory": [2]}, {"environment": now, "steps": [3]})
    assert first == {"environment": now, "steps": [3], "memory": [2], "environments": {"memory": before}}
    second = suite.together(first, {"environment": {"commit": "c"}, "scaling": [4]})
    assert second["environments"] == {"memory": before, "steps": now}
    assert suite.together(second, {"environment": now, "memory": [5]})["environments"].keys() == {"scaling", "steps"}
    out = tmp_path / "other.json"
    for content in ("[1]", "{", '{"environment": 1}'):
        out.write_text(content)
        answer = faustnet("bench", "steps", "--out", out, "--device", "cpu")
        assert answer.code == 2
        assert "--out must be a new file or one that this command wrote" in answer.err
        assert out.read_text() == content


class Digits(trainings.Training):
    """A short training, on small images."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"dataset": "digits", "method": self.method, "network": {"widths": [16]}, "training": {"epochs": self.epochs}}


def test_a_training_is_measured_from_beginning_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    line = trainings.measured(Digits("faust-representative", 3), device, None)
    assert line["accuracy"] > 0.5
    assert line["steps_seconds"] < line["seconds"] < line["whole_seconds"]
    assert line["other_seconds"] == pytest.approx(line["whole_seconds"] - line["steps_seconds"])
    for work in trainings.trainings(torch.device("cuda")):
        assert recipe_from(work.settings).dataset == "cifar10"
    starts = iter([{"seconds": 3.0, "kind": "dense"}, {"seconds": 5.0, "kind": "dense"}])
    monkeypatch.setattr(measurement_cache, "measured_by", lambda module, given: next(starts))
    found = trainings.measure([trainings.Training("backprop", 2)], device, None, 2, lambda text: None, MeasurementCache())
    assert list(found) == [{"seconds": 4.0, "worst_seconds": 5.0, "kind": "dense", "starts": 2}]


def test_several_starts_give_the_median_and_the_slowest(
    faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"layers": 2, "backprop_us": 10.0, "wavefront_us": time} for time in (4.0, 9.0, 5.0)]
    expected = {"layers": 2, "backprop_us": 10.0, "backprop_worst_us": 10.0, "wavefront_us": 5.0, "wavefront_worst_us": 9.0}
    assert bench_starts.combined(lines) == expected | {"starts": 3}
    network = NetworkSettings((16, 16), kind="vgg", pools=(1, 2), head=8)
    (*first, convolutional) = bench_starts.new_process([SMALL, network], torch.device("cpu"), 0.01, MeasurementCache())
    assert convolutional.keys() >= {"kind", "backprop_us", "sampled_wavefront_us"}
    second = [{name: 2 * value if name.endswith("_us") else value for name, value in line.items()} for line in first]
    starts = iter([first, second])
    monkeypatch.setattr(measurement_cache, "measured_by", lambda *_: next(starts))
    monkeypatch.setattr(suite, "base", lambda device: SMALL)
    monkeypatch.setattr(suite, "DEPTHS", {"cpu": (2,)})
    answer = faustnet(
        "bench", "steps", "--seconds", "0.01", "--starts", "2", "--out", tmp_path / "b.json", "--device", "cpu"
    )
    assert answer.code == 0, answer.err
    (line,) = json.loads((tmp_path / "b.json").read_text())["steps"]
    assert line["starts"] == 2
    assert 0 < line["wavefront_us"] == pytest.approx(0.75 * line["wavefront_worst_us"])
    assert f"(at most {line['wavefront_worst_us'] / line['backprop_us']:.2f})" in answer.out


def test_an_interrupted_benchmark_goes_on_with_the_starts_that_were_measured(
    faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def processes(*times: float) -> None:
        """Stand in for processes that measure these times, and for an interruption of the next one."""
        left = list(times)

        def measured_by(module: str, given: dict[str, Any]) -> list[dict[str, Any]]:
            if not left:
                raise KeyboardInterrupt
            time = left.pop(0)
            return [{"layers": 2, "backprop_us": 10.0, "wavefront_us": time} | piece["fields"] for piece in given["work"]]

        monkeypatch.setattr(measurement_cache, "measured_by", measured_by)

    monkeypatch.setattr(suite, "base", lambda device: SMALL)
    monkeypatch.setattr(suite, "DEPTHS", {"cpu": (2,)})
    monkeypatch.setitem(suite.PARTS, "prediction", lambda bench: {"prediction": []})
    out, kept = tmp_path / "B.json", tmp_path / "B.json.starts"
    words = ["bench", "steps", "--starts", "3", "--out", out, "--device", "cpu"]
    processes(4.0, 9.0)
    answer = faustnet(*words)
    assert answer.code == 130
    assert not out.exists()
    said = (
        f"{kept} has the measurements of the part that was stopped. To go on: faustnet bench steps, with the same options."
    )
    assert said in answer.err
    processes()
    other = faustnet(*words, "--seconds", "3")
    assert other.code == 130
    assert f"{kept}: measurements with the same code, machine and options are not repeated" in other.out
    assert faustnet("bench", "prediction", "--out", out, "--device", "cpu").code == 0  # leaves those of other parts
    stopped = faustnet(*words)
    assert stopped.code == 130
    assert "completed parts" not in stopped.err  # none of this benchmark
    processes(5.0)
    answer = faustnet(*words)
    assert answer.code == 0, answer.err
    (line,) = json.loads(out.read_text())["steps"]
    assert (line["wavefront_us"], line["wavefront_worst_us"], line["starts"]) == (5.0, 9.0, 3)
    assert not kept.exists()
    processes(7.0, 8.0)
    assert faustnet(*words).code == 130
    processes()
    assert faustnet(*words[:2], "--starts", "2", *words[4:]).code == 0
    processes()
    assert faustnet(*words).code == 130  # nothing is left of the benchmark with fewer starts
    parts = faustnet("bench", "prediction", *words[1:])
    assert parts.code == 130
    assert (
        parts.sentence == f"Stopped. {out} has the completed parts. To go on: faustnet bench steps, with the same options."
    )
    for content in ("null\n", "PK\n", "[1, 2, 3]\n", '["a", []]\n', "notes"):
        kept.write_text(content)
        answer = faustnet(*words)
        assert answer.code == 2
        assert f"{kept} must hold measurements of an interrupted benchmark, and does not: delete it." in answer.sentence
        assert kept.read_text() == content
    kept.unlink()
    kept.mkdir()
    assert f"{kept} must hold measurements" in faustnet(*words).sentence


def test_a_measurement_is_repeated_if_the_code_or_a_recipe_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    (package / "bench").mkdir(parents=True)
    monkeypatch.setattr(measurement_cache, "__file__", str(package / "bench" / "measurement_cache.py"))
    times = iter(range(10))
    monkeypatch.setattr(measurement_cache, "measured_by", lambda module, given: next(times))

    def measured() -> Any:
        return MeasurementCache(tmp_path / "B.json.starts").measure("module", {"device": "cpu"})

    assert [measured(), measured()] == [0, 0]
    for name in ("code.py", "recipe.toml"):
        (package / name).write_text("changed")
        before = measured()
        assert measured() == before
    assert before == 2

    def change(module: str, given: dict[str, Any]) -> int:
        (package / "code.py").write_text("changed again")
        return 99

    monkeypatch.setattr(measurement_cache, "measured_by", change)
    with pytest.raises(FaustnetError, match="The code of faustnet changed during a measurement"):
        MeasurementCache(tmp_path / "B.json.starts").measure("other", {"device": "cpu"})
    file = tmp_path / "B.json.starts"
    assert len(file.read_text().splitlines()) == 3
    assert not MeasurementCache(file).holds_any_of(torch.device("cpu"))  # with the code of now
    monkeypatch.setattr(measurement_cache, "measured_by", lambda module, given: next(times))
    cache = MeasurementCache(file)
    cache.measure("module", {"device": "cpu"})
    assert MeasurementCache(file).holds_any_of(torch.device("cpu"))
    cache.clear()
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["stepps"], "did you mean steps?"),
        (["steps", "--out", "nowhere/bench.json"], "nowhere/bench.json could not be written (No such file or directory)"),
        (["steps", "--out", "."], "could not be written (Is a directory)"),
        (["steps", "--starts", "0"], "--starts must be at least 1, got 0"),
        (["steps", "--seconds", "nan"], "--seconds must be a positive number"),
    ],
)
def test_what_cannot_be_measured_or_written_is_said_at_once(faustnet: Command, words: list[str], sentence: str) -> None:
    answer = faustnet("bench", *words, "--device", "cpu")
    assert answer.code == 2
    assert sentence in answer.sentence


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux only")
def test_memory_is_the_size_of_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "Case", lambda layers: Case(layers=layers, width=512, embedding=64, shape=(1, 16, 16)))
    cpu, mib = torch.device("cpu"), 2**20
    plain = memory.measure_one("backprop", 2, cpu)
    weights = 256 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10
    assert plain["weights"] == plain["gradients"] == pytest.approx(4 * weights / mib, abs=0.05)
    assert plain["optimiser"] == pytest.approx(8 * weights / mib, abs=0.05)
    again, pieces = (memory.measure_one(f"backprop, {how}", 6, cpu) for how in ("checkpointed", "accumulated"))
    whole = memory.measure_one("backprop", 6, cpu)
    assert again["activations"] < whole["activations"]
    assert pieces["activations"] < whole["activations"] / 2
    few, many = (memory.measure_one("greedy", layers, cpu) for layers in (2, 6))
    for part in ("gradients", "optimiser", "activations", "cached"):
        assert many[part] == few[part]
    assert memory.measure_one("sequential", 8, cpu)["gradients"] < memory.measure_one("wavefront", 8, cpu)["gradients"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux only")
def test_the_peak_is_that_of_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SYSTEMS", {"backprop": memory.train_plain})
    monkeypatch.setattr(memory, "DEPTHS", (4,))
    (found,) = memory.measure(torch.device("cpu"), lambda line: None)
    assert found["peak"] == pytest.approx(sum(found[part] for part in ("weights", "gradients", "optimiser")), rel=0.5)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux only")
def test_the_sequential_schedule_keeps_one_residual_block_and_backprop_all() -> None:
    few, many = (
        {system: residual_memory.measure_one(system, blocks, torch.device("cpu")) for system in residual_memory.SYSTEMS}
        for blocks in (6, 12)
    )
    assert many["sequential"]["activations"] == pytest.approx(few["sequential"]["activations"], rel=0.1)
    assert many["backprop"]["activations"] > 1.8 * few["backprop"]["activations"]
    assert many["backprop, checkpointed"]["activations"] < many["backprop"]["activations"] / 3


@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_the_result_files_have_what_scripts_rely_on(name: str) -> None:
    steps = json.loads((ROOT / "results" / f"bench-{name}.json").read_text())["steps"]
    assert {4, 8, 16} <= {line["layers"] for line in steps}
    assert all(line.keys() >= PROMISED for line in steps)
