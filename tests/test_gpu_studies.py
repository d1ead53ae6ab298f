"""The studies of trained networks on a GPU: the same figures as on the CPU."""

from dataclasses import replace

import pytest
import torch

from conftest import run_to_end
from faustnet.data import DataSet, Images, load_data
from faustnet.reproduce import few_shot
from faustnet.reproduce.few_shot import FewShotJob
from faustnet.reproduce.growth import backprop_steps, faust_steps
from faustnet.reproduce.rejection import UNKNOWN, RejectionJob
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.runs.session import set_up
from faustnet.training.few_shot import RANDOM, Task

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GPU, CPU = torch.device("cuda"), torch.device("cpu")
DIGITS = load_data("digits")
FIRST = tuple("0123456")
SETTINGS = {
    "network": {"kind": "vgg", "widths": [12, 16], "pools": [1, 2], "embedding": 12, "head": 12, "length": "unit"},
    "options": {"scale": 5.0},
    "training": {"epochs": 6, "batch_size": 64},
    "optimiser": {"learning_rate": 3e-3},
    "prediction": {"mirror": True},
}


def trained(method: str, data: DataSet) -> Model:
    """Return a network that was trained on the CPU."""
    options = SETTINGS["options"] if method.startswith("faust") else {}
    model, trainer = set_up(recipe_from({**SETTINGS, "method": method, "options": options}), data, CPU)
    run_to_end(trainer)
    return model


@pytest.mark.parametrize("method", ["faust-representative", "faust-prototype", "backprop"])
def test_classes_that_come_over_time(method: str) -> None:
    model, steps = trained(method, DIGITS.only(FIRST)), backprop_steps if method == "backprop" else faust_steps
    here, there = (list(steps(model.to(device), DIGITS, (7, 9, 10), 0)) for device in (CPU, GPU))
    assert [(one["variant"], one["classes"]) for one in here] == [(one["variant"], one["classes"]) for one in there]
    for one, other in zip(here, there, strict=True):
        if one["variant"] == "fine-tuned":
            assert other["all"] > 0.6
        else:
            assert other["all"] == pytest.approx(one["all"], abs=0.01)


def shuffled(images: Images) -> Images:
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    return replace(images, pixels=images.pixels.flatten(1)[:, order].view_as(images.pixels))


@pytest.mark.parametrize("method", ["faust-representative", "backprop"])
def test_rejection(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UNKNOWN, "digits", "shuffled")
    monkeypatch.setattr("faustnet.reproduce.rejection.HELD_OUT", 200)
    strange = DataSet("shuffled", DIGITS.class_names, shuffled(DIGITS.train), shuffled(DIGITS.test))
    model, job = trained(method, DIGITS), RejectionJob("digits", method, 0)
    here, there = (
        job.measure(model.to(device), lambda name: DIGITS if name == "digits" else strange) for device in (CPU, GPU)
    )
    assert [one["score"] for one in here["scores"]] == [one["score"] for one in there["scores"]]
    for one, other in zip(here["scores"], there["scores"], strict=True):
        assert other["auroc"] == pytest.approx(one["auroc"], abs=0.01)


@pytest.mark.parametrize("method", ["faust-representative", "faust-prototype", "backprop"])
def test_episodes_of_few_images(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_shot, "TASKS", (Task(5, 1, 5, RANDOM), Task(5, 5, 5, RANDOM)))
    monkeypatch.setattr(few_shot, "check_shipped", lambda name: None)
    monkeypatch.setattr(few_shot, "readout_of", lambda method: {})
    model, job = trained(method, DIGITS), FewShotJob(method, 40, 0)
    here, there = (job.measure(model.to(device), lambda name: DIGITS) for device in (CPU, GPU))
    for part in ("tasks", "pixels"):
        for one, other in zip(here[part], there[part], strict=True):
            assert other["mean"] == pytest.approx(one["mean"], abs=0.02)
            assert other["mean"] > 0.5
