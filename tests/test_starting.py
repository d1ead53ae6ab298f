"""Runs that start from a trained model: its weights, on other data, all layers or some."""

import hashlib
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import faustnet as library
from conftest import Answer, small_method
from faustnet.data import DataSet
from faustnet.errors import FaustnetError
from faustnet.methods.start import start_from
from faustnet.nn.architectures import NetworkSettings
from faustnet.runs.folder import Run
from faustnet.runs.progress import ConsoleProgress
from faustnet.runs.session import Stopped
from faustnet.training.history import Epoch
from test_distributed import by_hand, ends

Command = Callable[..., Answer]
NETWORK = {"widths": [32, 24, 16], "embedding": 8}
EPOCHS = {"training": {"epochs": 4, "batch_size": 64}, "optimiser": {"learning_rate": 0.01}}
ONE = {"training": {"epochs": 1, "batch_size": 64}}
FIRST, LAST = range(6), range(6, 10)  # digits


def save(path: Path, digits: DataSet, numbers: range, names: list[str] | None = None) -> Path:
    """Some of the digits, as a data set in a file."""
    labels = np.array(names or [str(number) for number in numbers])
    arrays: dict[str, Any] = {}
    for part, images in (("train", digits.train), ("test", digits.test)):
        own = (images.labels >= numbers.start) & (images.labels < numbers.stop)
        arrays |= {f"x_{part}": images.pixels[own].numpy(), f"y_{part}": labels[images.labels[own] - numbers.start]}
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, digits: DataSet) -> Path:
    """A folder with data sets, and runs of two methods on the first six digits."""
    folder = tmp_path_factory.mktemp("start")
    save(folder / "first.npz", digits, FIRST)
    save(folder / "last.npz", digits, LAST)
    save(folder / "renamed.npz", digits, FIRST, list("abcdef"))
    for method in ("faust-representative", "faust-prototype"):
        library.train(
            {"dataset": str(folder / "first.npz"), "method": method, "network": NETWORK, **EPOCHS}, folder / method
        )
    return folder


def start(place: Path, out: Path, data: str = "last", method: str = "faust-representative", **about: Any) -> Run:
    layers, resume = about.pop("train_layers", []), about.pop("resume", False)
    table = {"dataset": str(place / f"{data}.npz"), **EPOCHS, **about}
    origin = {"model": str(place / method), "train_layers": layers}
    return library.train({**table, "start": origin}, out, device="cpu", resume=resume)


def weights(run: Run) -> dict[str, torch.Tensor]:
    return run.model().method.state_dict()


def changed(before: Run, after: Run) -> set[str]:
    """Names of the tensors that differ."""
    old, new = weights(before), weights(after)
    return {name for name in new if name not in old or not torch.equal(old[name], new[name])}


def layer(number: int, names: set[str]) -> set[str]:
    return {name for name in names if name.startswith(f"network.layers.{number - 1}.")}


