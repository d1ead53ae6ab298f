"""Convolutional layers: their outputs, where their gradients reach, and their training under every schedule."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conftest import run_to_end, small_method, started
from faustnet.data import Augmentation, ImageSource, Scaling, load_data
from faustnet.errors import FaustnetError
from faustnet.methods import METHODS, build
from faustnet.methods.goodness import GoodnessMethod
from faustnet.nn.architectures import NETWORK_KINDS, NetworkSettings, embedding_network
from faustnet.nn.bodies import ConvBody
from faustnet.nn.heads import ConvHead
from faustnet.nn.layers import Layer
from faustnet.nn.modules import average_pool, block_means
from faustnet.runs.folder import Run
from faustnet.runs.recipes import recipe_from
from faustnet.runs.session import train
from faustnet.training.evaluation import evaluating
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.settings import TrainingSettings
from test_methods import CROSSING
from test_wavefront import assert_same, stop_after

CONVOLUTIONAL = [kind for kind in NETWORK_KINDS if kind in ("vgg", "residual")]


def accepts(name: str, kind: str) -> bool:
    """Return whether the method has layers of this kind."""
    try:
        METHODS[name].make_network((1, 8, 8), 10, NetworkSettings((20, 20), kind=kind))
    except FaustnetError:
        return False
    return True


WITH_CONVOLUTIONS = [
    (name, kind) for name in METHODS for kind in CONVOLUTIONAL if name not in CROSSING and accepts(name, kind)
]
MUON = OptimiserSettings("muon", learning_rate=5e-3)
kinds = pytest.mark.parametrize("kind", CONVOLUTIONAL)


def settings(kind: str, **changes: object) -> NetworkSettings:
    return replace(NetworkSettings((8, 12, 16), 10, length="unit", kind=kind, pools=(1, 3), head=6), **changes)


def by_hand(layer: Layer, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Compute a layer with torch's functions, one image at a time except in batch norm."""
    body, head = layer.body, layer.head
    assert isinstance(body, ConvBody)
    assert isinstance(head, ConvHead)

    def norm(rows: Tensor) -> Tensor:
        flat = rows.transpose(0, 1).flatten(1)
        mean, variance = flat.mean(dim=1), flat.var(dim=1, correction=0)
        return (rows - mean[:, None, None]) / (variance + 1e-5)[:, None, None].sqrt()

    def conv(module: nn.Conv2d, rows: Tensor) -> Tensor:
        return torch.stack([nn.functional.conv2d(row, module.weight, padding=1) for row in rows])

    made = conv(body.entrance.convolution, maps)
    if body.entrance.pool:
        made = made.unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(4, 5))
    made = norm(made).relu()
    if body.inner is not None:
        made = (made + norm(conv(body.outer.convolution, norm(conv(body.inner.convolution, made)).relu()))).relu()
    seen = norm(conv(head.first.convolution, functional.adaptive_avg_pool2d(made, head.side))).relu()
    seen = norm(conv(head.second.convolution, seen)).relu().mean(dim=(2, 3))
    embedding = seen @ head.projection.weight.T
    return made, embedding / embedding.norm(dim=1, keepdim=True)


@kinds
def test_layers_equal_a_computation_by_hand(kind: str) -> None:
    torch.manual_seed(0)
    network = embedding_network((3, 24, 16), settings(kind)).double()
    maps = torch.randn(5, 3, 24, 16, dtype=torch.float64)
    last = network(maps)
    for layer, embedding in zip(network, network.embeddings(maps), strict=True):
        assert (layer.body.inner is not None) == (kind == "residual")
        maps, expected = by_hand(layer, maps)
        torch.testing.assert_close(embedding, expected)
    torch.testing.assert_close(last, maps)
    assert network.outputs == maps[0].numel()


