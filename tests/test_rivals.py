"""Deep supervision and the published local methods that FAUST is compared with."""

import math
from dataclasses import replace

import pytest
import torch

from conftest import started
from faustnet.data import ImageSource
from faustnet.errors import FaustnetError
from faustnet.losses import polar_log_odds
from faustnet.methods.mono_forward import MonoForward
from faustnet.methods.sffa import SFFA
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.modules import BatchNorm
from faustnet.nn.network import Network
from faustnet.system.randomness import seeded

DENSE = NetworkSettings((24, 20, 16), 12)
VGG = NetworkSettings((8, 12, 16), 10, length="unit", kind="vgg", pools=(1, 3), head=6)
networks = pytest.mark.parametrize("network", [DENSE, VGG], ids=["dense", "vgg"])


def batch(source: ImageSource, size: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    return source.plain(torch.arange(size)), source.labels[:size]


@networks
def test_deep_supervision_is_faust_with_a_gradient_through_all_layers(network: NetworkSettings, source: ImageSource) -> None:
    """The losses are FAUST's. The gradient is that of their sum, over layers that are called one after the other."""
    options = {"representatives": 2, "contrast": 0.5, "matching": 0.3, "label_smoothing": 0.1, "mixup": 0.2}
    deep, faust, plain = (
        started(name, source, network, **options).double()
        for name in ("deep-supervision", "faust-representative", "faust-representative")
    )
    x, y = batch(source)
    x = x.double()
    (losses,) = deep.losses(x, y)
    local = torch.cat(list(faust.losses(x, y)))
    torch.testing.assert_close(losses, local)
    losses.sum().backward()
    local.sum().backward()
    rows = plain.rows(x, y)
    for number, layer in enumerate(plain.network):
        embedding = layer.embed(rows := layer.body(layer.drop(rows)))
        plain.local_loss(layer.scale_length(embedding), y, number).backward(retain_graph=True)
    for (name, ours), theirs, cut in zip(deep.named_parameters(), plain.parameters(), faust.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
        reached_by_others = "body" in name and not name.startswith("network.layers.2.")
        assert torch.allclose(ours.grad, cut.grad, rtol=1e-3) != reached_by_others, name


def test_deep_supervision_predicts_as_faust_does(source: ImageSource) -> None:
    deep, faust = (started(name, source, DENSE) for name in ("deep-supervision", "faust-representative"))
    for method in (deep, faust):
        method.make_ready(source)
    x, _ = batch(source)
    assert torch.equal(deep.eval().scores(x), faust.eval().scores(x))
    assert deep.voters == deep.learners == ["layer 1", "layer 2", "layer 3"]


def cross_entropy(goodness: torch.Tensor, y: torch.Tensor) -> float:
    """Image by image."""
    total = 0.0
    for own, label in zip(goodness.tolist(), y.tolist(), strict=True):
        total -= math.log(math.exp(own[label]) / sum(map(math.exp, own)))
    return total / len(y)


def test_mono_forwards_goodness_is_the_activation_times_a_matrix(source: ImageSource) -> None:
    """G = ReLU(W x + b) Mᵀ, with the activation of the layer before as x."""
    method = started("mono-forward", source, DENSE).double()
    x, y = batch(source)
    losses, scores = torch.cat(list(method.losses(x.double(), y))), method.scores(x.double())
    rows = x.double().flatten(1)
    for layer, loss, found in zip(method.network, losses, scores, strict=True):
        rows = (rows @ layer.body.linear.weight.T + layer.body.linear.bias).clamp_min(0)
        goodness = rows @ layer.head.weight.T
        torch.testing.assert_close(found, goodness)
        assert loss.item() == pytest.approx(cross_entropy(goodness, y))


def test_mono_forwards_matrix_multiplies_all_values_of_feature_maps(source: ImageSource) -> None:
    method = started("mono-forward", source, VGG).double()
    x, y = batch(source)
    losses, maps = torch.cat(list(method.losses(x.double(), y))), x.double()
    for layer, loss, side in zip(method.network, losses, (4, 4, 2), strict=True):
        maps = layer.body(maps)
        matrix = layer.head[1].weight.view(10, side, side, -1)  # (C, h, w, channels)
        goodness = torch.einsum("rchw,khwc->rk", maps, matrix)
        assert loss.item() == pytest.approx(cross_entropy(goodness, y))


def test_mono_forward_has_batch_norm_if_the_network_has(source: ImageSource) -> None:
    method = started("mono-forward", source, replace(DENSE, norm="batch"))
    assert all(isinstance(layer.body.norm, BatchNorm) for layer in method.network)


def test_mono_forward_refuses_other_networks() -> None:
    with pytest.raises(FaustnetError, match=r"^network\.kind must be dense, vgg or residual for mono-forward, got 'trans"):
        MonoForward.make_network((1, 8, 8), 10, NetworkSettings((8, 8), kind="transformer"))
    blocks = [torch.nn.Linear(6, 5), torch.nn.Linear(5, 4)]
    with pytest.raises(FaustnetError, match=r"^network must have embeddings of 3 values .*, got \[7, 7\]: use Network\("):
        MonoForward(Network(blocks, 7, example=torch.zeros(1, 6)), 3)
    assert len(MonoForward(Network(blocks, 3, example=torch.zeros(1, 6)), 3).network) == 2


def test_sffas_probability_and_loss_written_out(source: ImageSource) -> None:
    """p = G⁺ / (G⁺ + G⁻), −log p with the correct label and −log(1 − p) with a wrong one, row by row."""
    method = started("sffa", source, DENSE).double()
    x, y = batch(source, 9)
    with seeded(3):
        losses = torch.cat(list(method.losses(x.double(), y)))
    with seeded(3):
        rows = method.rows(x.double(), y)
    for activity, loss in zip(method.network.embeddings(rows), losses, strict=True):
        total = 0.0
        for number, row in enumerate(activity.tolist()):
            half = len(row) // 2
            positive, negative = (sum(value**2 for value in part) / half for part in (row[:half], row[half:]))
            share = positive / (positive + negative)
            total -= math.log(share if number < 9 else 1 - share)
        assert loss.item() == pytest.approx(total / 18, rel=1e-4)


def test_sffa_tries_every_label_and_sums_probabilities(source: ImageSource) -> None:
    method = started("sffa", source, DENSE).eval()
    x, _ = batch(source, 5)
    scores = method.scores(x)
    for label in range(10):
        rows = method.with_labels(x, torch.full((5,), label))
        for layer, activity in enumerate(method.network.embeddings(rows)):
            positive, negative = (half.square().mean(dim=1) for half in activity.chunk(2, dim=1))
            torch.testing.assert_close(scores[layer, :, label], positive / (positive + negative), rtol=1e-4, atol=1e-5)


def test_rows_without_activity_are_positive_with_probability_one_half() -> None:
    activity = torch.zeros(3, 8, requires_grad=True)
    odds = polar_log_odds(activity)
    odds.sum().backward()
    assert odds.tolist() == [0, 0, 0]
    assert activity.grad is not None
    assert activity.grad.isfinite().all()


def test_sffa_refuses_units_that_cannot_be_halved() -> None:
    with pytest.raises(FaustnetError, match=r"^network\.widths must be even for sffa, .*, got \[20, 15\]"):
        SFFA.make_network((1, 8, 8), 10, NetworkSettings((20, 15)))
    with pytest.raises(FaustnetError, match=r"^network must have an even number of units .*, got \[5\]"):
        SFFA(Network([torch.nn.Linear(6, 5)], example=torch.zeros(1, 6)), 3)
    with pytest.raises(FaustnetError, match=r"^activity must have an even number of units, at least 2, got 3"):
        polar_log_odds(torch.zeros(2, 3))