def test_a_new_run_on_other_classes_starts_from_the_weights(place: Path, tmp_path: Path, faustnet: Command) -> None:
    answer = faustnet(
        "train", "--from", place / "faust-representative", "--dataset", place / "last.npz", "--out", tmp_path / "run",
        "--epochs", 1, "--batch-size", 64, "--device", "cpu", "--learning-rate", 1e-9,
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert f"starting from the weights of {place / 'faust-representative'}\n" in answer.err
    run, origin = Run.open(tmp_path / "run"), Run.open(place / "faust-representative")
    old, new = weights(origin), weights(run)
    for name in old:
        if name.startswith("network."):
            torch.testing.assert_close(new[name], old[name], rtol=0, atol=1e-6)
    recipe, model = run.recipe, run.model()
    assert list(recipe.network.widths) == NETWORK["widths"]
    assert model.class_names == ("6", "7", "8", "9")
    content = (origin.folder / "model.safetensors").read_bytes()
    assert (recipe.start.model, recipe.start.digest) == (str(origin.folder), hashlib.sha256(content).hexdigest())
    assert (run.folder / "start.safetensors").read_bytes() == content
    assert torch.equal(model.scaling.mean, origin.model().scaling.mean), "the weights expect images in this scaling"
    sample = {tuple(row.tolist()) for row in model.method.images.flatten(1)}
    known = run.model().source(library.data.load_data(str(place / "last.npz")).train)
    rows = {tuple(row.tolist()) for row in known.plain(torch.arange(len(known.labels))).flatten(1)}
    assert len(sample & rows) == 4, "the representatives are images of the new data"


@pytest.mark.parametrize("method", ["faust-representative", "faust-prototype", "backprop"])
def test_a_run_with_mixup_starts_on_another_number_of_classes(method: str, place: Path, tmp_path: Path) -> None:
    table = {"dataset": str(place / "first.npz"), "method": method, "options": {"mixup": 0.2}, **ONE}
    origin = library.train(table, tmp_path / "origin").folder
    recipe = {**table, "dataset": str(place / "last.npz"), "start": {"model": str(origin)}}
    assert library.train(recipe, tmp_path / "run").model().class_names == ("6", "7", "8", "9")


@pytest.mark.parametrize("schedule", ["sequential", "wavefront", "greedy"])
def test_layers_that_are_not_trained_keep_their_weights(schedule: str, place: Path, tmp_path: Path) -> None:
    training = {**EPOCHS["training"], "epochs": 1, "schedule": schedule}
    run = start(place, tmp_path / "run", train_layers=[2, 3], training=training)
    names = changed(Run.open(place / "faust-representative"), run)
    assert not layer(1, names)
    assert {name.split(".")[2] for name in names if name.startswith("network.")} == {"1", "2"}


def test_prototypes_are_kept_if_the_classes_agree_and_trained_if_they_are_new(place: Path, tmp_path: Path) -> None:
    """Also in a layer that is frozen otherwise."""
    origin = Run.open(place / "faust-prototype")
    same = start(place, tmp_path / "same", "first", "faust-prototype", train_layers=[3], **ONE)
    assert not layer(1, changed(origin, same))
    for data in ("last", "renamed"):
        other = start(place, tmp_path / data, data, "faust-prototype", train_layers=[3])
        assert {name.rsplit(".")[-1] for name in layer(1, changed(origin, other))} == {"prototypes"}
        losses = [epoch["losses"][0] for epoch in other.history]
        assert losses == sorted(losses, reverse=True), "its prototypes have been trained"


def test_the_network_of_the_model_cannot_be_changed(place: Path, tmp_path: Path, faustnet: Command) -> None:
    answer = faustnet("train", "--from", place / "faust-prototype", "--widths", "32,24", "--out", tmp_path / "run")
    assert answer.sentence == (
        f"faustnet: network.widths must be [32, 24, 16], as in the model to start from, {place / 'faust-prototype'}, got "
        "[32, 24]: leave it out."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"train_layers": [4]}, r"train_layers must be different numbers from 1 to 3, got \[4\]"),
        ({"train_layers": [0]}, r"start\.train_layers must be different layer numbers from 1, got \[0\]"),
        ({"data": "digits"}, "The data must be images of 1×8×8, like those of the model to start from, got images of 1×4×4"),
        (
            {"data": "floats"},
            r"Images must be pixels from 0 to 255 \(uint8\), like those of the model .* got floats: convert them, for "
            r"example with \(255 \* x\)\.round\(\)\.astype\(numpy\.uint8\)\.",
        ),
        ({"method": "nothing"}, "start.model must be a run folder or a model file, but there is no "),
    ],
)
def test_what_does_not_fit_is_refused(about: dict[str, Any], said: str, place: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 4
    for name, images in (
        ("digits", rng.integers(0, 255, (40, 4, 4), np.uint8)),
        ("floats", rng.random((40, 8, 8), np.float32)),
    ):
        np.savez(place / f"{name}.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    with pytest.raises(FaustnetError, match=said):
        start(place, tmp_path / "run", **about)
    assert not (tmp_path / "run").exists()


def test_another_method_takes_the_weights_that_fit(place: Path, tmp_path: Path) -> None:
    table = {"dataset": str(place / "first.npz"), "method": "backprop", **EPOCHS}
    other = library.train({**table, "start": {"model": str(place / "faust-representative")}}, tmp_path / "backprop")
    assert other.metrics["test_accuracy"] > 0.8


def test_layers_without_a_model_are_refused(faustnet: Command) -> None:
    answer = faustnet("train", "--train-layers", "1")
    assert answer.sentence.startswith("faustnet: start.digest and start.train_layers need start.model")


def test_a_run_is_resumed_continued_and_repeated_when_the_model_is_gone(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faustnet: Command
) -> None:
    origin = shutil.copytree(place / "faust-prototype", tmp_path / "faust-prototype")
    shutil.copy(place / "last.npz", tmp_path)
    whole = start(tmp_path, tmp_path / "whole", method="faust-prototype", train_layers=[2, 3])
    show = ConsoleProgress.epoch

    def stop(self: ConsoleProgress, epoch: Epoch) -> None:
        show(self, epoch)
        if epoch.epoch == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(ConsoleProgress, "epoch", stop)
        with pytest.raises(Stopped):
            start(tmp_path, tmp_path / "parts", method="faust-prototype", train_layers=[2, 3])
    shutil.rmtree(origin)
    parts = start(tmp_path, tmp_path / "parts", method="faust-prototype", train_layers=[2, 3], resume=True)
    assert not changed(whole, parts)
    assert faustnet("train", "--resume", "--out", tmp_path / "parts", "--epochs", 5, "--device", "cpu").code == 0
    longer = Run.open(tmp_path / "parts")
    moved = changed(whole, longer)
    assert {name.rsplit(".")[-1] for name in layer(1, moved)} == {"prototypes"}, "still frozen"
    assert layer(2, moved)
    repeat = ["--recipe", tmp_path / "whole" / "recipe.toml", "--out", tmp_path / "again", "--device", "cpu"]
    assert "start.model must be a run folder or a model file, but there is no" in faustnet("train", *repeat).sentence
    assert faustnet("train", *repeat, "--from", tmp_path / "whole" / "start.safetensors").code == 0
    assert not changed(whole, Run.open(tmp_path / "again"))


def test_a_model_that_has_changed_since_is_refused(place: Path, tmp_path: Path, faustnet: Command) -> None:
    run = start(place, tmp_path / "run")
    answer = faustnet(
        "train", "--recipe", run.folder / "recipe.toml", "--from", place / "faust-prototype", "--out", tmp_path / "other"
    )
    assert "start.digest must be" in answer.sentence
    assert answer.sentence.endswith("restore the file, which has changed, or leave out start.digest.")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("parallel", ["data", "layers"])
def test_several_ranks_start_from_a_model_and_keep_frozen_layers(parallel: str, place: Path, tmp_path: Path) -> None:
    words = ["train", "--from", place / "faust-prototype", "--dataset", place / "last.npz", "--train-layers", "2,3"]
    words += [
        "--epochs",
        4,
        "--learning-rate",
        0.01,
        "--batch-size",
        64,
        "--out",
        tmp_path / "ranks",
        "--parallel",
        parallel,
    ]
    with by_hand(2, *words) as started:
        assert [code for code, _ in ends(started)] == [0, 0]
    alone = start(place, tmp_path / "alone", method="faust-prototype", train_layers=[2, 3])
    found = weights(Run.open(tmp_path / "ranks"))
    for name, tensor in weights(alone).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-3, msg=name)


def test_images_of_a_folder_are_resized_to_those_of_the_model(place: Path, tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in ("light", "dark"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(30):
            pixels = rng.integers(0, 120, (20, 12, 3)) + 120 * (name == "light")
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "data" / name / f"{number}.png")
    table = {"dataset": str(tmp_path / "data"), "training": {"epochs": 2, "batch_size": 16}}
    run = library.train({**table, "start": {"model": str(place / "faust-prototype")}}, tmp_path / "run")
    assert run.model().shape == (1, 8, 8)


def test_the_function_copies_what_fits_and_says_what_does_not() -> None:
    trained = small_method("faust-prototype", seed=0)
    other = small_method("faust-prototype", seed=1, prototypes=2)
    anew = start_from(other, trained, [2])
    assert {name for name in anew if name.startswith("network.")} == {f"network.layers.{i}.prototypes" for i in (0, 1)}
    for name, parameter in other.named_parameters():
        if name not in anew:
            assert torch.equal(parameter, trained.state_dict()[name])
        assert parameter.requires_grad == (name in anew or name.startswith("network.layers.1."))
    with pytest.raises(FaustnetError, match="Layer 1 cannot be frozen, because no trained weight fits it"):
        start_from(small_method("faust-prototype", NetworkSettings((30, 48, 48), 16)), trained, [2, 3])
    with pytest.raises(FaustnetError, match="None of the weights of the trained faust-prototype fit this faust-prototype"):
        start_from(small_method("faust-prototype", NetworkSettings((30, 31), 16)), trained)
