"""Deep supervision and the published local methods that FAUST is compared with."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from conftest import started
from faustnet.data import ImageSource
from faustnet.errors import FaustnetError
from faustnet.losses import centred_similarity_loss, polar_log_odds
from faustnet.methods import METHODS, predsim
from faustnet.methods.mono_forward import MonoForward
from faustnet.methods.predsim import PredSim, PredSimHead
from faustnet.methods.sffa import SFFA
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.layers import Layer
from faustnet.nn.modules import BatchNorm
from faustnet.nn.network import Network
from faustnet.system.randomness import seeded
from faustnet.testing import check_method

DENSE = NetworkSettings((24, 20, 16), 12)
VGG = NetworkSettings((8, 12, 16), 10, length="unit", kind="vgg", pools=(1, 3), head=6)
networks = pytest.mark.parametrize("network", [DENSE, VGG], ids=["dense", "vgg"])


def batch(source: ImageSource, size: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    return source.plain(torch.arange(size)), source.labels[:size]


@pytest.mark.parametrize("name", ["deep-supervision", "mono-forward", "predsim"])
def test_convolutional_networks_keep_the_contract(name: str) -> None:
    options = {"scale": 5.0} if name == "deep-supervision" else {}
    check_method(METHODS[name], network=replace(VGG, widths=(8, 8), pools=(1,)), options=options)


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


def centred_cosine(one: list[float], other: list[float]) -> float:
    a, b = ([value - sum(row) / len(row) for value in row] for row in (one, other))
    return sum(p * q for p, q in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def predsim_loss(outputs: torch.Tensor, features: torch.Tensor, y: torch.Tensor, matching: float) -> float:
    """Pair by pair."""
    labels = [[float(label == number) for number in range(10)] for label in y.tolist()]
    rows, pairs = features.tolist(), [(i, j) for i in range(len(y)) for j in range(len(y))]
    errors = [(centred_cosine(rows[i], rows[j]) - centred_cosine(labels[i], labels[j])) ** 2 for i, j in pairs]
    return (1 - matching) * cross_entropy(outputs, y) + matching * sum(errors) / len(pairs)


def leaky_norm(rows: torch.Tensor) -> torch.Tensor:
    """Batch norm with the initial gain and offset, then leaky ReLU. (R, channels, …)"""
    flat = rows.transpose(0, 1).flatten(1)
    variance, mean = (part.view(-1, *[1] * (rows.dim() - 2)) for part in torch.var_mean(flat, dim=1, correction=0))
    rows = (rows - mean) / (variance + 1e-5).sqrt()
    return torch.where(rows > 0, rows, 0.01 * rows)


@pytest.mark.parametrize("matching", [0.99, 0.4])
def test_predsims_losses_of_dense_layers_written_out(matching: float, source: ImageSource) -> None:
    method = started("predsim", source, DENSE, matching=matching).double()
    x, y = batch(source, 12)
    losses, scores = torch.cat(list(method.losses(x.double(), y))), method.scores(x.double())
    rows = x.double().flatten(1)
    for layer, loss, found in zip(method.network, losses, scores, strict=True):
        rows = leaky_norm(rows @ layer.body.linear.weight.T)
        outputs, features = (rows @ part.weight.T + part.bias for part in (layer.head.classifier, layer.head.features))
        torch.testing.assert_close(found, outputs)
        assert loss.item() == pytest.approx(predsim_loss(outputs, features, y, matching))


def test_predsims_losses_of_convolutional_layers_written_out(source: ImageSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """The maps of 4×4×8, 4×4×12 and 1×1×16 are average-pooled to at most 64 values: 2×4×8, 2×2×12 and 1×1×16."""
    monkeypatch.setattr(predsim, "MOST_VALUES", 64)
    method = started("predsim", source, replace(VGG, pools=(1, 2, 3))).double()
    x, y = batch(source, 12)
    losses, scores = torch.cat(list(method.losses(x.double(), y))), method.scores(x.double())
    maps, sides = x.double(), [(2, 4), (2, 2), (1, 1)]
    for layer, loss, found, (height, width) in zip(method.network, losses, scores, sides, strict=True):
        maps = functional.conv2d(maps, layer.body.entrance.convolution.weight, padding=1)
        maps = leaky_norm(maps.unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(4, 5)))
        pooled = maps.unflatten(2, (height, -1)).unflatten(4, (width, -1)).mean(dim=(3, 5)).permute(0, 2, 3, 1).flatten(1)
        outputs = pooled @ layer.head.classifier.weight.T + layer.head.classifier.bias
        torch.testing.assert_close(found, outputs)
        features = functional.conv2d(maps, layer.head.features.weight, padding=1).flatten(2)
        pixels = features.shape[2]
        squares = (features - features.mean(dim=2, keepdim=True)).square().sum(dim=2)
        deviations = (squares / (pixels - 1)).sqrt() if pixels > 1 else features.squeeze(2)
        assert loss.item() == pytest.approx(predsim_loss(outputs, deviations, y, 0.99))


def test_classifiers_of_predsim_receive_at_most_2048_values() -> None:
    assert predsim.pooled_side(128, 32, 32) == (4, 4)
    assert predsim.pooled_side(256, 16, 16) == (2, 4)
    assert predsim.pooled_side(12, 8, 8) == (8, 8)
    assert predsim.pooled_side(3000, 4, 4) == (1, 1)


def test_one_class_has_a_finite_similarity_loss() -> None:
    assert centred_similarity_loss(torch.randn(4, 6), torch.zeros(4, dtype=torch.long), 1).isfinite()


def test_predsim_refuses_other_networks() -> None:
    with pytest.raises(FaustnetError, match=r"^network\.kind must be dense or vgg for predsim, got 'residual'"):
        PredSim.make_network((1, 8, 8), 10, NetworkSettings((8, 8), kind="residual"))
    with pytest.raises(FaustnetError, match=r"^network\.widths must be at least 2 for predsim, .*, got \[8, 1\]"):
        PredSim.make_network((1, 8, 8), 10, NetworkSettings((8, 1)))
    for matching in (-0.1, 1.0):
        with pytest.raises(FaustnetError, match=rf"^matching must be at least 0 and below 1, got {matching}"):
            PredSim(PredSim.make_network((1, 8, 8), 10, NetworkSettings((8,))), 10, matching=matching)
    example, block = torch.zeros(1, 6), torch.nn.Linear(6, 5)
    for head in (None, PredSimHead((5,), 4)):
        with pytest.raises(FaustnetError, match=r"^network must have a PredSimHead for 3 classes .* in layer 1: use Layer"):
            PredSim(Network([Layer(block, head)], example=example), 3)
    assert PredSim(Network([Layer(block, PredSimHead((5,), 3))], example=example), 3).voters == ["layer 1"]
