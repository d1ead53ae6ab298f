"""Networks of any modules: heads that fit, bodies that pass on several tensors, mistakes, and transformers."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import faustnet
from conftest import run_to_end, small_method
from faustnet.data import DataSet, ImageSource, Scaling
from faustnet.data.sources import ArraySource
from faustnet.errors import FaustnetError
from faustnet.export import export_run
from faustnet.methods import METHODS, LocalMethod, PredictionSettings, Source, build
from faustnet.nn.architectures import NetworkSettings, TextShape, embedding_network
from faustnet.nn.heads import ConvHead, TokenHead
from faustnet.nn.layers import Layer
from faustnet.nn.modules import Linear
from faustnet.nn.network import Network
from faustnet.training.evaluation import evaluate
from faustnet.training.loop import TrainingLoop
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.settings import TrainingSettings
from test_export import compare_scores

# Heads that fit


def fitted(value: Any, embedding: int) -> tuple[Layer, Tensor]:
    """Return the layer of a body that returns this value, in evaluation mode, and its embedding."""
    network = Network([Returns(value)], embedding, example=torch.zeros(2, 1)).eval()
    return network[0], network.embed(torch.zeros(2, 1))


class Returns(nn.Module):
    """A body that returns the same for all rows."""

    def __init__(self, value: Any):
        super().__init__()
        self.value = value

    def forward(self, rows: Tensor) -> Any:
        return self.value


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def normalised(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-5)
    return [(value - mean) / deviation for value in values]


def gelu(value: float) -> float:
    return value * (1 + math.erf(value / math.sqrt(2))) / 2


def test_vectors_get_a_linear_head() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(2, 5, dtype=torch.float64)
    layer, embedding = fitted(vectors, 3)
    assert isinstance(layer.head, Linear)
    weight = layer.head.weight.tolist()
    assert embedding.tolist() == [pytest.approx([dot(row, line) for line in weight]) for row in vectors.tolist()]


@pytest.mark.parametrize("lengths", [None, (4, 2), (1, 0)], ids=["no mask", "mask", "a row of padding"])
def test_tokens_get_a_head_of_their_mean_without_padding(lengths: tuple[int, int] | None) -> None:
    torch.manual_seed(0)
    tokens = torch.randn(2, 4, 6, dtype=torch.float64)
    padding = None if lengths is None else torch.arange(4) >= torch.tensor(lengths).unsqueeze(1)
    layer, embedding = fitted(tokens if padding is None else {"tokens": tokens, "padding": padding}, 3)
    assert isinstance(layer.head, TokenHead)
    weight, bias = layer.head.hidden.weight.tolist(), layer.head.hidden.bias.tolist()
    for row, count, found in zip(tokens.tolist(), lengths or (4, 4), embedding.tolist(), strict=True):
        seen = [normalised(token) for token in row[:count]]
        mean = normalised([sum(token[i] for token in seen) / max(count, 1) for i in range(6)])
        hidden = [gelu(dot(mean, line) + offset) for line, offset in zip(weight, bias, strict=True)]
        assert found == pytest.approx([dot(hidden, line) for line in layer.head.projection.weight.tolist()])


def test_a_mask_of_another_shape_or_type_is_no_padding_mask() -> None:
    tokens = torch.randn(2, 4, 6)
    for other in (torch.ones(2, 4), torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 4, 6, dtype=torch.bool)):
        layer, embedding = fitted((tokens, other), 3)
        torch.testing.assert_close(embedding, layer.head(tokens))


def convolved(maps: list, weight: list) -> list:
    """3×3 convolution of one image with padding 1, batch norm with its initial statistics, ReLU. [channel][y][x]"""
    height, width = len(maps[0]), len(maps[0][0])

    def at(channel: int, y: int, x: int) -> float:
        return maps[channel][y][x] if 0 <= y < height and 0 <= x < width else 0.0

    def value(kernels: list, y: int, x: int) -> float:
        products = (
            kernels[c][i][j] * at(c, y + i - 1, x + j - 1) for c in range(len(maps)) for i in range(3) for j in range(3)
        )
        return max(sum(products) / math.sqrt(1 + 1e-5), 0.0)

    return [[[value(kernels, y, x) for x in range(width)] for y in range(height)] for kernels in weight]


def test_feature_maps_get_a_convolutional_head() -> None:
    torch.manual_seed(0)
    maps = torch.randn(2, 3, 16, 4, dtype=torch.float64)  # pooled to 8×4
    layer, embedding = fitted(maps, 5)
    head = layer.head
    assert isinstance(head, ConvHead)
    for image, found in zip(maps.tolist(), embedding.tolist(), strict=True):
        pooled = [
            [[(channel[2 * y][x] + channel[2 * y + 1][x]) / 2 for x in range(4)] for y in range(8)] for channel in image
        ]
        seen = convolved(pooled, head.first.convolution.weight.tolist())
        seen = convolved(seen, head.second.convolution.weight.tolist())
        means = [sum(map(sum, channel)) / 32 for channel in seen]
        assert found == pytest.approx([dot(means, line) for line in head.projection.weight.tolist()])


@pytest.mark.parametrize(
    ("value", "size"),
    [(torch.ones(2, 5), 5), (torch.ones(2, 4, 6), 6), (torch.ones(2, 3, 8, 8), 3)],
    ids=["vectors", "tokens", "maps"],
)
def test_without_a_projection_embeddings_have_the_size_of_the_features(value: Tensor, size: int) -> None:
    layer, embedding = fitted(value, 0)
    assert embedding.shape == (2, size)
    assert layer.embedding_size == size
    assert layer.projection is None


@pytest.mark.parametrize("shape", [(2, 500), (2, 9, 64), (2, 64, 8, 8)], ids=["vectors", "tokens", "maps"])
def test_initial_embeddings_of_any_size_have_about_the_same_length(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    value = torch.randn(shape).abs() if len(shape) == 4 else torch.randn(shape)
    small, large = (fitted(value, size)[1].norm(dim=1).mean().item() for size in (32, 512))
    assert small == pytest.approx(large, rel=0.5)


def test_layers_and_blocks_may_be_mixed_and_heads_are_kept() -> None:
    own = nn.Linear(6, 2)
    network = Network([nn.Linear(5, 6), Layer(nn.ReLU(), own), nn.Linear(6, 7)], 3, example=torch.zeros(1, 5), dropout=0.1)
    assert network[1].head is own
    assert network.embedding_sizes == [3, 2, 3]
    assert [layer.dropout for layer in network] == [0.0, 0.0, 0.1]
    assert network.outputs == 7
    assert network.multiplications == [5 * 6 + 6 * 3, 6 * 2, 6 * 7 + 7 * 3]


def test_the_forward_pass_of_the_example_changes_nothing() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), Changed(lambda rows: rows * torch.rand_like(rows)))
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    generator = torch.get_rng_state()
    Network([Layer(body)], example=torch.ones(1, 5))
    assert torch.equal(torch.get_rng_state(), generator)
    assert body.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in body.state_dict().items())


# Mistakes


class Changed(nn.Module):
    """A body or a head that applies a function."""

    def __init__(self, function: Callable[[Tensor], Any]):
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> Any:
        return self.function(rows)


FOUR = torch.zeros(2, 4)
IDS = torch.ones(2, 4, dtype=torch.long)
MISTAKES: dict[str, tuple[Any, str]] = {
    "second block": (
        lambda: Network([nn.Linear(4, 3), nn.Linear(4, 3)], example=FOUR),
        r"^Block 2 \(Linear\) does not accept the output of block 1, a tensor of shape \(2, 3\): mat1 and mat2 .* fit\.$",
    ),
    "first block": (
        lambda: Network([nn.Linear(5, 3)], example=FOUR),
        r"^Block 1 \(Linear\) does not accept the example, a tensor of shape \(2, 4\): ",
    ),
    "size of a head": (
        lambda: Network([Layer(nn.Linear(4, 3), nn.Linear(5, 2))], example=FOUR),
        r"^The head of block 1 \(Layer\) does not accept its activation, a tensor of shape \(2, 3\): .* Change its size\.$",
    ),
    "head of tokens": (
        lambda: Network([Layer(nn.Identity(), nn.Linear(4, 3))], example=torch.zeros(2, 5, 4)),
        r"^The head of block 1 \(Layer\) must return embeddings of shape \(R, e\), here \(2, e\), got \(2, 5, 3\)",
    ),
    "head that returns a pair": (
        lambda: Network([Layer(nn.Identity(), Changed(lambda rows: (rows, rows)))], example=FOUR),
        r"must return embeddings of shape \(R, e\), here \(2, e\), got tuple",
    ),
    "no rows": (
        lambda: Network([Changed(torch.mean)], example=FOUR),
        r"tensors that block 1 \(Changed\) returns must have the rows of the batch first, here 2, got \(\)",
    ),
    "fewer rows": (
        lambda: Network([Changed(lambda rows: rows[:1])], example=FOUR),
        r"must have the rows of the batch first, here 2, got \(1, 4\)",
    ),
    "second tensor": (
        lambda: Network([Changed(lambda rows: (rows, rows.sum(dim=0)))], example=FOUR),
        r"must have the rows of the batch first, here 2, got \(4,\)",
    ),
    "nothing": (
        lambda: Network([Changed(lambda rows: None)], example=FOUR),
        r"must return a tensor, or a tuple or dictionary that contains one, got NoneType",
    ),
    "integers": (
        lambda: Network([Changed(Tensor.long)], 3, example=FOUR),
        r"of floats, got \(2, 4\) of torch\.int64: give the block its own head",
    ),
    "five dimensions": (
        lambda: Network([Changed(lambda rows: rows.view(2, 1, 1, 2, 2))], 3, example=FOUR),
        r"must be vectors .* of floats, got \(2, 1, 1, 2, 2\)",
    ),
    "no blocks": (lambda: Network([], example=FOUR), "^blocks must contain at least one module, got none"),
    "one module": (
        lambda: Network(nn.Linear(4, 3), example=FOUR),  # type: ignore[arg-type]
        "^blocks must be a list of modules, .* got Linear: list the parts that become layers, or write",
    ),
    "no module": (lambda: Network([torch.relu], example=FOUR), r"^blocks must be torch\.nn\.Modules, got block 1"),
    "no tensor": (lambda: Network([nn.Linear(4, 3)], example=[1.0]), "^example must be a tensor .*, got list"),
    "empty example": (
        lambda: Network([nn.Linear(4, 3)], example=FOUR[:0]),
        r"^example must be a tensor of one or more inputs, .* got a tensor of shape \(0, 4\)",
    ),
    "embedding": (
        lambda: Network([nn.Linear(4, 3)], -1, example=FOUR),
        r"^embedding must be 0 \(no projection\) or a size of at least 1, got -1",
    ),
    "embedding of another type": (lambda: Network([nn.Linear(4, 3)], 2.5, example=FOUR), r"^embedding must .*, got 2\.5"),
    "dropout": (
        lambda: Network([nn.Linear(4, 3)] * 2, dropout=1.0, example=FOUR),
        r"^Block 2|dropout must be at least 0 and below 1, got 1\.0",
    ),
    "length": (
        lambda: Network([nn.Linear(4, 3)], length="one", example=FOUR),
        "^length must be free or unit or learned, got 'one'",
    ),
    "dropout of ids": (
        lambda: Network([Layer(nn.Embedding(9, 3), dropout=0.1)], example=IDS),
        r"^The dropout of the first layer \(network\.input_dropout\) must be 0 for token ids .*, got 0\.1: use the",
    ),
    "mixed ids": (
        lambda: METHODS["faust-representative"](Network([nn.Embedding(9, 3)], 2, example=IDS), 2, mixup=0.5),
        r"^mixup must be 0 for token ids and other whole numbers, which cannot be mixed, got 0\.5",
    ),
    "clustered ids": (
        lambda: METHODS["faust-representative"](Network([nn.Embedding(9, 3)], 2, example=IDS), 2, choice="k-means"),
        r"^choice must be random for token ids and other whole numbers, .*, got 'k-means'",
    ),
    "labels among ids": (
        lambda: METHODS["forward-forward"](Network([nn.Embedding(9, 3)], 2, example=IDS), 2),
        r"^forward-forward replaces the first values .*, got torch\.int64: use another method for token ids",
    ),
    "mirror of vectors": (
        lambda: METHODS["ffcm"](Network([nn.Linear(4, 3)], 2, example=FOUR), 2).set_prediction(
            PredictionSettings(mirror=True)
        ),
        r"^prediction\.mirror is for images, .*, but the inputs of this network have shape \(4,\): leave it out",
    ),
    "body": (lambda: Layer(torch.relu), r"^body must be a torch\.nn\.Module, got"),
}


@pytest.mark.parametrize(("make", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence(make: Callable[[], object], said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        make()


# Bodies that pass on several tensors

WORDS, LENGTH, WIDTH, CLASSES = 11, 6, 8, 4


class AsTuple:
    """Tokens (R, T, d), True at padding (R, T), a state of each row (R, d)."""

    head = TokenHead

    @staticmethod
    def pack(tokens: Tensor, padding: Tensor, state: Tensor) -> Any:
        return tokens, (padding, state)

    @staticmethod
    def unpack(passed: Any) -> tuple[Tensor, Tensor, Tensor]:
        tokens, (padding, state) = passed
        return tokens, padding, state


class AsDictionary(AsTuple):
    @staticmethod
    def pack(tokens: Tensor, padding: Tensor, state: Tensor) -> Any:
        return {"tokens": tokens, "padding": padding, "nothing": None, "state": state}

    @staticmethod
    def unpack(passed: Any) -> tuple[Tensor, Tensor, Tensor]:
        return passed["tokens"], passed["padding"], passed["state"]


class PackedHead(TokenHead):
    def forward(self, packed: Tensor, padding: Tensor | None = None) -> Tensor:
        assert padding is None
        tokens, padding, _ = AsTensor.unpack(packed)
        return super().forward(tokens, padding)


class AsTensor(AsTuple):
    """All in one tensor (R, T, 2d + 1), which every part of the package passes on as it does any activation."""

    head = PackedHead

    @staticmethod
    def pack(tokens: Tensor, padding: Tensor, state: Tensor) -> Any:
        return torch.cat([tokens, padding.unsqueeze(2).to(tokens), state.unsqueeze(1).expand_as(tokens)], dim=2)

    @staticmethod
    def unpack(passed: Any) -> tuple[Tensor, Tensor, Tensor]:
        tokens, padding, state = passed.split([WIDTH, 1, WIDTH], dim=2)
        return tokens, padding.squeeze(2) > 0.5, state[:, 0]


FORMS = {"tuple": AsTuple, "dictionary": AsDictionary, "tensor": AsTensor}


class Words(nn.Module):
    def __init__(self, form: type[AsTuple]):
        super().__init__()
        self.form, self.words = form, nn.Embedding(WORDS, WIDTH)

    def forward(self, numbers: Tensor) -> Any:
        tokens = self.words(numbers)
        return self.form.pack(tokens, numbers == 0, tokens.mean(dim=1))


class Mixing(nn.Module):
    """Each token sees itself, the mean of those that are not padding, and the state; the state is changed and passed on."""

    def __init__(self, form: type[AsTuple]):
        super().__init__()
        self.form, self.linear, self.update = form, nn.Linear(3 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, passed: Any) -> Any:
        tokens, padding, state = self.form.unpack(passed)
        kept = (~padding).to(tokens).unsqueeze(2)
        mean = (tokens * kept).sum(dim=1) / kept.sum(dim=1)
        seen = torch.cat([tokens, mean.unsqueeze(1).expand_as(tokens), state.unsqueeze(1).expand_as(tokens)], dim=2)
        return self.form.pack(tokens + torch.tanh(self.linear(seen)), padding, state + torch.tanh(self.update(mean)))


def sentences() -> ArraySource:
    """Random words and padding; the class is that of most of the words."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(96) % CLASSES
    numbers = torch.randint(1, WORDS, (96, LENGTH), generator=generator)
    numbers[:, :2] = labels.unsqueeze(1) * 2 + 1
    lengths = torch.randint(2, LENGTH + 1, (96, 1), generator=generator)
    numbers = numbers.masked_fill(torch.arange(LENGTH) >= lengths, 0)
    return ArraySource(numbers, labels, [str(label) for label in range(CLASSES)])


