"""What users may expect of their own layers: every schedule trains them, and what cannot be trained is refused."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import MethodType

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import contract_ranks
import ranks
from conftest import run_to_end, small_trainer
from faustnet.data import ImageSource
from faustnet.errors import FaustnetError
from faustnet.methods import FaustRepresentative, LocalMethod
from faustnet.nn.bodies import DenseBody
from faustnet.nn.layers import Layer
from faustnet.nn.modules import Linear
from faustnet.nn.network import Network
from faustnet.training.loop import TrainingLoop
from processes import run_file
from user_classes import (
    PIXELS,
    WIDTH,
    CallableLayer,
    MaskedLayer,
    MaskingMethod,
    ModuleLayer,
    NormLayer,
    OwnLayer,
    OwnMethod,
    OwnsParameter,
    PenaltyMethod,
    PictureNormLayer,
    PlainConvLayer,
    PlainLayer,
    RunningMeanLayer,
    TemperatureLayer,
    TemperatureMethod,
    assert_same_state,
    own_trainer,
    trained,
)

SCHEDULES = ("sequential", "wavefront", "greedy")


# A parameter of the method


def own_linear(method: LocalMethod) -> None:
    method.read_out = nn.Linear(3, 3).double()


def network_parameter(method: LocalMethod) -> None:
    method.network.gate = nn.Parameter(torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("method", "change", "name"),
    [
        pytest.param(OwnsParameter, lambda method: None, "sharpness", id="parameter"),
        pytest.param(OwnMethod, own_linear, r"read_out\.weight", id="module"),
        pytest.param(OwnMethod, network_parameter, r"network\.gate", id="network"),
    ],
)
def test_a_local_method_with_a_parameter_outside_its_layers_is_refused(
    schedule: str, method: type[LocalMethod], change: Callable[[LocalMethod], None], name: str
) -> None:
    with pytest.raises(FaustnetError, match=rf"{name}\b.*\blayer"):
        own_trainer([OwnLayer] * 2, schedule, method, change=change)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_frozen_parameter_of_a_method_is_no_mistake(schedule: str) -> None:
    def freeze(method: LocalMethod) -> None:
        assert isinstance(method, OwnsParameter)
        method.sharpness.requires_grad_(False)

    found = trained([OwnLayer] * 2, schedule, OwnsParameter, change=freeze)
    assert found.method.get_parameter("sharpness").item() == 1


@pytest.mark.parametrize("name", ["trifecta", "backprop"])
def test_methods_whose_layers_are_trained_together_may_own_parameters(
    name: str, source: ImageSource, held_out: ImageSource
) -> None:
    made = small_trainer(name, source, held_out, epochs=1)
    before = {name: tensor.clone() for name, tensor in made.method.named_parameters() if not name.startswith("network.")}
    run_to_end(made)
    assert before
    assert all(not torch.equal(made.method.get_parameter(name), tensor) for name, tensor in before.items())


# A parameter of a layer that only the loss reads


def temperatures(found: TrainingLoop) -> list[float]:
    return [layer.body.temperature.item() for layer in found.method.network]


@pytest.mark.parametrize("schedule", ["sequential", "wavefront", "greedy"])
def test_a_parameter_that_only_the_loss_reads_is_trained(schedule: str) -> None:
    found = temperatures(trained([TemperatureLayer] * 3, schedule, TemperatureMethod))
    assert all(abs(value - 1) > 0.01 for value in found)


def test_a_parameter_that_only_the_loss_reads_is_trained_alike() -> None:
    one, other = (trained([TemperatureLayer] * 3, name, TemperatureMethod) for name in ("wavefront", "sequential"))
    assert temperatures(one) == pytest.approx(temperatures(other), rel=1e-7)
    assert_same_state(one, other)


def test_a_loss_may_read_the_weights_of_its_layers() -> None:
    one, other = (trained([OwnLayer] * 3, schedule, PenaltyMethod) for schedule in ("wavefront", "sequential"))
    assert_same_state(one, other)


def test_a_method_may_change_buffers_of_its_layers_between_epochs() -> None:
    one, other = (trained([MaskedLayer] * 3, schedule, MaskingMethod) for schedule in ("wavefront", "sequential"))
    assert_same_state(one, other)


# Layers that differ in other things than parameters

DIFFERENT: dict[str, Sequence[Callable[[int], Layer]]] = {
    "string": [OwnLayer, partial(OwnLayer, activation="tanh"), partial(OwnLayer, activation="sigmoid")],
    "buffer": [MaskedLayer] * 3,
    "child": [partial(ModuleLayer, slope=slope) for slope in (0.01, 0.3, 0.9)],
    "callable": [partial(CallableLayer, function=function) for function in (torch.relu, torch.tanh, torch.sigmoid)],
}


@pytest.mark.parametrize("layers", DIFFERENT.values(), ids=DIFFERENT)
def test_layers_of_one_class_may_differ_in(layers: Sequence[Callable[[int], Layer]]) -> None:
    one, other = (trained(layers, schedule) for schedule in ("wavefront", "sequential"))
    assert_same_state(one, other)


def test_layers_that_differ_in_nothing_are_trained_alike() -> None:
    one, other = (trained([OwnLayer] * 3, schedule) for schedule in ("wavefront", "sequential"))
    assert_same_state(one, other)


class ShorterLayer(Layer):
    def scale_length(self, embedding: Tensor) -> Tensor:
        return super().scale_length(embedding) / 2


def shorter_embeddings(method: LocalMethod) -> None:
    for layer in method.network:
        layer.__class__ = ShorterLayer


class ShorterCall(Layer):
    def __call__(self, *rows: Tensor) -> tuple[Tensor, Tensor]:
        passed, embedding = super().__call__(*rows)
        return passed, embedding / 2


def shorter_results(method: LocalMethod) -> None:
    for layer in method.network:
        layer.__class__ = ShorterCall


def clamped(body: DenseBody, rows: Tensor) -> Tensor:
    return DenseBody.forward(body, rows).clamp_max(1)


def replaced_forward(method: LocalMethod) -> None:
    for layer in method.network:
        layer.body.forward = MethodType(clamped, layer.body)


def hook_of_gradients(method: LocalMethod) -> None:
    for layer in method.network:
        layer.head.register_full_backward_hook(lambda module, inputs, outputs: tuple(-part for part in inputs))


def masked_weight(method: LocalMethod) -> None:
    method.network[1].head.weight.register_hook(lambda gradient: 0 * gradient)


def hook_of_outputs(method: LocalMethod) -> None:
    for layer in method.network:
        layer.body.linear.register_forward_hook(lambda module, inputs, output: output / 2)


@pytest.mark.parametrize(
    "change", [shorter_embeddings, shorter_results, replaced_forward, hook_of_gradients, masked_weight, hook_of_outputs]
)
def test_layers_of_the_package_may_be_changed_in_any_schedule(change: Callable[[LocalMethod], None]) -> None:
    """The wavefront computes unchanged layers of this kind as one."""
    layers = [lambda inputs: Layer(DenseBody(inputs, WIDTH), Linear(WIDTH, 5, bias=False))] * 3
    plain, one, other = (
        trained(layers, schedule, FaustRepresentative, change=changed)
        for schedule, changed in (("wavefront", lambda method: None), ("wavefront", change), ("sequential", change))
    )
    assert_same_state(one, other)
    with pytest.raises(AssertionError):
        assert_same_state(plain, one)


def tied(method: LocalMethod) -> None:
    """The second and the third layer share a weight."""
    method.network[2].body.linear.weight = method.network[1].body.linear.weight


@pytest.mark.parametrize("schedule", ["wavefront", "greedy"])
def test_a_weight_of_two_layers_is_refused_where_layers_are_trained_apart(schedule: str) -> None:
    with pytest.raises(FaustnetError, match=r"linear\.weight"):
        own_trainer([OwnLayer] * 3, schedule, change=tied)


# Running statistics

STATISTICS = {"BatchNorm1d": NormLayer, "BatchNorm2d": PictureNormLayer, "replaced buffer": RunningMeanLayer}


def statistics_of(found: TrainingLoop) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in found.method.named_buffers() if name.startswith("network.layers.")}


@pytest.mark.parametrize("layer", STATISTICS.values(), ids=STATISTICS)
def test_running_statistics_are_those_of_the_sequential_schedule(layer: Callable[[int], Layer]) -> None:
    one, other = (trained([layer] * 3, schedule) for schedule in ("wavefront", "sequential"))
    mine, others = statistics_of(one), statistics_of(other)
    assert any(tensor.abs().max() > 0.01 for tensor in others.values()), "there is something to be learned"
    for name, tensor in others.items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-7, atol=1e-12, msg=lambda text, name=name: name + text)
    assert_same_state(one, other)


@pytest.mark.parametrize("layer", STATISTICS.values(), ids=STATISTICS)
def test_the_greedy_schedule_updates_running_statistics(layer: Callable[[int], Layer]) -> None:
    found = statistics_of(trained([layer] * 2, "greedy"))
    assert all(tensor.abs().max() > 0.01 for tensor in found.values())


# Several ranks


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the outcome of each of the cases is."""
    folder = tmp_path_factory.mktemp("ranks")
    process = run_file(Path(contract_ranks.__file__), folder)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return folder


