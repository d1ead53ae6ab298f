"""FAUST with a part of the representatives in each step: those of the classes in the batch, or some of each class."""

import pytest
import torch
from torch import Tensor

from faustnet.errors import FaustnetError
from faustnet.losses import batch_tuplet_loss, reference_tuplet_loss
from faustnet.methods import METHODS
from faustnet.nn.architectures import NetworkSettings
from faustnet.testing import _source, check_method

BATCH, VALUES = 12, 5


def in_loops(embedding: Tensor, labels: list[int], count: int, scale: float, smoothing: float, own: list[float]) -> Tensor:
    """The mean loss of one layer: each anchor against the references of every class in the batch, class by class."""
    anchors, references = embedding[: len(labels)], embedding[len(labels) :].unflatten(0, (len(labels), count))
    classes = sorted(set(labels))
    losses = []
    for at, anchor in enumerate(anchors):
        sums = []
        for number in classes:
            first = labels.index(number)
            sums.append(sum(torch.exp(-scale * (anchor - row).square().sum()) for row in references[first]))
        whole = sum(sums)
        targets = [smoothing / len(classes)] * len(classes)
        targets[classes.index(labels[at])] += (1 - smoothing) * own[at]
        targets[classes.index(labels[(at + 1) % len(labels)])] += (1 - smoothing) * (1 - own[at])
        losses.append(-sum(target * torch.log(part / whole) for target, part in zip(targets, sums, strict=True)))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize(("count", "smoothing"), [(1, 0.0), (1, 0.2), (3, 0.0), (3, 0.1)])
def test_the_loss_in_the_batch_and_its_gradient_are_those_of_plain_loops(count: int, smoothing: float, mixes: bool) -> None:
    torch.manual_seed(0)
    embedding = torch.randn(2, BATCH + BATCH * count, VALUES, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(900, 906, (2, BATCH))
    shares = torch.rand(BATCH, dtype=torch.float64) if mixes else None
    own = [1.0] * BATCH if shares is None else shares.tolist()
    found = batch_tuplet_loss(embedding, labels, 0.3, smoothing, shares)
    pairs = zip(embedding, labels.tolist(), strict=True)
    expected = torch.stack([in_loops(layer, names, count, 0.3, smoothing, own) for layer, names in pairs])
    torch.testing.assert_close(found, expected)
    weights = torch.tensor([0.7, 1.9], dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((loss * weights).sum(), embedding)[0] for loss in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_a_batch_with_one_image_of_every_class_is_compared_with_all_classes() -> None:
    torch.manual_seed(0)
    embedding = torch.randn(BATCH + BATCH, VALUES, dtype=torch.float64)
    labels = torch.randperm(BATCH)
    ordered = torch.cat([embedding[:BATCH], embedding[BATCH:][labels.argsort()]])
    found = batch_tuplet_loss(embedding, labels, 0.3, 0.1)
    torch.testing.assert_close(found, reference_tuplet_loss(ordered, labels, BATCH, 0.3, 0.1))


def test_rows_that_do_not_fit_the_batch_are_refused() -> None:
    with pytest.raises(FaustnetError, match="B \\+ B · K rows for B labels, with K at least 1, got 20 rows for 12 labels"):
        batch_tuplet_loss(torch.zeros(20, VALUES), torch.zeros(BATCH, dtype=torch.long), 0.3)


@pytest.mark.parametrize(
    "options",
    [
        {"classes_per_step": "batch"},
        {"classes_per_step": "batch", "representatives": 3, "representatives_per_step": 2, "mixup": 0.3},
        {"representatives": 4, "representatives_per_step": 1, "label_smoothing": 0.1},
    ],
)
@pytest.mark.parametrize("name", ["faust-representative", "deep-supervision"])
def test_all_schedules_train_with_a_part_of_the_representatives(name: str, options: dict[str, object]) -> None:
    check_method(METHODS[name], options=options)


def rows_of(y: Tensor, **options: object) -> Tensor:
    """Return the first pixel of the rows after the anchors, with representatives that contain their own number."""
    method_class = METHODS["faust-representative"]
    network = method_class.make_network((1, 8, 8), 4, NetworkSettings(widths=(16,), embedding=8))
    method = method_class(network, 4, **options).double()
    method.start(_source())
    method.compared = torch.arange(4.0 * method.count).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    return method.rows(torch.zeros(len(y), 1, 8, 8), y)[len(y) :, 0, 0, 0]


def test_each_image_brings_the_representatives_of_its_class() -> None:
    assert rows_of(torch.tensor([2, 0, 2]), representatives=2, classes_per_step="batch").tolist() == [4, 5, 0, 1, 4, 5]


def test_other_representatives_of_each_class_are_drawn_in_every_step() -> None:
    drawn = torch.stack([rows_of(torch.tensor([1]), representatives=5, representatives_per_step=2) for _ in range(60)])
    owners = drawn.div(5, rounding_mode="floor")
    assert (owners == torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).all()
    assert (drawn[:, ::2] != drawn[:, 1::2]).all()  # of one class, never the same twice
    assert drawn.unique().tolist() == list(range(20))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"representatives_per_step": 2}, "representatives_per_step must be from 1 to representatives .1., or 0 for all"),
        ({"representatives_per_step": -1}, "or 0 for all of them, got -1"),
        ({"classes_per_step": "some"}, "classes_per_step must be all or batch, got 'some'"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(FaustnetError, match=sentence):
        rows_of(torch.tensor([0]), **options)
