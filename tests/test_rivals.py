"""Deep supervision and the published local methods that FAUST is compared with."""

import pytest
import torch

from conftest import started
from faustnet.data import ImageSource
from faustnet.nn.architectures import NetworkSettings

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