def same_as_one_process(case: str, arrangement: str, folder: Path) -> None:
    found = load_file(folder / f"{case}-{arrangement}.safetensors")
    for name, tensor in ranks.outcome(contract_ranks.CASES[case]()).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-9, msg=lambda text, name=name: name + text)


def test_running_statistics_of_a_layer_on_the_second_rank_arrive_on_the_first(on_two_ranks: Path) -> None:
    same_as_one_process("batch norm", "1x2", on_two_ranks)


@pytest.mark.parametrize("case", ["batch norm", "batch norm of pictures", "mean of all batches"])
def test_batch_norms_of_torch_have_the_statistics_of_all_rows(case: str, on_two_ranks: Path) -> None:
    same_as_one_process(case, "2x1", on_two_ranks)


@pytest.mark.parametrize("arrangement", ["1x2", "2x1"])
def test_a_parameter_that_only_the_loss_reads_is_trained_on_ranks(arrangement: str, on_two_ranks: Path) -> None:
    same_as_one_process("temperature", arrangement, on_two_ranks)


@pytest.mark.parametrize("arrangement", ["1x2", "2x1"])
def test_all_tensors_that_a_body_passes_on_arrive_on_ranks(arrangement: str, on_two_ranks: Path) -> None:
    same_as_one_process("several tensors", arrangement, on_two_ranks)