def trained(name: str, schedule: str, form: type[AsTuple]) -> dict[str, Tensor]:
    """Return parameters, buffers and the optimiser's state after three epochs."""
    torch.manual_seed(0)
    layers = [Layer(body, form.head(WIDTH, 6, 5)) for body in (Words(form), Mixing(form), Mixing(form))]
    for layer in layers[1:]:
        layer.body.update.requires_grad_(False)  # the loss of a layer does not depend on the state that it passes on
    method = METHODS[name](Network(layers, example=torch.ones(1, LENGTH, dtype=torch.long)), CLASSES).double()
    return run_to_end(loop(method, schedule, sentences())).state()[0]


def loop(method: LocalMethod, schedule: str, train: Source, *, rate: float = 0.01, **settings: Any) -> TrainingLoop:
    how = TrainingSettings(**{"epochs": 3, "batch_size": 24, "schedule": schedule, "evaluate_every": 3, **settings})
    return TrainingLoop(method, train, train, how, OptimiserSettings(learning_rate=rate), seed=0)


def assert_equal_states(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-9, atol=1e-9, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("schedule", ["sequential", "wavefront", "greedy"])
@pytest.mark.parametrize("name", ["faust-representative", "faust-tuplet", "faust-prototype"])
def test_what_bodies_pass_on_in_several_tensors_is_what_they_pass_on_in_one(name: str, schedule: str) -> None:
    in_one = trained(name, schedule, AsTensor)
    assert_equal_states(trained(name, schedule, AsTuple), in_one)
    assert_equal_states(trained(name, schedule, AsDictionary), in_one)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_wavefront_passes_on_what_the_sequential_schedule_does(form: type[AsTuple]) -> None:
    one, other = (trained("faust-representative", schedule, form) for schedule in ("wavefront", "sequential"))
    assert_equal_states(one, other)


def test_a_body_may_pass_on_its_input() -> None:
    """The wavefront does not overwrite it before the next layer has it."""
    states = []
    for schedule in ("wavefront", "sequential"):
        torch.manual_seed(0)
        bodies = [nn.Embedding(WORDS, WIDTH), nn.Identity(), nn.Identity(), nn.Linear(WIDTH, WIDTH)]
        network = Network(bodies, 5, example=torch.ones(1, LENGTH, dtype=torch.long))
        method = METHODS["faust-representative"](network, CLASSES).double()
        states.append(run_to_end(loop(method, schedule, sentences())).state()[0])
    assert_equal_states(*states)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_gradient_crosses_a_boundary_in_any_of_the_tensors(form: type[AsTuple]) -> None:
    torch.manual_seed(0)
    network = Network([Words(form), Mixing(form), Mixing(form)], 5, example=torch.ones(1, LENGTH, dtype=torch.long))
    rows = sentences().plain(torch.arange(8))
    for number, embedding in enumerate(network.embeddings(rows)):
        network.zero_grad()
        embedding.square().sum().backward()
        reached = [any(p.grad is not None for p in layer.parameters()) for layer in network]
        assert reached == [other == number for other in range(3)]


# Transformers

IMAGES = NetworkSettings((16, 16, 16), 8, kind="transformer", head=12, heads=2, patch=4)
TEXTS = TextShape(16, 65)


def written(images: ImageSource) -> ArraySource:
    """An image as a text: a word for each square of 2×2 pixels that is not dark, its position and one of four
    brightnesses; and padding."""
    brightness = (avg_pool2d(images.images.pixels.float(), 2).flatten(1) / 51).long().clamp(max=4)  # (n, 16)
    words = torch.where(brightness > 0, 4 * torch.arange(16) + brightness, 0)
    order = (words == 0).int().argsort(dim=1, stable=True)
    return ArraySource(words.gather(1, order), images.labels, images.class_names)


@pytest.fixture(scope="module")
def exact(source: ImageSource) -> ImageSource:
    return replace(source, scaling=Scaling(source.scaling.mean.double(), source.scaling.deviation.double()))


@pytest.mark.parametrize("what", ["images", "texts"])
@pytest.mark.parametrize("name", ["faust-representative", "faust-prototype", "ffcm"])
def test_the_loss_of_a_transformer_layer_reaches_that_layer_alone(name: str, what: str, source: ImageSource) -> None:
    train = source if what == "images" else written(source)
    method = build(name, (1, 8, 8) if what == "images" else TEXTS, 10, IMAGES, {})
    method.start(train)
    index = torch.arange(32)
    for number, loss in enumerate(torch.cat(list(method.losses(train.plain(index), train.labels[index])))):
        method.zero_grad()
        loss.backward(retain_graph=True)
        for other, layer in enumerate(method.network):
            for parameter_name, parameter in layer.named_parameters():
                reached = parameter.grad is not None and bool(parameter.grad.any())
                assert reached == (other == number), parameter_name


@pytest.mark.parametrize("what", ["images", "texts"])
def test_the_wavefront_trains_a_transformer_as_the_sequential_schedule_does(what: str, exact: ImageSource) -> None:
    train = exact if what == "images" else written(exact)
    states = []
    for schedule in ("wavefront", "sequential"):
        torch.manual_seed(0)
        method = build("faust-representative", (1, 8, 8) if what == "images" else TEXTS, 10, IMAGES, {}).double()
        states.append(run_to_end(loop(method, schedule, train, batch_size=64, epochs=2)).state()[0])
    assert_equal_states(*states)


@pytest.mark.parametrize("schedule", ["sequential", "greedy"])  # the wavefront learns what the sequential schedule does
def test_a_transformer_learns_texts(schedule: str, source: ImageSource, held_out: ImageSource, digits: DataSet) -> None:
    torch.manual_seed(0)
    train = written(replace(source, images=digits.train))
    method = build("faust-representative", TEXTS, 10, NetworkSettings((64, 64), 32, kind="transformer"), {})
    run_to_end(loop(method, schedule, train, rate=0.003, batch_size=64, epochs=6, evaluate_every=6))
    assert evaluate(method, written(held_out)).accuracy > 0.8


def test_padding_does_not_change_a_prediction(source: ImageSource) -> None:
    """A token at the padding has no effect on the others."""
    torch.manual_seed(0)
    network = embedding_network(TEXTS, IMAGES).double().eval()
    numbers = written(source).plain(torch.arange(16))
    whole = [embedding.clone() for embedding in network.embeddings(numbers)]
    with torch.no_grad():
        network[0].body.tokens.weight[0] = 100.0
    for embedding, before in zip(network.embeddings(numbers), whole, strict=True):
        torch.testing.assert_close(embedding, before, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_an_empty_text_has_finite_embeddings_that_no_other_text_changes() -> None:
    torch.manual_seed(0)
    network = embedding_network(TEXTS, IMAGES).eval()
    numbers = torch.zeros(2, TEXTS.length, dtype=torch.long)
    numbers[1, :3] = torch.tensor([4, 5, 6])
    for together, alone in zip(network.embeddings(numbers), network.embeddings(numbers[:1]), strict=True):
        assert together.isfinite().all()
        torch.testing.assert_close(together[:1], alone)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    network = {"kind": "transformer", "widths": [32, 32], "embedding": 32, "head": 32, "heads": 4, "patch": 2}
    training = {"epochs": 4, "batch_size": 64, "evaluate_every": 4, "schedule": "sequential"}
    recipe = {"network": network, "training": training, "optimiser": {"learning_rate": 0.01}}
    return faustnet.train(recipe, tmp_path_factory.mktemp("runs") / "transformer", device="cpu")


def test_a_transformer_learns_images(run: Any, digits: DataSet) -> None:
    assert run.metrics["test_accuracy"] > 0.9
    assert faustnet.load(run.folder).measure(digits.test)["accuracy"] == run.metrics["test_accuracy"]


@pytest.mark.usefixtures("one_operator_table")
def test_a_transformer_is_exported(run: Any, digits: DataSet, tmp_path: Path) -> None:
    made = export_run(run, tmp_path / "model.onnx")
    assert made.difference < 1e-4
    compare_scores(made.path.read_bytes(), run.model(), digits.test.pixels[:50].numpy())
    counted = sum(run.model().method.multiplications)
    assert f"| **multiplications per image** | {counted:,}, in 1 forward pass |" in made.card.read_text()


@pytest.mark.parametrize("sample", [(1, 8, 8), TextShape(4, 65)])
def test_multiplications_of_a_transformer_are_those_of_a_plain_count(sample: Any) -> None:
    tokens, width, hidden, head, embedding = 4, 16, 2 * 16, 6, 8
    attention = tokens * (4 * width * width) + 2 * tokens * tokens * width  # queries, keys, values, result; all pairs
    block = attention + 2 * tokens * width * hidden
    patches, maps = tokens * width * 4 * 4, tokens * 3 * 3 * (width * head + head * head)
    if isinstance(sample, TextShape):
        patches, maps = 0, width * head
    network = embedding_network(sample, replace(IMAGES, head=head))
    own = block + maps + head * embedding
    assert network.multiplications == [patches + own, own, own]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"widths": (16, 32)}, r"network\.widths must be equal for network\.kind=transformer, got \[16, 32\]: try"),
        ({"heads": 3}, r"network\.heads must be a divisor of the width, 16, got 3"),
        ({"heads": 0}, r"network\.heads must be at least 1, got 0"),
        ({"patch": 0}, r"network\.patch must be at least 1, got 0"),
        ({"expansion": 0}, r"network\.expansion must be at least 1, got 0"),
        ({"head_side": 0}, r"network\.head_side must be at least 1, got 0"),
        ({"head": 0, "head_side": 4}, r"network\.head_side has no effect with network\.head=0, got 4: leave it out"),
        ({"pools": (1,)}, r"network\.pools must be empty for network\.kind=transformer, got \[1\]: leave it out"),
        (
            {"norm": "batch"},
            r"network\.norm must be layer for network\.kind=transformer, on which .*, got batch: leave it",
        ),
        (
            {"kind": "dense", "patch": 2},
            r"network\.patch must be 4 for network\.kind=dense, on which it has no effect, got 2",
        ),
        ({"kind": "vgg", "patch": 4}, r"network\.heads must be 4 for network\.kind=vgg, on which .*, got 2"),
        ({"passes_on": "embedding"}, r"network\.passes_on must be activation for network\.kind=transformer"),
    ],
)
def test_settings_that_a_transformer_cannot_have_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        replace(IMAGES, **changes)


