"""Trials of recipes: how they are run and stored, the search spaces, and predsim's published recipe."""

import math
import os
import re
import signal
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch

import best
import few_shot
import predsim
import results
import trials
import tuning
from conftest import run_to_end
from faustnet.data import DataSet, Images
from faustnet.losses import centred_similarity_loss, competitive_loss
from faustnet.runs.recipes import changed, dotted, recipe_from, shipped_recipe
from faustnet.runs.session import set_up
from processes import Program
from search import ARMS, CUTOUTS, arm, draws

SMALL = ("network.widths=[24,16]", "network.embedding=8", "training.batch_size=64")


@pytest.fixture(scope="module")
def small_images() -> DataSet:
    """96 images of 16 by 16 pixels in 3 classes, and 12 for testing."""
    generator = torch.Generator().manual_seed(0)

    def images(count: int) -> Images:
        return Images(torch.randint(0, 256, (count, 3, 16, 16), generator=generator).byte(), torch.arange(count) % 3)

    return DataSet("small", ("a", "b", "c"), images(96), images(12))


def search(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["best.py", *map(str, words)])
    best.main()


def test_a_trial_that_fails_is_stored_with_the_reason_and_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.json"
    short = ("training.epochs=1", *SMALL)
    search(monkeypatch, "add", file, "digits/tiny", *short, "options.representatives=10000")
    search(monkeypatch, "add", file, "digits/tiny", *short, "optimiser.learning_rate=1e30")
    search(monkeypatch, "add", file, "digits/tiny-backprop", "method=backprop", *short)
    search(monkeypatch, "add", file, "digits/other", *short)
    with pytest.raises(SystemExit, match="1 trials failed"):
        search(monkeypatch, "run", file, "digits/tiny", "--device", "cpu")
    refused, diverged, good, other = best.read(file)
    assert refused["validation_accuracy"] is None
    assert "representatives" in refused["failed"]
    assert diverged["validation_accuracy"] == 0
    assert "finite" in diverged["failed"]
    assert good["validation_accuracy"] > 0
    assert "failed" not in good
    assert other["validation_accuracy"] is None, "it is of another study"
    assert set(best.chosen(best.read(file))) == {"digits/tiny", "digits/tiny-backprop"}
    capsys.readouterr()
    with pytest.raises(SystemExit, match="1 trials failed"):
        search(monkeypatch, "run", file, "digits/tiny", "--device", "cpu")
    line, left = capsys.readouterr().out.splitlines()
    assert "failed (FaustnetError: " in line
    assert left == "1 trial left: run the command again."
    search(monkeypatch, "run", file, "--device", "cpu", "--seconds", "0")
    assert capsys.readouterr().out == "2 trials left: run the command again.\n"


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ("digits/tini", "There is no study 'digits/tini': did you mean digits/tiny?"),
        ("mnist/x", "There is no study 'mnist/x'"),
    ],
)
def test_a_study_that_does_not_exist_is_not_run(
    study: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search(monkeypatch, "add", tmp_path / "study.json", "digits/tiny-backprop", *SMALL)
    with pytest.raises(SystemExit, match=re.escape(said)):
        search(monkeypatch, "run", tmp_path / "study.json", study)


def test_studies_that_lack_trials_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(best, "RECIPES", tmp_path)
    base = {"base": None, "changes": {"method": "backprop"}}

    def trial(study: str, number: int, accuracy: float | None, **about: str) -> trials.Trial:
        return {**base, "study": study, "number": number, "validation_accuracy": accuracy, **about}

    equal = [trial(f"digits/x{ending}", 1, 0.9, tuning="equal") for ending in ARMS]
    equal[-1]["validation_accuracy"] = None
    trials.save(tmp_path / "study.json", [trial("digits/x", 0, 0.8), *equal, trial("digits/y", 0, None)])
    search(monkeypatch, "write", tmp_path / "study.json")
    reason = "because it lacks the results of 1 of 3 equal trials of all arms."
    assert capsys.readouterr().out.splitlines() == [
        f"digits/x is written from its other trials, {reason}",
        f"digits/x-backprop is not written, {reason}",
        f"digits/x-deep-supervision is not written, {reason}",
        "digits/y is not written, because it lacks the results of 1 of 1 trials.",
    ]
    assert [path.name for path in tmp_path.glob("best/digits/*")] == ["x.toml"]
    equal[-1]["validation_accuracy"] = 0.7
    trials.save(tmp_path / "study.json", equal)
    search(monkeypatch, "write", tmp_path / "study.json")
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "words"), [(best, ["run"]), (best, ["show"]), (best, ["write"]), (tuning, ["run"]), (few_shot, ["run"])]
)
def test_a_file_that_does_not_exist_is_an_error(
    program: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "study.json"
    monkeypatch.setattr(program, "RECIPES", tmp_path)
    monkeypatch.setattr(sys, "argv", [program.__name__, *words, str(file)])
    with pytest.raises(SystemExit) as end:
        program.main()
    assert end.value.code == f"FILE must be a file with trials, but {file} does not exist: add trials to it first."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--methods", "predsin"), "There is no method 'predsin': did you mean predsim?"),
        (("--datasets", "minst"), "There is no data set 'minst': did you mean mnist?"),
        (("--methods", "predsim"), "must have a trial of what is to run, got none: add trials, or choose other ones."),
    ],
)
def test_methods_without_trials_are_not_run(
    words: tuple[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "study.json"
    trials.save(file, [{"method": "backprop", "dataset": "digits", "number": 0, "validation_accuracy": 0.5}])
    monkeypatch.setattr(sys, "argv", ["tuning.py", "run", str(file), *words])
    with pytest.raises(SystemExit, match=re.escape(said)):
        tuning.main()


def test_draws_cover_the_range_of_every_setting() -> None:
    recipe = recipe_from({"optimiser": {"learning_rate": 0.01}})
    found = draws("cifar10/x", recipe, 10)
    assert found == draws("cifar10/x", recipe, 10)
    assert found != draws("cifar10/y", recipe, 10)
    for key, width in (("network.dropout", 0.04), ("options.label_smoothing", 0.02)):
        values = sorted(settings[key] for settings in found)
        assert all(part * width <= value <= (part + 1) * width + 1e-3 for part, value in enumerate(values)), key
    rates = sorted(math.log2(settings["optimiser.learning_rate"] / 0.01) for settings in found)
    assert all(abs(rate - (0.4 * part - 1.8)) <= 0.25 for part, rate in enumerate(rates))
    mixed = [settings["options.mixup"] for settings in found]
    assert mixed.count(0.0) == 5
    assert all(0.1 <= value <= 0.4 for value in mixed if value)
    assert {settings["data.cutout"] for settings in found} == set(CUTOUTS)
    decays = [settings["optimiser.weight_decay"] for settings in found]
    assert 10**-2.5 <= min(decays) < 10**-2.2
    assert 10**-0.8 < max(decays) <= 10**-0.5 + 0.01


@pytest.mark.parametrize("ending", ARMS)
@pytest.mark.parametrize("base", ["cifar10/mlp", "cifar10/cnn"])
def test_every_drawn_setting_has_an_effect_on_every_arm(base: str, ending: str, small_images: DataSet) -> None:
    small = {"network.widths": [8, 8], "network.embedding": 4, "training.batch_size": 32, "training.epochs": 2}
    if base == "cifar10/cnn":
        small |= {"network.pools": [1, 2], "network.head": 4}
    off = {"network.dropout": 0.0, "options.label_smoothing": 0.0, "options.mixup": 0.0, "data.cutout": 0}
    off |= {"optimiser.weight_decay": 0.0, "training.precision": "float32", "prediction.weights": []}
    plain = arm(changed(recipe_from(shipped_recipe(f"best/{base}")), small | off), ARMS[ending])

    def loss(changes: dict[str, float]) -> list[float | None]:
        _, trainer = set_up(changed(plain, changes), small_images, torch.device("cpu"))
        return run_to_end(trainer).history[-1].losses

    before = loss({})
    assert loss({}) == before
    for key in draws(base, plain, 1)[0]:
        value = {"data.cutout": 8, "optimiser.learning_rate": 0.1}.get(key, 0.3)
        assert loss({key: value}) != before, key


def test_results_that_other_programs_stored_meanwhile_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    one, two = ({"study": "digits/x", "number": number, "validation_accuracy": None} for number in range(2))
    trials.save(file, [{**one, "validation_accuracy": 0.5}, two, {**one, "number": 2}])
    trials.record(file, two, {"validation_accuracy": 0.6, "readout": "mean"})  # by another program
    trials.record(file, two, {"validation_accuracy": 0.7})
    assert [trial["validation_accuracy"] for trial in best.read(file)] == [0.5, 0.7, None]


def test_large_networks_take_half_of_the_slots() -> None:
    slots = [1, 3, 3, 1, 1]
    found = sorted(trials.results_of(divmod, [(number, 2) for number in range(5)], slots, jobs=6, seconds=60))
    assert found == [(number, divmod(number, 2)) for number in range(5)]
    assert not list(trials.results_of(divmod, [(1, 2)], [1], jobs=1, seconds=0)), "the time was over"


CALLS = """
from trials import results_of
call = f"import time; print('begun', flush=True); time.sleep({sys.argv[1]})"
for number, _ in results_of(exec, [(call,)] * 4, [1] * 4, 2, 60):
    print("stored", number, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups")
@pytest.mark.parametrize(("signals", "seconds"), [([signal.SIGINT], 2), ([signal.SIGTERM] * 2, 200)])
def test_results_of_running_calls_are_stored_at_the_first_signal(signals: list[signal.Signals], seconds: int) -> None:
    """A second signal ends them at once. Ctrl-C is sent to the whole group of processes."""
    paths = f"import sys\nsys.path[:0] = [{str(Path(trials.__file__).parent)!r}]"
    program = Program(paths + CALLS, seconds, new_session=True)
    assert program.stdout.readline() == "begun\n"
    for number in signals:
        if number == signal.SIGINT:
            os.killpg(program.pid, number)
        else:
            program.send_signal(number)
        time.sleep(0.2)
    out, err = program.communicate()
    assert program.returncode == 130, err
    begun = 1 + out.splitlines().count("begun")
    assert begun <= 2
    assert out.count("stored") == (begun if len(signals) == 1 else 0)
    (line,) = err.splitlines()
    assert line.startswith("Interrupted: the runs that have begun are finished and stored")


def test_a_killed_process_ends_the_program_with_a_sentence() -> None:
    kill = ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)",)
    with pytest.raises(SystemExit, match=r"A process was killed, .*: run the same command again") as end:
        list(trials.results_of(exec, [kill, ("pass",), ("pass",)], [1] * 3, jobs=1, seconds=60))
    assert end.value.__context__ is None


def test_the_tables_show_a_dash_for_what_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        {"method": method, "dataset": dataset, "network": "4x800", "recipe": "tuned", "mean": mean, "std": None}
        for method, dataset, mean in (
            ("backprop", "cifar10", 57.5),
            ("backprop", "cifar100", 28.0),
            ("predsim", "cifar100", 29),
        )
    ]
    assert results.table1_in_short(cells).splitlines()[2:] == [
        "| Backpropagation | 57.50 | 28.00 |", "| predsim | – | 29.00 |",
    ]  # fmt: skip
    study = [
        {"method": method, "dataset": dataset, "validation_accuracy": accuracy}
        for method, dataset, accuracy in (
            ("backprop", "cifar10", 0.5), ("backprop", "cifar100", None), ("predsim", "cifar100", 0.2),
            ("predsim", "cifar100", None), ("sffa", "cifar10", None),
        )
    ]  # fmt: skip
    monkeypatch.setattr(results, "_read", lambda name: study)
    assert results.study().splitlines()[2:] == ["| Backpropagation | 50.00 (1) | – |", "| predsim | – | 20.00 (1) |"]


@pytest.mark.parametrize("method", tuning.SPACES)
def test_every_search_space_is_of_the_methods_settings(method: str) -> None:
    for dataset in tuning.DATASETS:
        for bound in (0, 1):
            params = {key: limits[bound] for key, limits in tuning.SPACES[method].items()}
            recipe = tuning.trial_recipe({"method": method, "dataset": dataset, "epochs": 3, "params": params})
            assert {key: dotted(recipe)[key] for key in params} == params
    for key, (low, high, _) in tuning.SPACES[method].items():
        assert low <= tuning.FIRST[key] <= high


def test_both_implementations_of_predsim_learn_the_same(tmp_path: Path) -> None:
    changes = {
        "dataset": "digits", "network.widths": [64, 64], "training.epochs": 6, "training.batch_size": 64, "data.crop": 0,
        "data.flip": False, "optimiser.learning_rate": 0.002,
    }  # fmt: skip
    base = changed(recipe_from(tomllib.loads(predsim.RECIPE.read_text())), changes)
    file = tmp_path / "predsim.json"
    predsim.run(file, base, seeds=2, jobs=1, device="cpu", seconds=600)
    rows = best.read(file)
    assert {(row["code"], row["seed"]) for row in rows} == {(code, seed) for code in predsim.CODES for seed in (0, 1)}
    by_code = {code: [row["test_accuracy"] for row in rows if row["code"] == code] for code in predsim.CODES}
    assert min(map(min, by_code.values())) > 0.9
    assert abs(sum(by_code["package"]) - sum(by_code["plain"])) / 2 < 0.03
    predsim.run(file, base, seeds=2, jobs=1, device="cpu", seconds=600)
    assert best.read(file) == rows, "nothing is trained again"
    section = predsim.section(rows)
    assert section.rstrip().splitlines()[-1].startswith("| 6 | 9")
    assert predsim.section([]) == ""


def test_the_rerun_has_the_losses_of_the_method() -> None:
    torch.manual_seed(0)
    layer = predsim.LocalLayer(12, 16, 3)
    rows, y = torch.randn(8, 12), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    activation = layer.body(rows)
    expected = 0.01 * competitive_loss(layer.classifier(activation), y)
    expected += 0.99 * centred_similarity_loss(layer.features(activation), y, 3)
    torch.testing.assert_close(layer.loss(activation, y, 3), expected)


def test_crops_are_shifted_and_mirrored_images() -> None:
    torch.manual_seed(0)
    image = torch.arange(1.0, 13).view(1, 1, 3, 4)
    wide = torch.nn.functional.pad(image, (1, 1, 1, 1))
    windows = [wide[..., top : top + 3, left : left + 4] for top in range(3) for left in range(3)]
    possible = {tuple(one.flatten().tolist()) for window in windows for one in (window, window.flip(3))}
    found = {tuple(one.flatten().tolist()) for one in predsim.crop_and_flip(image.expand(500, -1, -1, -1), 1, flip=True)}
    assert found == possible
