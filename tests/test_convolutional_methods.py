"""CwC and the Trifecta: their layers, losses and gradients, and that they learn."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from conftest import Answer, run_to_end, small_method, started
from faustnet.data import Augmentation, ImageSource, Scaling, load_data
from faustnet.errors import FaustnetError
from faustnet.methods import build
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.bodies import GoodnessConvBody
from faustnet.nn.layers import Layer
from faustnet.nn.structure import as_vectors
from faustnet.runs.folder import Run
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import evaluating
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.settings import TrainingSettings
from test_wavefront import assert_same, stop_after

CLASSES = NetworkSettings((20, 30, 40), kind="vgg", pools=(1, 3))
LABELS = NetworkSettings((10, 12, 14, 16), kind="vgg", pools=(1, 3))


def batch(source: ImageSource, size: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(size)
    return source.plain(index), source.labels[index]


def norm(pictures: Tensor) -> Tensor:
    flat = pictures.transpose(0, 1).flatten(1)
    mean, variance = flat.mean(dim=1), flat.var(dim=1, correction=0)
    return (pictures - mean[:, None, None]) / (variance + 1e-5)[:, None, None].sqrt()


def by_hand(layer: Layer, pictures: Tensor, groups: int) -> Tensor:
    """Compute a layer group by group."""
    body = layer.body
    assert isinstance(body, GoodnessConvBody)
    if body.norm_first:
        pictures = norm(pictures)
    pairs = zip(pictures.chunk(groups, dim=1), body.convolution.weight.chunk(groups), strict=True)
    made = torch.cat([functional.conv2d(part, weight, padding=1) for part, weight in pairs], dim=1).relu()
    if body.pool:
        made = made.unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(4, 5))
    return made if body.norm_first else norm(made)


def test_cwcs_loss_and_scores_are_those_of_every_classs_own_channels(source: ImageSource) -> None:
    """Computed by loops over images, layers and classes."""
    method = started("cwc", source, CLASSES).double()
    x, y = batch(source, 9)
    pictures = x.double()
    losses, scores = torch.cat(list(method.losses(pictures, y))), method.scores(pictures)
    for number, layer in enumerate(method.network):
        pictures = by_hand(layer, pictures, groups=10 if number == 1 else 1)
        expected = 0.0
        for image, own, found in zip(pictures, y.tolist(), scores[number], strict=True):
            share = len(image) // 10
            by_class = [image[c * share : (c + 1) * share].square().mean() for c in range(10)]
            torch.testing.assert_close(found, torch.stack(by_class))
            expected -= torch.log(by_class[own].exp() / sum(g.exp() for g in by_class)).item() / 9
        assert losses[number].item() == pytest.approx(expected, rel=1e-9)
    assert method.forward_passes == 1


def test_cwc_divides_the_units_of_dense_layers_among_the_classes(source: ImageSource) -> None:
    method = started("cwc", source, NetworkSettings((30, 20)))
    x, _ = batch(source, 4)
    for activity, scores in zip(method.network.embeddings(x), method.scores(x), strict=True):
        torch.testing.assert_close(scores, torch.stack([part.square().mean(1) for part in activity.chunk(10, dim=1)], 1))


def test_every_second_layer_of_cwc_is_grouped_by_class(source: ImageSource) -> None:
    method = started("cwc", source, CLASSES)
    rows = batch(source, 5)[0]
    for number, layer in enumerate(method.network):
        rows = rows.detach().requires_grad_()
        activity, _ = layer(rows)
        of_third = activity.unflatten(1, (10, -1))[:, 3]
        (reached,) = torch.autograd.grad(of_third.square().sum(), rows)
        if number == 1:
            assert reached.abs().sum(dim=(0, 2, 3)).nonzero().flatten().tolist() == [6, 7]
        elif number == 2:
            assert reached.abs().sum(dim=(0, 2, 3)).all()
        rows = activity


def test_multiplications_are_those_of_a_plain_count() -> None:
    first, second, third = small_method("cwc", CLASSES).network.multiplications
    assert first == 8 * 8 * 20 * 1 * 9
    assert second == 4 * 4 * 30 * 2 * 9, "each of a class's channels comes from two"
    assert third == 4 * 4 * 40 * 30 * 9


def test_cwc_refuses_widths_that_are_no_multiple_of_the_classes() -> None:
    with pytest.raises(FaustnetError, match=r"network.widths must be multiples of 7, the number of classes, got \[14, 20\]"):
        build("cwc", (1, 8, 8), 7, NetworkSettings((14, 20), kind="vgg"), {})


@pytest.mark.parametrize(("name", "kind"), [("cwc", "residual"), ("trifecta", "residual"), ("trifecta", "dense")])
def test_other_kinds_of_networks_are_refused(name: str, kind: str) -> None:
    with pytest.raises(FaustnetError, match=f"network.kind must be vgg for this method, got {kind!r}"):
        build(name, (1, 8, 8), 10, NetworkSettings((20, 20), kind=kind), {})


@pytest.mark.parametrize("name", ["cwc", "trifecta"])
def test_images_that_cannot_be_halved_so_often_are_refused(name: str) -> None:
    with pytest.raises(FaustnetError, match="at most 3 layers for images of 8×8"):
        build(name, (1, 8, 8), 10, NetworkSettings((10,) * 4, kind="vgg", pools=(1, 2, 3, 4)), {})


def labels_of(written: Tensor, pictures: Tensor) -> Tensor:
    """Return the class of each label channel."""
    same = (written.unsqueeze(1) - pictures).abs().amax(dim=2) < 1e-6
    assert (same.sum(dim=1) == 1).all()
    return same.int().argmax(dim=1)


def test_the_label_is_an_additional_channel(source: ImageSource) -> None:
    method = started("trifecta", source, LABELS)
    x, y = batch(source, 48)
    seen = set()
    for _ in range(30):
        rows = method.rows(x, y).flatten(2)
        assert torch.equal(rows[:, 0], x.flatten(1).repeat(2, 1))
        right, wrong = labels_of(rows[:, 1], method.label.weight).chunk(2)
        assert torch.equal(right, y)
        assert (wrong != y).all()
        seen |= set(zip(y.tolist(), wrong.tolist(), strict=True))
    assert len(seen) == 90, "every wrong label of every class comes up"


def trifecta_loss(activity: Tensor) -> Tensor:
    """log(1 + exp(−α (G⁺ − G⁻))), pair by pair."""
    images = len(activity) // 2
    pairs = [(activity[i].square().mean(), activity[images + i].square().mean()) for i in range(images)]
    return sum(torch.log(1 + torch.exp(-4 * (good - bad))) for good, bad in pairs) / images


def test_the_trifectas_losses_are_symbas_on_means_of_squares(source: ImageSource) -> None:
    method = started("trifecta", source, LABELS).double()
    x, y = batch(source, 7)
    with seeded(3):
        (losses,) = method.losses(x.double(), y)
    with seeded(3):
        pictures = method.rows(x.double(), y)
    for layer, loss in zip(method.network, losses, strict=True):
        pictures = by_hand(layer, pictures, groups=1)
        torch.testing.assert_close(loss, trifecta_loss(pictures.flatten(1)))


def test_the_gradient_of_a_trifecta_layers_loss_reaches_that_layer_and_the_one_before_alone(source: ImageSource) -> None:
    method = started("trifecta", source, LABELS)
    (losses,) = method.losses(*batch(source, 48))
    parts = [method.label, *method.network]  # the labels come before the first layer
    for number, loss in enumerate(losses, start=1):
        method.zero_grad()
        loss.backward(retain_graph=True)
        for place, part in enumerate(parts):
            for parameter in part.parameters():
                reached = parameter.grad is not None and bool(parameter.grad.any())
                assert reached == (place in (number - 1, number))


def test_a_step_is_both_of_the_authors_pairings_at_once(source: ImageSource) -> None:
    """(1, 2), (3, 4), and labels with 1, (2, 3), where the last layer of a pair has the loss and cuts the graph behind it.
    The labels are trained with the first layer alone."""
    method = started("trifecta", source, LABELS).double()
    x, y = batch(source, 12)
    names = [name for name, _ in method.named_parameters()]
    expected = {name: torch.zeros_like(parameter) for name, parameter in method.named_parameters()}
    for last in (1, 0):
        with seeded(3):
            rows = method.rows(x.double(), y)
        rows = rows.detach() if last else rows
        for number, layer in enumerate(method.network):
            rows, _ = layer(rows)
            if number % 2 == last:
                method.zero_grad()
                trifecta_loss(as_vectors(rows)).backward()
                for name, parameter in method.named_parameters():
                    expected[name] += 0 if parameter.grad is None else parameter.grad
                rows = rows.detach()
    method.zero_grad()
    with seeded(3):
        (losses,) = method.losses(x.double(), y)
    losses.sum().backward()
    for name in names:
        torch.testing.assert_close(method.get_parameter(name).grad, expected[name])


def test_the_trifecta_tries_every_label_in_turn(source: ImageSource) -> None:
    method = started("trifecta", source, LABELS)
    x, _ = batch(source, 5)
    with evaluating(method):
        scores = method.scores(x)
        for label in range(10):
            rows = torch.cat([x, method.label.weight[label].expand(5, -1).view(5, 1, 8, 8)], dim=1)
            for layer, activity in enumerate(method.network.embeddings(rows)):
                torch.testing.assert_close(scores[layer, :, label], activity.square().mean(1))
    assert method.forward_passes == 10


def test_batch_norms_settle_on_rows_with_the_true_label_and_as_many_with_wrong_ones(source: ImageSource) -> None:
    method = started("trifecta", source, LABELS)
    x, y = batch(source, 320)
    right, wrong = labels_of(method.typical(x, y)[:, 1].flatten(1), method.label.weight).chunk(2)
    assert torch.equal(right, y)
    assert (wrong != y).all()
    assert len(set(zip(y.tolist(), wrong.tolist(), strict=True))) == 90
    with evaluating(method):
        method.make_ready(source)
        settled = next(method.network.embeddings(method.typical(x, y)))
    method.train()
    torch.testing.assert_close(next(method.network.embeddings(method.typical(x, y))), settled, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def exact(source: ImageSource) -> ImageSource:
    scaling = Scaling(source.scaling.mean.double(), source.scaling.deviation.double())
    return replace(source, scaling=scaling, augmentation=Augmentation(crop=1))


def trainer(name: str, schedule: str, images: ImageSource) -> TrainingLoop:
    method = small_method(name, CLASSES if name == "cwc" else LABELS).double()
    how = TrainingSettings(epochs=2, batch_size=64, schedule=schedule)
    plain = replace(images, augmentation=Augmentation())
    return TrainingLoop(method, images, plain, how, OptimiserSettings(learning_rate=5e-3), seed=0)


def test_the_wavefront_trains_cwc_as_the_sequential_schedule_does(exact: ImageSource) -> None:
    one, other = (run_to_end(trainer("cwc", schedule, exact)) for schedule in ("wavefront", "sequential"))
    assert_same(one, other)


@pytest.mark.parametrize(("name", "schedule"), [("cwc", "wavefront"), ("cwc", "sequential"), ("trifecta", "sequential")])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(name: str, schedule: str, exact: ImageSource) -> None:
    whole, one, continued = (trainer(name, schedule, exact) for _ in range(3))
    run_to_end(whole)
    stop_after(one, 7)
    continued.restore(*one.state())
    run_to_end(continued)
    assert_same(whole, continued)


@pytest.mark.parametrize("schedule", ["wavefront", "greedy"])
def test_the_trifectas_layers_are_trained_together(schedule: str, source: ImageSource) -> None:
    with pytest.raises(FaustnetError, match=f"training.schedule must be sequential for trifecta, .*, got {schedule}"):
        trainer("trifecta", schedule, source)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "schedule", "widths", "rate", "epochs"),
    [
        ("cwc", "sequential", "20,20,40", 0.01, 5),
        ("cwc", "wavefront", "20,20,40", 0.01, 5),
        ("cwc", "greedy", "20,20,40", 0.01, 5),
        ("trifecta", "sequential", "16,32,32", 0.005, 6),
    ],
)
def test_it_learns_digits(
    name: str,
    schedule: str,
    widths: str,
    rate: float,
    epochs: int,
    precision: str,
    faustnet: Callable[..., Answer],
    tmp_path: Path,
) -> None:
    """A model that is loaded from its file predicts the same."""
    sets = ["network.kind=vgg", "network.pools=[1,3]", "prediction.weights=[0,1,4]", f"training.precision={precision}"]
    sets.append(f"training.evaluate_every={epochs}")
    answer = faustnet(
        "train", "--method", name, "--widths", widths, "--schedule", schedule, "--learning-rate", rate, "--epochs", epochs,
        "--batch-size", 64, *(word for key in sets for word in ("--set", key)), "--device", "cpu", "--out", tmp_path / "run",
    )  # fmt: skip
    assert answer.code == 0
    run = Run.open(tmp_path / "run")
    assert run.metrics["test_accuracy"] > 0.9
    assert run.model().measure(load_data("digits").test)["accuracy"] == run.metrics["test_accuracy"]
