"""Warnings about a training that goes wrong, and the table in which they appear."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import faustnet as package
from conftest import Answer, small_method
from faustnet.data import DataSet
from faustnet.errors import FaustnetWarning
from faustnet.runs.columns import Columns
from faustnet.training.diagnosis import Diagnosis
from faustnet.training.history import Epoch

Command = Callable[..., Answer]
TRAIN = ["train", "--widths", "32,24", "--batch-size", "32", "--device", "cpu"]
EVEN = torch.arange(1000) % 10
LN_10 = math.log(10)


def warned(answer: Answer) -> list[str]:
    return [line.removeprefix("warning: ") for line in answer.err.splitlines() if line.startswith("warning: ")]


def test_a_good_training_gets_no_warning(faustnet: Command, tmp_path: Path) -> None:
    assert warned(faustnet(*TRAIN, "--epochs", "4", "--out", tmp_path / "run")) == []


def test_a_learning_rate_that_is_far_too_small(faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet(*TRAIN, "--epochs", "6", "--learning-rate", "1e-9", "--out", tmp_path / "run")
    (sentence,) = warned(answer)
    assert sentence.startswith("The loss has not changed in 3 epochs and is still ")
    assert sentence.endswith(": try a learning rate above 1e-09.")


def test_a_learning_rate_that_is_far_too_large(faustnet: Command, tmp_path: Path) -> None:
    words = ["--epochs", "3", "--method", "backprop", "--learning-rate", "1e6", "--set", 'optimiser.name="sgd"']
    answer = faustnet(*TRAIN, *words, "--out", tmp_path / "run")
    assert answer.code == 0
    (sentence,) = warned(answer)
    assert sentence.startswith("The loss has grown from 2.")
    assert sentence.endswith(" in epoch 1: try a learning rate below 1e+06, or a warm-up.")
    heading, *epochs = answer.err.splitlines()[3:]
    assert heading.split() == ["epoch", "output", "output", "seconds"]
    lines = [line for line in epochs if "/3 " in line]
    assert [len(line.split()) for line in lines] == [4, 4, 4]
    assert {len(line) for line in lines} == {len(heading)}


def test_labels_that_do_not_belong_to_the_images(digits: DataSet, faustnet: Command, tmp_path: Path) -> None:
    mixed = np.random.default_rng(0).permutation(digits.train.labels.numpy())
    parts = {"x_train": digits.train.all_pixels.numpy(), "y_train": mixed}
    parts |= {"x_test": digits.test.all_pixels.numpy(), "y_test": digits.test.labels.numpy()}
    np.savez(tmp_path / "mixed.npz", **parts)
    words = ["--dataset", tmp_path / "mixed.npz", "--method", "backprop", "--epochs", "12", "--seed", "1"]
    (sentence,) = warned(faustnet(*TRAIN, *words, "--out", tmp_path / "run"))
    assert "is that of guessing among 10 classes: try another learning rate than 0.001" in sentence
    assert sentence.endswith("and check that the labels belong to the samples.")


def test_a_trainer_warns_of_a_loss_that_stays_at_that_of_guessing(digits: DataSet) -> None:
    method = small_method("backprop")
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.zero_()
    x, y = digits.train.all_pixels.float() / 255, digits.train.labels
    trainer = package.Trainer(method, train=(x, y), optimiser=lambda p: torch.optim.SGD(p, 1e-4), batch_size=32)
    with pytest.warns(FaustnetWarning, match=r"The loss stays at 2.303, .* among 10 classes \(ln 10\): try") as found:
        trainer.fit(4, verbose=False)
    assert len(found) == 1
    assert found[0].filename == __file__, "the line of the user's is named"


def test_the_estimator_warns(digits: DataSet) -> None:
    x, y = digits.train.all_pixels[:, 0].numpy(), digits.train.labels.numpy()
    classifier = package.FaustClassifier((16,), epochs=5, learning_rate=1e-12, random_state=0, batch_size=32)
    with pytest.warns(FaustnetWarning, match="The loss has not changed in 3 epochs"):
        classifier.fit(x, y)


def history(*losses: float | tuple[float | None, ...], accuracy: float | list[float] | None = None) -> list[Epoch]:
    """Epochs with these losses of one layer, or of several, and an accuracy."""
    found = []
    for number, loss in enumerate(losses):
        each = list(loss) if isinstance(loss, tuple) else [loss]
        one = accuracy[number] if isinstance(accuracy, list) else accuracy
        found.append(Epoch(number + 1, each, [], [], one, 0.001, 1.0))
    return found


def warning(epochs: list[Epoch], labels: torch.Tensor = EVEN, batches: int = 100, start: float = LN_10) -> str | None:
    names = [f"layer {number + 1}" for number in range(len(epochs[0].losses))]
    diagnosis = Diagnosis(names, [start] * len(names), labels, 10)
    return diagnosis.warning(epochs, batches, 0.001)


def test_an_exploding_loss_is_found_in_any_layer_and_epoch() -> None:
    assert "The loss of layer 2 has grown from 2.303 before" in (warning(history((1.0, 2.0), (0.5, 1e12))) or "")
    assert warning(history(2.0, 20.0, accuracy=0.3)) is None, "an unsteady loss has not exploded"
    assert warning(history(9.0), start=0.001) is None, "a trained model starts with a small loss"
    assert warning(history(-200.0)) is not None, "losses may be negative"


@pytest.mark.parametrize(
    ("accuracies", "labels", "expected"),
    [
        ([0.1, 0.1, 0.1], EVEN, True),
        ([0.109, 0.09, 0.095], EVEN, True),
        ([0.1, 0.1, 0.2], EVEN, False),
        ([0.2, 0.1, 0.1], EVEN, False),
        ([0.12, 0.13, 0.14], EVEN, False),
        ([0.7, 0.7, 0.7], torch.cat([torch.zeros(700), torch.ones(300)]).long(), True),  # always the larger class
        ([0.69, 0.71, 0.72], torch.cat([torch.zeros(700), torch.ones(300)]).long(), False),
        ([0.1, 0.1, 0.1], EVEN[:40], False),  # too few to tell
    ],
)
def test_the_accuracy_of_guessing(accuracies: list[float], labels: torch.Tensor, expected: bool) -> None:
    found = warning(history(2.0, 1.5, 1.0, accuracy=accuracies), labels)
    assert ("that of guessing among 10 classes" in (found or "")) is expected


def test_warnings_wait_for_enough_batches_and_epochs() -> None:
    assert warning(history(LN_10, LN_10)) is None
    assert warning(history(LN_10, LN_10, LN_10, accuracy=0.1), batches=30) is None
    assert warning(history(LN_10, LN_10, LN_10, LN_10, accuracy=0.1), batches=30) is not None


def test_the_loss_of_guessing_counts_only_without_a_better_accuracy() -> None:
    still = (2.31, 2.29, 2.305)
    assert "stays at 2.303" in (warning(history(*still)) or "")
    assert "stays at 2.303" in (warning(history(*still, accuracy=0.1)) or "")
    assert warning(history(2.32, 2.31, 2.29, accuracy=0.4)) is None, "it has begun to learn"
    assert warning(history((2.3, 1.5), (2.3, 1.2), (2.3, 1.0))) is None, "another layer learns"


def test_a_loss_that_changes_little_is_no_mistake_if_it_changed_before_or_was_trained_before() -> None:
    assert warning(history(1.5, 1.0, 0.5, 0.5, 0.5, 0.5, accuracy=0.9)) is None
    assert warning(history(0.0, 0.0, 0.0, accuracy=0.9)) is None
    assert warning(history(0.5, 0.5, 0.5, accuracy=0.9)) is not None
    diagnosis = Diagnosis(["layer 1"], [0.5], EVEN, 10)
    diagnosis.from_trained = True
    assert diagnosis.warning(history(0.5, 0.5, 0.5, accuracy=0.9), 100, 0.001) is None


def test_layers_that_are_trained_one_after_the_other_are_looked_at_by_themselves() -> None:
    first = [(1.5, None), (1.0, None), (0.8, None)]
    assert warning(history(*first, (None, 1.5), (None, 1.5), accuracy=0.9)) is None
    assert "not changed in 3 epochs" in (warning(history(*first, *[(None, 1.5)] * 3, accuracy=0.9)) or "")


def test_a_warning_is_given_once() -> None:
    diagnosis = Diagnosis(["layer 1"], [2.0], EVEN, 10)
    epochs = history(1e9, 1e10)
    assert diagnosis.warning(epochs[:1], 100, 0.001)
    assert diagnosis.warning(epochs, 100, 0.001) is None


@pytest.mark.parametrize("loss", [0.5, -12345.678, 1e12, -1e300, math.nan, -math.inf, None])
@pytest.mark.parametrize(("layers", "epochs"), [(1, 9), (3, 100_000), (120, 20)])
def test_columns_never_collide(loss: float | None, layers: int, epochs: int) -> None:
    names = [f"layer {number + 1}" for number in range(layers)]
    columns = Columns(names, names, epochs)
    titles, heading = columns.heading("test accuracy, %")
    line = columns.line(Epoch(epochs, [loss] * layers, [1.0] * layers, [], 1.0, 0.001, 1234567.8))
    assert len(heading) == len(line)
    together = layers > 1
    assert len(line.split()) == 2 + 2 * layers + together
    assert heading.replace("layer ", "").split() == [
        "epoch", *(name.split()[1] for name in names * 2), *["all"] * together, "seconds"
    ]  # fmt: skip
    ends = [place for place in range(len(line)) if line[place] != " " and line[place + 1 : place + 2] in ("", " ")]
    assert all(heading[end] != " " for end in ends), "numbers end where their headings do"
    assert titles.split() == ["loss", "test", "accuracy,", "%"]