@pytest.mark.parametrize("arrangement", ["1x2", "2x1"])
@pytest.mark.parametrize("case", ["texts", "texts that are drawn"])
def test_a_transformer_of_texts_is_trained_on_ranks(case: str, arrangement: str, on_two_ranks: Path) -> None:
    """With their padding masks and dropout."""
    same_as_one_process(case, arrangement, on_two_ranks)


@pytest.mark.parametrize("arrangement", ["1x2", "2x1"])
def test_the_method_of_the_documentation_is_trained_on_ranks(arrangement: str, on_two_ranks: Path) -> None:
    same_as_one_process("page", arrangement, on_two_ranks)


@pytest.mark.parametrize("arrangement", ["1x2", "2x1"])
def test_a_local_method_with_a_parameter_outside_its_layers_is_refused_on_ranks(
    arrangement: str, on_two_ranks: Path
) -> None:
    said = [file.read_text() for file in sorted(on_two_ranks.glob(f"own parameter-{arrangement}-*.txt"))]
    assert ["sharpness" in sentence for sentence in said] == [True, True]


# Layers without a module of the package


@pytest.mark.parametrize("layers", [[PlainLayer] * 3, [PlainConvLayer]], ids=["linear", "convolutions"])
def test_layers_without_a_module_of_the_package_are_trained(layers: Sequence[Callable[[int], Layer]]) -> None:
    one, other = (trained(layers, schedule) for schedule in ("wavefront", "sequential"))
    assert_same_state(one, other)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        pytest.param(PlainLayer, 64 * 12 + 12 * 5, id="linear"),
        pytest.param(PlainConvLayer, 8 * 8 * (4 * 9) + 4 * 4 * (8 * 2 * 9) + 128 * 5, id="convolutions"),
    ],
)
def test_multiplications_of_the_modules_of_torch_are_counted(layer: Callable[[int], Layer], expected: int) -> None:
    assert Network([layer(PIXELS)], example=torch.zeros(1, 1, 8, 8)).multiplications == [expected]