@pytest.mark.parametrize(("size", "side"), [((16, 24), (8, 8)), ((14, 7), (8, 7)), ((8, 8), (8, 8))])
def test_average_pool_computes_the_mean_of_each_block(size: tuple[int, int], side: tuple[int, int]) -> None:
    maps, (high, wide) = torch.randn(2, 3, *size), size

    def blocks(whole: int, parts: int) -> list[slice]:
        return [slice(part * whole // parts, -(-(part + 1) * whole // parts)) for part in range(parts)]

    rows = [[maps[:, :, y, x].mean(dim=(2, 3)) for x in blocks(wide, side[1])] for y in blocks(high, side[0])]
    expected = torch.stack([torch.stack(row, dim=2) for row in rows], dim=2)
    torch.testing.assert_close(average_pool(maps, side), expected)
    if not (high % side[0] or wide % side[1]):
        torch.testing.assert_close(block_means(maps, side), expected)


def test_gradients_of_block_means_have_the_memory_format_of_the_input() -> None:
    maps = torch.randn(4, 6, 16, 24).to(memory_format=torch.channels_last).requires_grad_()
    weights = torch.randn(4, 6, 8, 8)
    found = torch.autograd.grad((block_means(maps, (8, 8)) * weights).sum(), maps)[0]
    expected = torch.autograd.grad((functional.adaptive_avg_pool2d(maps, (8, 8)) * weights).sum(), maps)[0]
    torch.testing.assert_close(found, expected)
    assert found.stride() == maps.stride()


@pytest.mark.parametrize(
    "shape",
    [settings("vgg"), settings("residual"), NetworkSettings((8, 12), 10, norm="batch")],
    ids=[*CONVOLUTIONAL, "dense"],
)
def test_prediction_does_not_depend_on_the_other_images_of_a_batch(shape: NetworkSettings) -> None:
    torch.manual_seed(0)
    network = embedding_network((1, 8, 8), shape).double()
    maps = 3 + 5 * torch.randn(64, 1, 8, 8, dtype=torch.float64)
    in_training = list(network.embeddings(maps))
    network.eval()
    network.update_statistics(maps)
    for embedding, before in zip(network.embeddings(maps[:3]), in_training, strict=True):
        torch.testing.assert_close(embedding, before[:3])


@pytest.mark.parametrize(("name", "kind"), WITH_CONVOLUTIONS)
@pytest.mark.parametrize(
    "changes", [{"length": "free"}, {"length": "learned", "dropout": 0.3, "input_dropout": 0.2}, {"head": 0}], ids=str
)
def test_the_gradient_of_a_layers_loss_reaches_that_layer_and_its_head_alone(
    name: str, kind: str, changes: dict, source: ImageSource
) -> None:
    method = started(name, source, settings(kind, **changes))
    index = torch.arange(48)
    losses = torch.cat(list(method.losses(source.plain(index), source.labels[index])))
    for number, loss in enumerate(losses):
        method.zero_grad()
        loss.backward(retain_graph=True)
        for other, layer in enumerate(method.network):
            for name_, parameter in layer.named_parameters():
                reached = parameter.grad is not None and bool(parameter.grad.any())
                assert reached == (other == number), name_


@pytest.mark.parametrize(("name", "kind"), WITH_CONVOLUTIONS)
def test_a_layers_loss_is_there_before_the_next_layer_is_computed(name: str, kind: str, source: ImageSource) -> None:
    """The activations of at most one layer are kept in memory."""
    method, computed = started(name, source, settings(kind)), []
    for layer in method.network:
        layer.register_forward_hook(lambda layer, *_: computed.append(layer))
    index = torch.arange(48)
    for number, _ in enumerate(method.losses(source.plain(index), source.labels[index]), start=1):
        assert computed == list(method.network)[:number]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if issubclass(method, GoodnessMethod)])
def test_methods_with_dense_layers_refuse_other_kinds(name: str) -> None:
    with pytest.raises(FaustnetError, match=r"network\.kind must be dense for this method, got 'vgg'"):
        small_method(name, settings("vgg"))


@pytest.fixture(scope="module")
def exact(source: ImageSource) -> ImageSource:
    scaling = Scaling(source.scaling.mean.double(), source.scaling.deviation.double())
    return replace(source, scaling=scaling, augmentation=Augmentation(crop=1))


def trainer(schedule: str, images: ImageSource, kind: str, **options: object) -> TrainingLoop:
    method = small_method("faust-representative", settings(kind), scale=5.0, **options).double()
    how = TrainingSettings(epochs=2, batch_size=64, schedule=schedule)
    return TrainingLoop(method, images, replace(images, augmentation=Augmentation()), how, MUON, seed=0)


@kinds
def test_the_wavefront_is_the_sequential_schedule(kind: str, exact: ImageSource) -> None:
    options = {"representatives": 2, "contrast": 0.5}
    one, other = (run_to_end(trainer(name, exact, kind, **options)) for name in ("wavefront", "sequential"))
    assert_same(one, other)


@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(schedule: str, exact: ImageSource) -> None:
    whole, one, continued = (trainer(schedule, exact, "residual") for _ in range(3))
    run_to_end(whole)
    stop_after(one, 7)
    continued.restore(*one.state())
    run_to_end(continued)
    assert_same(whole, continued)


@kinds
@pytest.mark.parametrize(
    ("name", "schedule", "options"),
    [
        ("faust-representative", "sequential", {"scale": 5.0}),
        ("faust-representative", "greedy", {"scale": 5.0}),
        ("faust-prototype", "wavefront", {"scale": 5.0}),
        ("ffcm", "sequential", {}),
        ("backprop", "sequential", {}),
    ],
)
def test_it_learns_digits(name: str, schedule: str, options: dict, kind: str, tmp_path: Path) -> None:
    """A model that is loaded from its file predicts the same."""
    network = {"kind": kind, "widths": [12, 16], "pools": [1, 2], "head": 16, "embedding": 24, "length": "unit"}
    recipe = recipe_from(
        {
            "method": name,
            "network": network,
            "options": options,
            "optimiser": {"name": "muon", "learning_rate": 0.01},
            "training": {"epochs": 3, "batch_size": 64, "schedule": schedule, "evaluate_every": 3},
        }
    )
    run = train(recipe, tmp_path / "run", device=torch.device("cpu"), progress=Silent())
    assert run.metrics["test_accuracy"] > 0.95
    again = Run.open(tmp_path / "run").model()
    test = load_data("digits").test
    assert again.measure(test)["accuracy"] == run.metrics["test_accuracy"]


