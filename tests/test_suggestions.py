"""What is suggested for names that other programs use, and the spellings that still work."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import typer

import faustnet as package
from conftest import Answer
from faustnet.cli import app
from faustnet.data import DataSet
from faustnet.errors import FaustnetError, unknown
from faustnet.methods import METHODS
from faustnet.runs.recipes import recipe_from
from faustnet.system.devices import choose_device

Command = Callable[..., Answer]
FAST = ["--widths", "16", "--embedding", "8", "--epochs", "1", "--device", "cpu"]
FAUST = ", ".join(name for name in METHODS if name.startswith("faust-"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--lr", "0.1"], "There is no option --lr: did you mean --learning-rate?"),
        (["train", "--lr=0.1"], "There is no option --lr: did you mean --learning-rate?"),
        (["train", "--bs", "32"], "did you mean --batch-size?"),
        (["train", "--epoch", "3"], "There is no option --epoch: did you mean --epochs?"),
        (["train", "--gpu"], "There is no option --gpu: did you mean --device cuda?"),
        (["evaluate", "run", "--lr", "1"], "There is no option --lr: add --help to list the options."),
        (["reproduce", "table1", "--gpu"], "There is no option --gpu: did you mean --device cuda?"),
        (["compare", "a", "--with", "b", "--jsn"], "There is no option --jsn: did you mean --json?"),
        (["train", "--device", "gpu"], "got 'gpu': did you mean cuda, or mps on a Mac?"),
        (["train", "--device", "cuda:1"], "got 'cuda:1': did you mean cuda, with CUDA_VISIBLE_DEVICES to choose a GPU?"),
        (["train", "--optimizer", "sgd"], "There is no option --optimizer: did you mean --set optimiser.name=…?"),
        (["train", "--weight-decay=0.1"], "did you mean --set optimiser.weight_decay=…?"),
        (["evaluate", "run", "--optimizer", "sgd"], "There is no option --optimizer: add --help to list the options."),
        (
            ["train", "--set", "options.margin=1"],
            "options.margin is not an option of faust-representative: choose options.",
        ),
        (["train", "--set", "options.margin=1"], "options.mixup, or a method that has it, such as faust-triplet."),
        (
            ["train", "--method", "cwc", "--set", "options.scale=1"],
            "option of cwc: choose a method that has it, such as deep-s",
        ),
        (["train", "--set", "lr=0.1"], "There is no recipe key 'lr': did you mean optimiser.learning_rate?"),
        (["train", "--set", "training.lr=0.1"], "no recipe key 'training.lr': did you mean optimiser.learning_rate?"),
        (["train", "--set", "epochs=1"], "There is no recipe key 'epochs': did you mean training.epochs?"),
        (["train", "--set", "epoch=1"], "There is no recipe key 'epoch': did you mean training.epochs?"),
        (["train", "--set", "scale=1"], "There is no recipe key 'scale': did you mean options.scale?"),
        (["train", "--method", "faust"], f"'faust': did you mean {FAUST.rpartition(', ')[0]} or {FAUST.split(', ')[-1]}?"),
    ],
)
def test_a_name_of_other_programs_is_understood(words: list[str], said: str, faustnet: Command) -> None:
    answer = faustnet(*words)
    assert answer.code == 2
    assert said in answer.sentence


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"epochs": 1}, "There is no recipe key 'epochs': did you mean training.epochs?"),
        ({"digest": ""}, "did you mean data.digest or start.digest?"),
        ({"method": "backprop", "scale": 1.0}, "no recipe key 'scale': choose dataset, method, seed"),
        ({"training.epochs": 1}, "no recipe key 'training.epochs' at this place: set epochs in the section training."),
        ({"optimizer": {"lr": 1}}, "no recipe key 'optimizer': did you mean optimiser?"),
        ({"optimiser": {"lr": 1}}, "no recipe key 'optimiser.lr': did you mean optimiser.learning_rate?"),
        ({"network": {"layers": [10]}}, "no recipe key 'network.layers': did you mean network.widths?"),
    ],
)
def test_the_full_key_of_a_recipe_is_suggested(table: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(FaustnetError) as error:
        recipe_from(table)
    assert said in str(error.value)
    with pytest.raises(FaustnetError, match="There is no recipe key"):
        package.train(table, tmp_path / "run")


def test_a_device_of_other_programs_is_understood_in_python() -> None:
    with pytest.raises(FaustnetError, match=r"^device must be auto or cpu or cuda or mps, got 'GPU': did you mean cuda"):
        choose_device("GPU")


@pytest.mark.parametrize(("given", "meant"), [("faust-repr", "faust-representative"), ("mono", "mono-forward")])
def test_a_name_that_was_begun_is_completed(given: str, meant: str) -> None:
    assert str(unknown("method", given, package.methods.METHODS)) == f"There is no method {given!r}: did you mean {meant}?"


def test_every_command_takes_the_data_set_by_one_name(faustnet: Command, tmp_path: Path) -> None:
    """The old names work, and are not in help texts."""
    run = tmp_path / "run"
    assert faustnet("train", "--data", "digits", *FAST, "--out", run).code == 0
    for option in ("--dataset", "--data"):
        assert faustnet("calibrate", run, option, "digits", "--device", "cpu").code == 0
        sentence = faustnet("reproduce", "rejection", option, "emnist").sentence
        assert sentence == "faustnet: --datasets must be mnist or fashion-mnist or cifar10 or omniglot, got 'emnist'."
    assert faustnet("evaluate", run, "--data=digits", "--device", "cpu").code == 0
    group = typer.main.get_command(app)
    commands = [*group.commands.values(), *group.commands["reproduce"].commands.values()]  # type: ignore[attr-defined]
    names = {name for command in commands for parameter in command.params for name in parameter.opts if "--data" in name}
    assert names == {"--dataset", "--datasets", "--data-dir"}


def test_words_after_an_option_are_its_value(faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet("train", "--dataset", "--lr", *FAST, "--out", tmp_path / "run")
    assert "There is no data set or file '--lr'" in answer.sentence
    answer = faustnet("predict", tmp_path / "run", "--", "--lr")
    assert "is not a run" in answer.sentence


@pytest.fixture
def model(digits: DataSet, tmp_path: Path) -> package.Model:
    recipe = {"network": {"widths": [16], "embedding": 8}, "training": {"epochs": 1}}
    return package.train(recipe, tmp_path / "bytes", device="cpu").model(torch.device("cpu"))


def test_float_images_are_told_how_to_convert(model: package.Model, digits: DataSet) -> None:
    pixels = digits.test.all_pixels[:50]
    expected = model.predict(pixels)
    shares = pixels.numpy() / np.float32(255)
    with pytest.raises(FaustnetError) as error:
        model.predict(shares)
    assert str(error.value) == (
        "pixels must be uint8 from 0 to 255 for this model, got torch.float32 from 0 to 1: convert them with "
        '(255 * x).round().astype("uint8").'
    )
    x = shares
    assert model.predict((255 * x).round().astype("uint8")) == expected, "what it says helps"
    with pytest.raises(FaustnetError, match=r"convert them with \(255 \* x\)\.round\(\)\.to\(torch\.uint8\)\.$"):
        model.predict(torch.from_numpy(shares))
    with pytest.raises(FaustnetError, match=r"got torch.int64 from 0 to 255: convert them with x\.to\(torch\.uint8\)\.$"):
        model.predict(pixels.long())
    with pytest.raises(FaustnetError) as error:
        model.predict(pixels.numpy() / 255 * 16)
    assert str(error.value) == (
        "pixels must be uint8 from 0 to 255 for this model, got torch.float64 from 0 to 16: convert them with "
        '(255 / 16 * x).round().astype("uint8") if 16 is their largest possible value, or with x.astype("uint8") if that is '
        "255."
    )
    x = pixels.numpy() / 255 * 16
    assert model.predict((255 / 16 * x).round().astype("uint8")) == expected, "what it says helps"
    with pytest.raises(FaustnetError, match=r"from -1 to 1: undo the scaling of the images"):
        model.predict(2 * shares - 1)


def test_float_images_in_a_file_are_not_evaluated_as_if_they_were_black(
    model: package.Model, digits: DataSet, faustnet: Command, tmp_path: Path
) -> None:
    parts = {"x_train": digits.train, "x_test": digits.test}
    labels = {"y_train": digits.train.labels.numpy(), "y_test": digits.test.labels.numpy()}
    for factor, code in ((255, 2), (1, 0)):
        np.savez(tmp_path / "floats.npz", **{key: part.all_pixels.numpy() / factor for key, part in parts.items()}, **labels)
        answer = faustnet("evaluate", tmp_path / "bytes", "--dataset", tmp_path / "floats.npz", "--device", "cpu", "--json")
        assert answer.code == code
        if code == 0:
            assert json.loads(answer.out)[0]["accuracy"] > 0.3
        else:
            assert 'convert them with (255 * x).round().astype("uint8").' in answer.sentence
            assert "got torch.float32 from 0 to 1" in answer.sentence
