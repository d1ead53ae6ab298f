"""`Trainer(..., start=...)`: training further from the weights of another model, all layers or some."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import faustnet
from faustnet import FaustnetError, Method
from faustnet.data import DataSet

Pair = tuple[Tensor, Tensor]
FIXTURES = Path(__file__).parent / "fixtures" / "0.1"


@pytest.fixture(scope="module")
def first(digits: DataSet) -> Pair:
    """Images of the digits 0 to 5."""
    return some(digits, 0, 6)


@pytest.fixture(scope="module")
def last(digits: DataSet) -> Pair:
    """Images of the digits 4 to 9, numbered from 0."""
    x, y = some(digits, 4, 10)
    return x, y - 4


def some(digits: DataSet, low: int, high: int) -> Pair:
    pixels, labels = digits.train.all_pixels, digits.train.labels
    own = (labels >= low) & (labels < high)
    return pixels[own].float() / 128 - 1, labels[own]


def made(kind: Callable[..., Method] = faustnet.FaustRepresentative, seed: int = 0, classes: int = 6) -> Method:
    """Three dense blocks of the user's own."""
    torch.manual_seed(seed)
    sizes = [64, 32, 24, 16]
    blocks = [nn.Sequential(nn.Flatten(), nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
    return kind(faustnet.Network(blocks, embedding=8, example=torch.zeros(1, 1, 8, 8)), classes)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 5e-3)


def train(method: Method, data: Pair, epochs: int = 1, **about: object) -> faustnet.Trainer:
    return faustnet.Trainer(method, train=data, test=data, optimiser=adam, **about).fit(epochs, verbose=False)


def layers(method: Method) -> list[dict[str, Tensor]]:
    return [{name: tensor.clone() for name, tensor in layer.state_dict().items()} for layer in method.network]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.fixture(scope="module")
def trained(first: Pair) -> Method:
    return train(made(), first, 8).method


def test_training_starts_from_the_weights_of_another_method(trained: Method, first: Pair, last: Pair) -> None:
    method = made(seed=1)
    trainer = faustnet.Trainer(method, train=last, test=last, optimiser=adam, start=trained)
    assert all(same(*pair) for pair in zip(layers(method), layers(trained), strict=True))
    started = trainer.fit(2, verbose=False).evaluate().accuracy
    assert started > train(made(seed=1), last, 2).evaluate().accuracy, "other digits profit from what the first ones taught"
    assert trained.network[0].state_dict().keys() == method.network[0].state_dict().keys()


@pytest.mark.parametrize("schedule", ["sequential", "wavefront", "greedy"])
def test_only_the_layers_that_are_asked_for_are_trained(trained: Method, last: Pair, schedule: str) -> None:
    method = made(seed=1)
    train(method, last, start=trained, train_layers=[2, 3], schedule=schedule)
    assert [same(*pair) for pair in zip(layers(method), layers(trained), strict=True)] == [True, False, False]


def test_the_start_may_be_a_file_or_another_kind_of_method(
    trained: Method, first: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained.save(tmp_path / "weights.safetensors")
    method = made(faustnet.FaustPrototype, seed=1)
    faustnet.Trainer(method, train=first, optimiser=adam, start=tmp_path / "weights.safetensors", train_layers=[3])
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith("begin anew: network.layers.0.prototypes, network.layers.1.prototypes, network.layers.2.prototypes")
    )
    frozen = {name for name, parameter in method.named_parameters() if not parameter.requires_grad}
    assert {name.split(".")[2] for name in frozen} == {"0", "1"}
    assert not any("prototypes" in name for name in frozen), "they are new, so they are trained in every layer"
    assert torch.equal(method.network[1].body[1].weight, trained.network[1].body[1].weight)


@pytest.mark.parametrize("form", ["folder", "file", "model"])
def test_the_start_may_be_a_run_or_its_model(form: str) -> None:
    """Also of version 0.1, where parameters had other names."""
    model = faustnet.load(FIXTURES / "dense", device="cpu")
    forms = {"folder": str(FIXTURES / "dense"), "file": FIXTURES / "dense" / "model.safetensors", "model": model}
    method = model.recipe.build_method(model.shape, len(model.class_names))
    data = torch.zeros(20, *model.shape), torch.arange(20) % len(model.class_names)
    faustnet.Trainer(method, train=data, optimiser=adam, batch_size=10, start=forms[form])
    for name, parameter in model.method.named_parameters():
        assert torch.equal(parameter, method.state_dict()[name])


def test_mistakes_are_sentences(trained: Method, first: Pair, tmp_path: Path) -> None:
    def start(**about: object) -> None:
        faustnet.Trainer(made(seed=1), train=first, optimiser=adam, **about)

    with pytest.raises(FaustnetError, match=r"train_layers needs start, a trained model, got \[2\] without one"):
        start(train_layers=[2])
    with pytest.raises(FaustnetError, match=r"train_layers must be different numbers from 1 to 3, got \[4\]"):
        start(start=trained, train_layers=[4])
    with pytest.raises(FaustnetError, match="start must be a model, a method, a run folder or a model file, got int"):
        start(start=3)
    with pytest.raises(FaustnetError, match=r"but there is no .*nowhere"):
        start(start=tmp_path / "nowhere")
    with pytest.raises(FaustnetError, match=r"has no model\.safetensors: choose the folder of a finished run"):
        start(start=tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"12345678 not one")
    with pytest.raises(FaustnetError, match=r"start must be .* a model file, but .* is not one, or is damaged"):
        start(start=tmp_path)
    with pytest.raises(FaustnetError, match="None of the weights of the trained faust-representative fit this"):
        start(start=FIXTURES / "dense")