class Silent:
    def begin(self, *args: object) -> None: ...
    def batch(self) -> None: ...
    def epoch(self, epoch: object) -> None: ...
    def end(self) -> None: ...


@kinds
def test_multiplications_are_those_of_a_plain_count(kind: str) -> None:
    network = embedding_network((3, 16, 16), settings(kind, widths=(8, 12)[:1], pools=(1,)))
    counted = 16 * 16 * 8 * 3 * 9 + (2 * 8 * 8 * 8 * 8 * 9 if kind == "residual" else 0)
    counted += 8 * 8 * (6 * 8 * 9 + 6 * 6 * 9) + 6 * 10
    assert network.multiplications == [counted]


def test_a_head_without_convolutions_is_the_mean() -> None:
    maps = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(ConvHead(3, (8, 8), 0)(maps), maps.mean(dim=(2, 3)))


def test_early_exit_agrees_with_evaluation(source: ImageSource) -> None:
    method = started("faust-representative", source, settings("vgg"), scale=5.0)
    with evaluating(method):
        method.make_ready(source)
        x = source.plain(torch.arange(40))
        scores = method.scores(x)
        assert torch.equal(method.predict_early(x, 0.0)[0], scores[0].argmax(dim=1))
        assert torch.equal(method.predict_early(x, 1e9)[0], scores.sum(dim=0).argmax(dim=1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "resnet"}, "network.kind must be dense or vgg or residual or transformer, got .resnet"),
        ({"pools": (4,)}, r"network\.pools must contain different layer numbers from 1 to 3, got \[4\]"),
        ({"pools": (1, 1)}, r"from 1 to 3, got \[1, 1\]"),
        ({"passes_on": "embedding"}, "network.passes_on must be activation for network.kind=vgg, got 'embedding'"),
        ({"kind": "dense"}, "network.pools must be empty for network.kind=dense"),
        ({"head": -1}, "network.head must be 0 .no convolutions. or more, got -1"),
    ],
)
def test_invalid_settings_are_refused(changes: dict, said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        replace(settings("vgg"), **changes)


def test_images_that_cannot_be_halved_so_often_are_refused() -> None:
    with pytest.raises(FaustnetError, match=r"network\.pools must have at most 3 layers for images of 8×8, got 4"):
        embedding_network((1, 8, 8), NetworkSettings((4,) * 4, kind="vgg", pools=(1, 2, 3, 4)))


def test_a_network_that_does_not_fit_into_memory_is_refused() -> None:
    with pytest.raises(FaustnetError, match="not enough memory"):
        build("backprop", (3, 32, 32), 10, NetworkSettings((2**20, 2**20), kind="vgg"), {})


@kinds
def test_body_parameters_are_those_of_the_activation(kind: str) -> None:
    layer = embedding_network((3, 16, 16), settings(kind))[1]
    activation, _ = layer(torch.randn(4, 8, 8, 8))
    activation.square().sum().backward()
    assert {id(p) for p in layer.body_parameters} == {id(p) for p in layer.parameters() if p.grad is not None}


def test_a_smaller_side_makes_the_heads_cheaper() -> None:
    maps = torch.rand(2, 3, 16, 16)
    settings = NetworkSettings((4, 4), 8, kind="vgg", pools=(2,), head=6)
    usual, small = (embedding_network((3, 16, 16), replace(settings, head_side=side)) for side in (8, 4))
    small.load_state_dict(usual.state_dict())
    head = small[0].head
    assert isinstance(head, ConvHead)
    passed = small[0].body(maps)
    averaged = passed.unflatten(2, (4, 4)).unflatten(4, (4, 4)).mean(dim=(3, 5))
    torch.testing.assert_close(head(passed), head(averaged))
    by_head = [9 * pixels * (4 * 6 + 6 * 6) for pixels in (64, 16)]
    for before, after in zip(usual.multiplications, small.multiplications, strict=True):
        assert before - after == by_head[0] - by_head[1]


def test_a_head_whose_parts_a_user_has_replaced_calls_them() -> None:
    torch.manual_seed(0)
    head, maps = ConvHead(4, (6, 6), 5), torch.randn(7, 4, 6, 6)
    head.second = nn.Sequential(nn.Conv2d(5, 8, 1), nn.ReLU())
    torch.testing.assert_close(head(maps), head.second(head.first(maps)).mean(dim=(2, 3)))
    head = ConvHead(4, (6, 6), 5)
    head.second.forward = lambda maps: -head.second.convolution(maps)
    torch.testing.assert_close(head(maps), -head.second.convolution(head.first(maps)).mean(dim=(2, 3)))


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_is_compiled_as_one_graph(training: bool) -> None:
    torch.manual_seed(0)
    layer = embedding_network((3, 16, 16), settings("residual"))[0].train(training)
    maps = torch.randn(4, 3, 16, 16)
    for one, other in zip(torch.compile(layer, backend="eager", fullgraph=True)(maps), layer(maps), strict=True):
        torch.testing.assert_close(one, other)