def test_the_side_of_the_heads_of_other_networks_is_refused() -> None:
    with pytest.raises(FaustnetError, match=r"network\.head_side must be 8 for network\.kind=dense, on which it has"):
        NetworkSettings((8,), head_side=4)
    with pytest.raises(FaustnetError, match=r"network\.head_side must be 8 for network\.kind=transformer, on which"):
        embedding_network(TextShape(8, 20), replace(IMAGES, head_side=4))


def test_patches_that_do_not_divide_an_image_are_refused() -> None:
    with pytest.raises(FaustnetError, match=r"network\.patch must divide the height and width of the images, 8×12, got 3"):
        embedding_network((1, 8, 12), replace(IMAGES, patch=3))


@pytest.mark.parametrize("name", ["faust-representative", "cwc", "trifecta", "forward-forward", "backprop"])
def test_texts_are_for_transformers(name: str) -> None:
    kind = "vgg" if name == "trifecta" else "dense"
    with pytest.raises(FaustnetError, match=rf"network\.kind must be transformer for texts, got '{kind}'"):
        build(name, TEXTS, 10, NetworkSettings((20, 20), kind=kind), {})


def test_methods_with_other_layers_refuse_a_transformer() -> None:
    with pytest.raises(FaustnetError, match=r"network\.kind must be dense for this method, got 'transformer'"):
        small_method("forward-forward", IMAGES)
    with pytest.raises(FaustnetError, match=r"network\.kind must be vgg for this method, got 'transformer'"):
        small_method("cwc", replace(IMAGES, widths=(20, 20)))
