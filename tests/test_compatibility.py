"""What earlier versions wrote is read as it was then: run folders, model files, checkpoints, pickles, stored results."""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import faustnet as package
from conftest import Answer
from faustnet.data import load_data
from faustnet.reproduce import (
    ablation,
    best,
    class_counts,
    few_shot,
    incremental,
    new_classes,
    rejection,
    representatives,
    table1,
)
from faustnet.runs.folder import Run
from faustnet.runs.recipes import changed, recipe_from, shipped_recipe
from faustnet.runs.validation import is_environment, is_epoch

VERSION = Path(__file__).parent / "fixtures" / "0.1"
RESULTS = Path(__file__).parents[1] / "results"
FINISHED = [
    "dense", "convolutional", "residual", "prototypes", "added-class", "backprop", "greedy", "forward-forward", "trifecta",
    "uninterrupted-sequential", "uninterrupted-wavefront", "uninterrupted-greedy",
]  # fmt: skip
MODEL_FILES = ["model-file", "estimator-model"]
INTERRUPTED = ["sequential", "wavefront", "greedy"]
ESTIMATORS = ["estimator-images", "estimator-table"]
TABLES = [
    ablation.TABLE, best.TABLE, class_counts.TABLE, few_shot.TABLE, incremental.TABLE, new_classes.TABLE, rejection.TABLE,
    representatives.TABLE, table1.TABLE,
]  # fmt: skip
MEASURED = [table for table in TABLES if (RESULTS / f"{table.name}.json").exists()]


def expected(name: str) -> dict[str, Tensor]:
    return load_file(VERSION / "expected" / f"{name}.safetensors")


def pixels() -> Tensor:
    """The 20 images whose scores were stored."""
    return load_data("digits").test.all_pixels[:20]


@pytest.mark.parametrize("name", [*FINISHED, *MODEL_FILES])
def test_a_stored_model_predicts_as_before(name: str) -> None:
    path = VERSION / (name if name in FINISHED else f"{name}.safetensors")
    model, wanted = package.load(path, device="cpu"), expected(name)
    # A score is the root of a difference of large numbers, which every kind of processor rounds in its own way.
    torch.testing.assert_close(model.scores(pixels()).float(), wanted["scores"], rtol=1e-5, atol=1e-4)
    names = [model.class_names[number] for number in wanted["classes"].tolist()]
    assert [one.class_name for one in model.predict(pixels())] == names
    assert ("rejected" in wanted) == (model.threshold is not None)
    if "rejected" in wanted:
        assert [one.class_name == "unknown" for one in model.predict(pixels(), reject=True)] == wanted["rejected"].tolist()


@pytest.mark.parametrize("name", FINISHED)
def test_the_files_of_a_stored_run_are_read(name: str, faustnet: Callable[..., Answer]) -> None:
    run = Run.open(VERSION / name)
    assert run.finished
    assert len(run.history) == run.metrics["epochs"]
    assert run.environment["faustnet"] == "0.1.0"
    answer = faustnet("evaluate", VERSION / name, "--device", "cpu", "--json")
    assert answer.code == 0, answer.err
    (found,) = json.loads(answer.out)
    assert (found["method"], found["voters"]) == (run.recipe.method, run.metrics["voters"])
    if name != "added-class":  # whose metrics are of the classes before
        assert found["accuracy"] == pytest.approx(run.metrics["test_accuracy"], abs=0.003)


def test_an_added_class_is_kept() -> None:
    assert package.load(VERSION / "added-class", device="cpu").class_names[-1] == "rotated"


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_run_ends_at_the_weights_of_one_that_was_not(
    name: str, tmp_path: Path, faustnet: Callable[..., Answer]
) -> None:
    folder = shutil.copytree(VERSION / f"interrupted-{name}", tmp_path / "run")
    assert not Run.open(folder).finished
    answer = faustnet("train", "--resume", "--out", folder, "--device", "cpu")
    assert answer.code == 0, answer.err
    found = package.load(folder, device="cpu").method.state_dict()
    wanted = package.load(VERSION / f"uninterrupted-{name}", device="cpu").method.state_dict()
    torch.testing.assert_close(dict(found), dict(wanted), rtol=1e-3, atol=1e-4)
    assert len(Run(folder).history) == len(Run(VERSION / f"uninterrupted-{name}").history)
    assert Run(folder).environment["earlier"][0]["faustnet"] == "0.1.0"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.InconsistentVersionWarning")
@pytest.mark.filterwarnings("ignore:faustnet:DeprecationWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_pickled_estimator_predicts_as_before(name: str) -> None:
    estimator = pickle.loads((VERSION / f"{name}.pickle").read_bytes())
    images, wanted = pixels()[:, 0].numpy(), expected(name)
    samples = images if name == "estimator-images" else images[:, ::2, ::2].reshape(len(images), -1)
    for key, found in {
        "decision": estimator.decision_function(samples),
        "transformed": estimator.transform(samples),
    }.items():
        torch.testing.assert_close(torch.from_numpy(found).float(), wanted[key], rtol=1e-5, atol=1e-5)
    assert list(estimator.predict(samples)) == [estimator.classes_[i] for i in wanted["decision"].argmax(dim=1)]


def unordered(cells: list[dict[str, Any]]) -> list[str]:
    """The cells of a table in any order of runs and cells, which depends on when they were written."""
    plain = [{key: sorted(value) if key == "accuracies" else value for key, value in cell.items()} for cell in cells]
    return sorted(map(json.dumps, plain))


@pytest.mark.parametrize("table", MEASURED, ids=lambda table: table.name)
def test_every_stored_result_is_read_and_gives_the_stored_table(table: Any) -> None:
    """Reading refuses a result whose recipe differs from the recipe that comes with the package."""
    found = table.read(RESULTS)
    assert len(found) == len(list(RESULTS.glob(table.pattern))) > 0
    stored = json.loads((RESULTS / f"{table.name}.json").read_text(encoding="utf-8"))
    assert unordered(table.cells(found)) == unordered(stored)


def test_no_stored_result_is_left_out() -> None:
    read = {path for table in TABLES for path in RESULTS.glob(table.pattern)}
    assert read == {path for path in RESULTS.glob("*/**/*.json") if path.parent.name != "figures"}


def entries(content: Any, key: str) -> Iterator[Any]:
    """All values of a key, in nested JSON."""
    if isinstance(content, dict):
        if key in content:
            yield content[key]
        content = list(content.values())
    if isinstance(content, list):
        for value in content:
            yield from entries(value, key)


def test_every_recipe_environment_and_history_in_the_results_is_accepted() -> None:
    recipes = 0
    for path in sorted(RESULTS.rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for table in filter(lambda found: isinstance(found, dict), entries(content, "recipe")):
            recipe_from(table)
            recipes += 1
        for found in filter(lambda found: isinstance(found, dict), entries(content, "environment")):
            assert is_environment({key: value for key, value in found.items() if key != "earlier"}), path
        for history in entries(content, "history"):
            assert all(map(is_epoch, history)), path
    assert recipes >= 576


def test_every_trial_of_the_studies_is_a_recipe() -> None:
    for trial in json.loads((RESULTS / "study.json").read_text(encoding="utf-8")):
        changed(recipe_from({"method": trial["method"], "dataset": trial["dataset"]}), trial["params"])
    for trial in json.loads((RESULTS / "best-study.json").read_text(encoding="utf-8")):
        changed(recipe_from(shipped_recipe(trial["base"]) if trial["base"] else {}), trial["changes"])
