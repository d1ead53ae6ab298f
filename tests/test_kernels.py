"""Every Triton kernel against its formula: on a GPU where there is one, otherwise on the CPU in Triton's interpreter."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("triton", reason="needs Triton: pip install triton (it comes with the GPU builds of PyTorch)")

import triton

from faustnet.losses import (
    batch_tuplet_loss,
    formulas,
    gradients,
    marginal_contrastive_loss,
    objective,
    reference_tuplet_loss,
    soft_minimum,
    squared_distances,
    tuplet_loss,
)
from faustnet.nn import heads, kernels, layers, modules
from faustnet.nn.batched import BatchedLinear, StackedParameter
from faustnet.nn.bodies import ConvBody, DenseBody
from faustnet.nn.heads import ConvHead
from faustnet.nn.kernels import cache_key, contrastive
from faustnet.nn.layers import Layer, scaled
from faustnet.nn.precision import matmul_precision
from faustnet.nn.side_stream import SideStream
from faustnet.nn.structure import Structure
from faustnet.training.optimisers import OptimiserSettings, base, muon

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

Calls = Callable[[str], list[None]]


@pytest.fixture
def calls_of(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Let the package use its kernels on this device, and count the calls of one of them."""
    for module in (formulas, gradients, objective, heads, layers, modules, base, muon):
        monkeypatch.setattr(module, "has_triton", lambda device: True)

    def count(name: str) -> list[None]:
        kernel, calls = getattr(kernels, name), []

        def counted(*arguments: object, **options: object) -> object:
            calls.append(None)
            return kernel(*arguments, **options)

        monkeypatch.setattr(kernels, name, counted)
        return calls

    return count


@pytest.fixture
def float32_products() -> Iterator[None]:
    """cuDNN computes convolutions in TF32 otherwise."""
    with matmul_precision("float32"):
        yield


def test_the_key_of_tritons_cache_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "cache"))
    computed: list[None] = []

    def compute() -> str:
        computed.append(None)
        return f"key {len(computed)}"

    assert [cache_key.remembered(compute) for _ in range(2)] == ["key 1", "key 1"]
    file = tmp_path / "cache" / cache_key.FILE
    file.write_text("{")  # damaged
    assert cache_key.remembered(compute) == "key 2"
    monkeypatch.setattr(triton, "__version__", "0")  # another Triton
    assert [cache_key.remembered(compute) for _ in range(2)] == ["key 3", "key 3"]
    monkeypatch.setattr(triton.knobs.cache, "dir", str(file / "no folder"))
    assert cache_key.remembered(compute) == "key 4"


def relative(one: Tensor, other: Tensor) -> float:
    return ((one.double().cpu() - other.cpu()).norm() / other.cpu().norm()).item()


@pytest.mark.parametrize(("classes", "values", "smoothing"), [(10, 256, 0.0), (7, 40, 0.1), (100, 70, 0.0), (200, 40, 0.1)])
def test_the_tuplet_kernel_is_the_formula(classes: int, values: int, smoothing: float, calls_of: Calls) -> None:
    torch.manual_seed(0)
    exact = torch.randn(3, 50 + classes, values, dtype=torch.float64).requires_grad_()
    labels, weights = torch.randint(classes, (3, 50)), torch.rand(3)
    distances = squared_distances(exact[:, :50], exact[:, 50:]).unsqueeze(-1)
    expected = tuplet_loss(soft_minimum(distances, 0.02), labels, 0.02, smoothing)
    calls = calls_of("reference_tuplet")
    rough = exact.detach().float().to(DEVICE).requires_grad_()
    found = reference_tuplet_loss(rough, labels.to(DEVICE), classes, 0.02, smoothing)
    assert len(calls) == 1
    assert relative(found, expected) < 1e-5
    (by_exact,) = torch.autograd.grad((expected * weights).sum(), exact)
    (by_rough,) = torch.autograd.grad((found * weights.to(DEVICE)).sum(), rough)
    assert relative(by_rough, by_exact) < 1e-5


def test_a_gradient_is_not_multiplied_by_marked_ones(calls_of: Calls) -> None:
    torch.manual_seed(0)
    calls = calls_of("scale_layers")
    embedding, labels = torch.randn(3, 50 + 4, 16, device=DEVICE).requires_grad_(), torch.randint(4, (3, 50), device=DEVICE)
    found = []
    for make in (gradients.unit_gradient, torch.ones_like):
        losses = reference_tuplet_loss(embedding, labels, 4, 0.1) + marginal_contrastive_loss(
            embedding[:, :50], labels, 0.0, 0.1
        )
        found.append(torch.autograd.grad(losses, embedding, make(losses.detach()))[0])
    assert torch.equal(*found)
    assert len(calls) == 2


@pytest.mark.parametrize(("classes", "batch", "smoothing"), [(7, 50, 0.1), (90, 50, 0.0), (300, 150, 0.1)])
def test_the_tuplet_kernel_within_the_batch_is_the_formula(
    classes: int, batch: int, smoothing: float, calls_of: Calls
) -> None:
    torch.manual_seed(0)
    exact = torch.randn(2, 2 * batch, 40, dtype=torch.float64).requires_grad_()
    labels, weights = torch.randint(classes, (2, batch)), torch.rand(2)
    expected = batch_tuplet_loss(exact, labels, 0.02, smoothing)
    calls = calls_of("reference_tuplet")
    rough = exact.detach().float().to(DEVICE).requires_grad_()
    found = batch_tuplet_loss(rough, labels.to(DEVICE), 0.02, smoothing)
    assert len(calls) == 1
    assert relative(found, expected) < 1e-5
    (by_exact,) = torch.autograd.grad((expected * weights).sum(), exact)
    (by_rough,) = torch.autograd.grad((found * weights.to(DEVICE)).sum(), rough)
    assert relative(by_rough, by_exact) < 1e-5


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("label", [-100, -1, 4, 12, 16, 2**40])
def test_the_tuplet_kernel_makes_the_loss_of_a_label_out_of_range_nan(label: int, smoothing: float) -> None:
    """4 classes are padded to 16: a label that is a number of the padding is out of range too."""
    torch.manual_seed(0)
    embedding, labels = torch.randn(2, 20 + 4, 8, device=DEVICE), torch.arange(40, device=DEVICE).view(2, 20) % 4
    labels[1, 17] = label
    loss, by_embedding = kernels.reference_tuplet(embedding, labels, 0.3, smoothing)
    wrong = torch.zeros(2, 20, dtype=torch.bool)
    wrong[1, 17] = True
    assert loss.isnan().tolist() == [False, True]
    assert torch.equal(by_embedding[:, :20].isnan().all(dim=-1).cpu(), wrong)
    assert by_embedding[1, 20:].isnan().all()
    assert by_embedding[0].isfinite().all()


def test_the_tuplet_kernel_stays_finite_at_large_distances(calls_of: Calls) -> None:
    torch.manual_seed(0)
    far = (1e3 * torch.randn(1, 24, 8)).to(DEVICE).requires_grad_()
    calls = calls_of("reference_tuplet")
    loss = reference_tuplet_loss(far, torch.arange(20, device=DEVICE).unsqueeze(0) % 4, 4, 1.0, 0.1)
    (gradient,) = torch.autograd.grad(loss.sum(), far)
    assert len(calls) == 1
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("batch", "values", "classes", "margin"),
    [
        (70, 70, 10, 0.0),
        (40, 256, 7, 0.3),
        (33, 330, 3, (0.0, 0.4)),
        (50, 9, 1, 0.0),
        (130, 20, 90, 0.0),  # two strips, one of two tiles, and many classes with one row
        (1, 8, 4, 0.1),
    ],
)
def test_the_contrastive_kernels_are_the_formula(
    batch: int,
    values: int,
    classes: int,
    margin: float | tuple[float, ...],
    calls_of: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows of a layer are followed by others, as in an objective, and the layers share their labels."""
    monkeypatch.setattr(contrastive, "STRIPS", 2)
    torch.manual_seed(0)
    exact = torch.randn(2, batch + 3, values, dtype=torch.float64).requires_grad_()
    labels, weights = torch.randint(classes, (batch,)), torch.rand(2)
    labels[0] = classes + 1  # the only row of its class
    margins = margin if isinstance(margin, float) else torch.tensor(margin, dtype=torch.float64)
    expected = marginal_contrastive_loss(exact[:, :batch], labels.expand(2, -1), margins, 0.1)
    calls = calls_of("marginal_contrastive")
    rough = exact.detach().float().to(DEVICE).requires_grad_()
    margins = margins if isinstance(margins, float) else margins.to(DEVICE)
    found = marginal_contrastive_loss(rough[:, :batch], labels.to(DEVICE).expand(2, -1), margins, 0.1)
    assert len(calls) == 1
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-5, atol=1e-6)
    (by_exact,) = torch.autograd.grad((expected * weights).sum(), exact)
    (by_rough,) = torch.autograd.grad((found * weights.to(DEVICE)).sum(), rough)
    assert by_rough.dtype == torch.float32
    assert (by_rough.double().cpu() - by_exact).norm() <= 1e-5 * by_exact.norm()


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_the_contrastive_kernels_with_bfloat16_and_one_layer_are_the_formula(scale: float, calls_of: Calls) -> None:
    torch.manual_seed(0)
    rough = (torch.randn(70, 48) * scale).bfloat16().to(DEVICE).requires_grad_()
    labels, calls = torch.randint(10, (70,), dtype=torch.int32), calls_of("marginal_contrastive")
    found = marginal_contrastive_loss(rough, labels.to(DEVICE), 0.0, 0.1)
    assert len(calls) == 1
    (by_rough,) = torch.autograd.grad(found * 0.3, rough)
    exact = rough.detach().double().cpu().requires_grad_()
    expected = marginal_contrastive_loss(exact, labels, 0.0, 0.1)
    (by_exact,) = torch.autograd.grad(expected * 0.3, exact)
    assert (found.dtype, by_rough.dtype) == (torch.float32, torch.bfloat16)
    assert relative(found, expected) < 1e-4
    assert relative(by_rough, by_exact) < 1e-2


def test_the_contrastive_kernels_stay_finite_at_a_low_temperature(calls_of: Calls) -> None:
    """Logits from −100 to 100. The row of zeros is divided by a small length instead of its own."""
    torch.manual_seed(0)
    exact = torch.randn(1, 70, 2, dtype=torch.float64)
    exact[0, 5] = 0
    labels, calls = torch.arange(70).unsqueeze(0) % 3, calls_of("marginal_contrastive")
    rough, exact = exact.float().to(DEVICE).requires_grad_(), exact.requires_grad_()
    found, expected = (marginal_contrastive_loss(rows, labels.to(rows.device), 0.0, 0.01) for rows in (rough, exact))
    assert len(calls) == 1
    assert relative(found, expected) < 1e-4
    (mine,), (theirs,) = (torch.autograd.grad(loss.sum(), rows) for loss, rows in ((found, rough), (expected, exact)))
    others = torch.arange(70) != 5
    assert relative(mine[0, others.to(DEVICE)], theirs[0, others]) < 1e-3
    assert relative(mine[0, 5], theirs[0, 5]) < 1e-3


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # of a maximum in Triton's interpreter
@pytest.mark.parametrize("classes", [3, 100])
@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_the_contrastive_kernels_pass_nan_on(classes: int, margin: float) -> None:
    """Also if no row has another one of its class, and the loss would be 0."""
    torch.manual_seed(0)
    embedding, labels = torch.randn(2, 70, 8, device=DEVICE), torch.arange(140, device=DEVICE).view(2, 70) % classes
    embedding[1, 66, 3] = torch.nan
    losses, by_embedding = kernels.marginal_contrastive(embedding, labels, margin, 0.1)
    assert losses.isnan().tolist() == [False, True]
    assert by_embedding[0].isfinite().all()
    assert by_embedding[1].isnan().all()


@pytest.mark.parametrize("shape", [(3, 40, 800), (50, 500), (2, 7, 3), (5, 5000)])
def test_the_norm_kernel_is_the_formula(shape: tuple[int, ...], calls_of: Calls) -> None:
    torch.manual_seed(0)
    weight, bias = (torch.randn(*shape[:-2], shape[-1], *more, device=DEVICE).requires_grad_() for more in ((16,), ()))
    rows, weights = torch.randn(*shape[:-1], 16, device=DEVICE), torch.randn(shape, device=DEVICE)
    calls = calls_of("relu_norm")
    left_out: list[Tensor] = []  # gradients by biases, which the kernel leaves to the optimiser
    if len(shape) == 3:
        stacked = [StackedParameter(name, slice(0, 3), own, own) for name, own in (("weight", weight), ("bias", bias))]
        stacked[1].update = lambda by_hidden: left_out.append(kernels.sum_rows(by_hidden))
        found = modules.relu_norm(BatchedLinear(stacked[:1], stacked[1], SideStream(DEVICE)), [rows])
    else:
        layer = modules.Linear(16, shape[-1])
        layer.weight, layer.bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())
        weight, bias = layer.weight, layer.bias
        found = modules.relu_norm(layer, rows)
    assert len(calls) == 1
    asked = [weight] if len(shape) == 3 else [weight, bias]
    gradients = [*torch.autograd.grad((found * weights).sum(), asked), *left_out]
    weight, bias = (parameter.detach().double().requires_grad_() for parameter in (weight, bias))
    hidden = functional.relu(rows.double() @ weight.mT + bias.unsqueeze(-2))
    expected = functional.layer_norm(hidden, hidden.shape[-1:])
    assert relative(found, expected) < 1e-5
    for mine, exact in zip(gradients, torch.autograd.grad((expected * weights).sum(), [weight, bias]), strict=True):
        assert relative(mine, exact) < 1e-4


def test_the_norm_kernel_refuses_a_second_derivative() -> None:
    hidden, bias = torch.randn(3, 8, device=DEVICE, requires_grad=True), torch.zeros(8, device=DEVICE)
    (first,) = torch.autograd.grad(kernels.relu_norm(hidden, bias).square().sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("shape", [(3, 20, 40), (30, 256), (2, 5, 1), (4, 3000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_of_unit_rows_is_the_formula(shape: tuple[int, ...], dtype: torch.dtype, calls_of: Calls) -> None:
    """One row is zeros, and one is shorter than what a row is divided by at least."""
    torch.manual_seed(0)
    rows = torch.randn(shape) * 3
    rows[..., 0, :], rows[..., 1, :] = 0, 1e-15
    rough, calls = rows.to(DEVICE, dtype).requires_grad_(), calls_of("unit_rows")
    found = scaled(rough, True, None)
    exact = rough.detach().double().cpu().requires_grad_()
    expected, weights = functional.normalize(exact, dim=-1), torch.randn(shape).to(dtype)
    (by_rough,) = torch.autograd.grad((found * weights.to(DEVICE)).sum(), rough)
    (by_exact,) = torch.autograd.grad((expected * weights).sum(), exact)
    assert len(calls) == 1
    assert (found.dtype, by_rough.dtype) == (dtype, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert relative(found, expected) < tolerance
    assert relative(by_rough[..., :2, :], by_exact[..., :2, :]) < tolerance
    torch.testing.assert_close(by_rough[..., 2:, :].double().cpu(), by_exact[..., 2:, :], rtol=tolerance, atol=tolerance)
    assert scaled(rough.detach(), True, None).dtype == dtype
    assert len(calls) == 1


def test_the_kernel_of_unit_rows_passes_nan_on() -> None:
    rows = torch.ones(3, 5, device=DEVICE)
    rows[1, 2] = torch.nan
    rows.requires_grad_()
    found = kernels.unit_rows(rows)
    (by_rows,) = torch.autograd.grad(found.sum(), rows)
    for values in (found, by_rows):
        assert values.isnan().all(dim=1).tolist() == [False, True, False]


def stored(tensor: Tensor, last: bool) -> Tensor:
    """Return weights of convolutions in single precision, with the channels last in memory. (n, out, in, h, w)"""
    tensor = tensor.float().to(DEVICE)
    return tensor.movedim(2, -1).contiguous().movedim(-1, 2) if last else tensor


@pytest.mark.parametrize(("shape", "last"), [((3, 40, 50), False), ((3, 6, 5, 3, 3), False), ((3, 6, 5, 3, 3), True)])
@pytest.mark.parametrize(("name", "momentum"), [("adam", 0.9), ("adamw", 0.9), ("sgd", 0.0), ("sgd", 0.9)])
def test_the_update_kernel_is_the_formula(
    name: str, momentum: float, shape: tuple[int, ...], last: bool, calls_of: Calls
) -> None:
    settings = OptimiserSettings(name, weight_decay=0.1, momentum=momentum)
    torch.manual_seed(0)
    exact = torch.randn(shape, dtype=torch.float64)
    rough = stored(exact, last)
    copy = rough.bfloat16()
    optimiser = settings.create()
    theirs, ours = ([torch.zeros_like(weight) for _ in optimiser.slots(2)] for weight in (exact, rough))
    calls = calls_of("update")
    for step in range(1, 6):
        rates, active = torch.full((3,), 0.01, dtype=torch.float64), torch.tensor([True, step > 3, True])
        factors = optimiser.factors(rates, torch.full((3,), step), active)
        gradient = torch.randn(shape, dtype=torch.float64)
        optimiser.update(exact, gradient, theirs, factors, exact)
        optimiser.update(rough, gradient.float().to(DEVICE), ours, factors.to(DEVICE), copy)
    assert len(calls) == 5
    for mine, other in zip([rough, *ours], [exact, *theirs], strict=True):
        assert relative(mine, other) < 1e-5
    assert relative(copy, exact) < 1e-2


def test_weights_with_gaps_in_memory_are_updated_without_the_kernel(calls_of: Calls) -> None:
    calls = calls_of("update")
    optimiser = OptimiserSettings("sgd", learning_rate=0.5, momentum=0.0).create()
    whole = torch.zeros(1, 4, 6, device=DEVICE)
    factors = optimiser.factors(torch.tensor([0.5]), torch.ones(1), torch.ones(1, dtype=torch.bool)).to(DEVICE)
    for weight, expected in ((whole[..., ::2], 0), (whole.mT, 1)):
        optimiser.update(weight, torch.ones(weight.shape, device=DEVICE), [], factors, weight)
        assert len(calls) == expected
    assert torch.equal(whole[0, :, ::2], torch.full((4, 3), -1.0, device=DEVICE))
    assert torch.equal(whole[0, :, 1::2], torch.full((4, 3), -0.5, device=DEVICE))


@pytest.mark.parametrize(
    ("shape", "last"),
    [((3, 20, 30), False), ((2, 90, 100), False), ((1, 40, 4), False), ((2, 6, 5, 3, 3), False), ((2, 6, 5, 3, 3), True)],
)
def test_the_kernels_of_muon_are_the_formula(shape: tuple[int, ...], last: bool, calls_of: Calls) -> None:
    """The iteration is computed in bfloat16. The second layer is not active in every other step; the first has a gradient
    of zeros at first. The weights of convolutions may be stored with the channels last."""
    torch.manual_seed(0)
    optimiser = OptimiserSettings("muon", learning_rate=0.1, weight_decay=0.1).create()
    exact, theirs = torch.randn(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    start = exact.clone()
    rough, ours = stored(exact, last), stored(theirs, last)
    copy = rough.bfloat16()
    calls = calls_of("move")
    for step in range(4):
        gradient = torch.randn(shape, dtype=torch.float64)
        gradient[0] *= step > 0
        active = torch.ones(len(exact), dtype=torch.bool)
        active[1:2] = step % 2 == 0
        factors = optimiser.factors(torch.full((len(exact),), 0.1, dtype=torch.float64), torch.ones(len(exact)), active)
        optimiser.update(exact, gradient, [theirs], factors, exact)
        optimiser.update(rough, gradient.float().to(DEVICE), [ours], factors.to(DEVICE), copy)
    assert len(calls) == 4
    assert relative(ours, theirs) < 1e-5
    assert relative(rough - start.float().to(DEVICE), exact - start) < 2e-2
    assert relative(copy, rough.double()) < 1e-2


def test_muon_moves_parameters_of_one_shape_together_by_kernels(calls_of: Calls) -> None:
    torch.manual_seed(0)
    shapes = [(6, 8), (5, 4, 3, 3), (6, 8), (7,), (5, 4, 3, 3)]
    exact = [torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]
    rough = [torch.nn.Parameter(weight.detach().float().to(DEVICE)) for weight in exact]
    rough[1].data = rough[1].data.contiguous(memory_format=torch.channels_last)
    start = [weight.detach().clone() for weight in exact]
    settings = OptimiserSettings("muon", learning_rate=0.1, weight_decay=0.1)
    updates = [settings.create().updates(own, [own]) for own in map(torch.nn.ParameterList, (exact, rough))]
    calls = calls_of("move")
    for _ in range(3):
        for one, other in zip(exact, rough, strict=True):
            one.grad = torch.randn(one.shape, dtype=torch.float64)
            other.grad = one.grad.float().to(DEVICE)
        for own in updates:
            own.step(torch.tensor(0.1))
    assert len(calls) == 3 * 4
    for one, other, before in zip(exact, rough, start, strict=True):
        assert relative(other.detach() - before.float().to(DEVICE), one.detach() - before) < 2e-2


@pytest.mark.parametrize(("shape", "side"), [((3, 20, 8, 12), (4, 4)), ((2, 130, 16, 16), (8, 8)), ((2, 3, 6, 5), (2, 1))])
def test_the_kernel_of_block_means_is_the_formula(shape: tuple[int, ...], side: tuple[int, int]) -> None:
    torch.manual_seed(0)
    maps = torch.randn(shape, device=DEVICE).contiguous(memory_format=torch.channels_last).requires_grad_()
    found, expected = kernels.block_means(maps, side), functional.adaptive_avg_pool2d(maps, side)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    (mine,), (exact,) = (torch.autograd.grad((means * weights).sum(), maps) for means in (found, expected))
    torch.testing.assert_close(mine, exact)
    assert mine.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(3, 20, 8, 12), (2, 130, 4, 4)])
def test_the_kernel_of_block_maxima_is_the_formula(shape: tuple[int, ...], calls_of: Calls) -> None:
    """Of equal values in a block, the first gets the gradient."""
    torch.manual_seed(0)
    calls = calls_of("block_maxima")
    maps = torch.randint(4, shape, device=DEVICE).float().contiguous(memory_format=torch.channels_last).requires_grad_()
    found, expected = modules.max_pool(maps), functional.max_pool2d(maps, 2)
    assert len(calls) == 1
    assert torch.equal(found, expected)
    weights = torch.randn_like(found)
    (mine,), (exact,) = (torch.autograd.grad((maxima * weights).sum(), maps) for maxima in (found, expected))
    assert torch.equal(mine, exact)
    assert mine.is_contiguous(memory_format=torch.channels_last)
    odd = torch.randn(2, 3, 5, 4, device=DEVICE)
    assert torch.equal(modules.max_pool(odd), functional.max_pool2d(odd, 2))
    assert len(calls) == 1
    with torch.no_grad():
        maps[1, 2, 3, 0] = torch.nan
    assert modules.max_pool(maps).isnan().nonzero().tolist() == [[1, 2, 1, 0]]


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("shape", [(9, 70, 8, 8), (3, 16, 4, 4), (40, 5, 16, 16), (2, 200, 3, 5)])
def test_the_kernel_of_batch_norm_is_the_formula(shape: tuple[int, ...], adds: bool, calls_of: Calls) -> None:
    """The mean is large beside the standard deviation, where sums of squares would cancel."""
    torch.manual_seed(0)
    norm, weights = modules.BatchNorm(shape[1], relu=True), torch.randn(shape, dtype=torch.float64)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    gain, offset = (parameter.detach().double().requires_grad_() for parameter in (norm.gain, norm.offset))
    maps, added = ((torch.randn(shape) * 3 + mean).contiguous(memory_format=torch.channels_last) for mean in (50, 0))
    inputs = [maps, added] if adds else [maps]
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    normal = functional.batch_norm(exact[0], None, None, gain, offset, training=True, eps=modules.EPSILON)
    expected = sum(exact[1:], normal).relu()
    calls = calls_of("batch_norm_relu")
    rough = [tensor.to(DEVICE).requires_grad_() for tensor in inputs]
    found = norm.to(DEVICE)(*rough)
    assert len(calls) == 1
    assert relative(found, expected) < 1e-5
    mine = torch.autograd.grad((found * weights.to(DEVICE)).sum(), [*rough, norm.gain, norm.offset])
    theirs = torch.autograd.grad((expected * weights).sum(), [*exact, gain, offset])
    for one, other in zip(mine, theirs, strict=True):
        assert relative(one, other) < 1e-4


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("used", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("shape", "side"), [((9, 70, 8, 8), (4, 4)), ((3, 130, 16, 16), (8, 8)), ((2, 5, 6, 4), (2, 1)), ((3, 5, 4, 4), (4, 4))]
)
def test_the_kernel_of_batch_norm_with_means_is_the_formula(
    shape: tuple[int, ...], side: tuple[int, int], used: tuple[bool, bool], adds: bool, calls_of: Calls
) -> None:
    """The gradient comes through the feature maps, through their means, or through both."""
    torch.manual_seed(0)
    norm = modules.BatchNorm(shape[1], relu=True)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    gain, offset = (parameter.detach().double().requires_grad_() for parameter in (norm.gain, norm.offset))
    inputs = [torch.randn(shape).contiguous(memory_format=torch.channels_last) for _ in range(1 + adds)]
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    normal = functional.batch_norm(exact[0], None, None, gain, offset, training=True, eps=modules.EPSILON)
    maps = sum(exact[1:], normal).relu()
    expected = maps, functional.adaptive_avg_pool2d(maps, side)
    calls = calls_of("batch_norm_relu_with_means")
    rough = [tensor.to(DEVICE).requires_grad_() for tensor in inputs]
    found = norm.to(DEVICE).with_means(rough[0], side, *rough[1:])
    assert len(calls) == (side != shape[2:])
    for one, other in zip(found, expected, strict=True):
        assert relative(one, other) < 1e-5
    weights = [torch.randn(tensor.shape, dtype=torch.float64) for tensor in expected]

    def gradients(outputs: tuple[Tensor, ...], parameters: list[Tensor]) -> tuple[Tensor, ...]:
        pairs = zip(outputs, weights, used, strict=True)
        total = sum((output * weight.to(output.device)).sum() for output, weight, on in pairs if on)
        return torch.autograd.grad(total, parameters)

    mine, theirs = gradients(found, [*rough, norm.gain, norm.offset]), gradients(expected, [*exact, gain, offset])
    for one, other in zip(mine, theirs, strict=True):
        assert relative(one, other) < 1e-4


@pytest.mark.parametrize("shape", [(9, 70, 8, 8), (3, 130, 4, 4), (2, 5, 12, 10), (7, 3, 1, 1)])
def test_the_kernel_of_the_mean_of_batch_norm_is_the_formula(shape: tuple[int, ...], calls_of: Calls) -> None:
    torch.manual_seed(0)
    norm, weights = modules.BatchNorm(shape[1], relu=True), torch.randn(shape[:2], dtype=torch.float64)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    gain, offset = (parameter.detach().double().requires_grad_() for parameter in (norm.gain, norm.offset))
    maps = (torch.randn(shape) * 3 + 50).contiguous(memory_format=torch.channels_last)
    exact, rough = maps.double().requires_grad_(), maps.to(DEVICE).requires_grad_()
    normal = functional.batch_norm(exact, None, None, gain, offset, training=True, eps=modules.EPSILON)
    expected = normal.relu().mean(dim=(2, 3))
    calls = calls_of("batch_norm_relu_mean")
    found = norm.to(DEVICE).averaged(rough)
    assert len(calls) == 1
    assert relative(found, expected) < 1e-5
    mine = torch.autograd.grad((found * weights.to(DEVICE)).sum(), [rough, norm.gain, norm.offset])
    theirs = torch.autograd.grad((expected * weights).sum(), [exact, gain, offset])
    for one, other in zip(mine, theirs, strict=True):
        assert relative(one, other) < 1e-4


@pytest.mark.usefixtures("float32_products")
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_a_convolutional_layer_computes_means_with_its_feature_maps(residual: bool, pool: bool, calls_of: Calls) -> None:
    """With hooks, body and head are called as modules."""
    torch.manual_seed(0)
    layer = Layer(ConvBody(3, 12, pool=pool, residual=residual), ConvHead(12, (8, 8), 10, 6, most=4)).to(DEVICE)
    exact = copy.deepcopy(layer).double().cpu()
    images = torch.randn(5, 3, 8 * (1 + pool), 8 * (1 + pool))
    expected = exact(images.double())
    wholes, means = calls_of("batch_norm_relu_with_means"), calls_of("batch_norm_relu_mean")
    found = layer(images.to(DEVICE))
    assert (len(wholes), len(means)) == (1, 1)
    seen: list[torch.Size] = []
    hook = layer.body.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    hooked = layer(images.to(DEVICE))
    hook.remove()
    assert (len(wholes), len(means), seen) == (1, 2, [(5, 12, 8, 8)])
    weights = torch.randn(expected[1].shape, dtype=torch.float64)
    theirs = torch.autograd.grad((expected[1] * weights).sum(), list(exact.parameters()))
    for passed, embedding in (found, hooked):
        assert relative(passed, expected[0]) < 1e-5
        assert relative(embedding, expected[1]) < 1e-5
        mine = torch.autograd.grad((embedding * weights.to(DEVICE)).sum(), list(layer.parameters()))
        for one, other in zip(mine, theirs, strict=True):
            assert relative(one, other) < 1e-3


def test_a_linear_map_with_hooks_is_called(calls_of: Calls) -> None:
    torch.manual_seed(0)
    body, rows = DenseBody(20, 12).to(DEVICE), torch.randn(7, 20).to(DEVICE)
    calls = calls_of("relu_norm")
    body(rows)
    assert len(calls) == 1
    body.linear.register_forward_hook(lambda module, inputs, output: output + 1)
    expected = functional.layer_norm((functional.linear(rows, body.linear.weight, body.linear.bias) + 1).relu(), (12,))
    assert relative(body(rows), expected) < 1e-5
    assert len(calls) == 1


class LongEmbedding(Layer):
    def embed(self, passed: Structure) -> Tensor:
        return 3 * super().embed(passed)


class HalfNorm(modules.BatchNorm):
    def forward(self, rows: Tensor, added: Tensor | None = None) -> Tensor:
        return super().forward(rows, added) / 2


class LinearNorm(nn.Sequential):
    def forward(self, rows: Tensor, added: Tensor | None = None) -> Tensor:
        return super().forward(rows)


@pytest.mark.usefixtures("float32_products")
@pytest.mark.parametrize("part", ["layer", "norm of the body", "norm of the head", "another norm", "hook of a norm"])
def test_parts_that_a_user_has_changed_are_called(part: str, calls_of: Calls) -> None:
    torch.manual_seed(0)
    layer = Layer(ConvBody(3, 12, pool=False, residual=False), ConvHead(12, (8, 8), 10, 6, most=4))
    if part == "layer":
        layer.__class__ = LongEmbedding
    elif part == "norm of the body":
        layer.body.entrance.norm.__class__ = HalfNorm
    elif part == "norm of the head":
        layer.head.second.norm.__class__ = HalfNorm
    elif part == "another norm":
        layer.body.entrance.norm = LinearNorm(nn.BatchNorm2d(12), nn.ReLU())
    else:
        layer.body.entrance.norm.register_forward_hook(lambda module, inputs, output: output / 2)
    exact, images = copy.deepcopy(layer).double(), torch.randn(5, 3, 8, 8)
    calls_of("batch_norm_relu")
    found, expected = layer.to(DEVICE)(images.to(DEVICE)), exact(images.double())
    for one, other in zip(found, expected, strict=True):
        assert relative(one, other) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernels_of_batch_norm_take_lower_precisions(dtype: torch.dtype, calls_of: Calls) -> None:
    torch.manual_seed(0)
    norm = modules.BatchNorm(20, relu=True).to(DEVICE)
    maps = torch.randn(6, 20, 8, 8).contiguous(memory_format=torch.channels_last).to(DEVICE, dtype).requires_grad_()
    exact = maps.detach().double().cpu().requires_grad_()
    normal = functional.batch_norm(exact, None, None, training=True, eps=modules.EPSILON).relu()
    calls_of("batch_norm_relu")
    found, expected = norm.with_means(maps, (4, 4)), (normal, functional.adaptive_avg_pool2d(normal, 4))
    pairs = [*zip(found, expected, strict=True), (norm.averaged(maps), normal.mean(dim=(2, 3)))]
    for one, other in pairs:
        assert one.dtype == dtype
        assert relative(one, other) < 1e-2
        (mine,), (theirs,) = (
            torch.autograd.grad(t.square().sum(), [x], retain_graph=True) for t, x in ((one, maps), (other, exact))
        )
        assert relative(mine, theirs) < 2e-2


def test_the_kernel_of_batch_norm_passes_nan_on() -> None:
    maps = torch.randn(4, 3, 2, 2, device=DEVICE).contiguous(memory_format=torch.channels_last)
    maps[2, 1, 0, 0] = torch.nan
    gain, offset = torch.ones(3, device=DEVICE), torch.zeros(3, device=DEVICE)
    found = kernels.batch_norm_relu(maps, gain, offset, 1e-5)
    assert found.isnan().amax(dim=(0, 2, 3)).tolist() == [False, True, False]
    assert kernels.batch_norm_relu_mean(maps, gain, offset, 1e-5).isnan().amax(dim=0).tolist() == [False, True, False]


@pytest.mark.parametrize(("rows", "classes", "values"), [(70, 10, 256), (40, 200, 36), (1, 1, 8)])
def test_the_kernel_of_scores_is_the_formula(rows: int, classes: int, values: int) -> None:
    torch.manual_seed(0)
    embedding, references = torch.randn(rows, values, device=DEVICE), torch.randn(classes, values, device=DEVICE)
    references[0] = embedding[0]
    found = kernels.reference_scores(embedding, references)
    expected = -torch.cdist(embedding.double().cpu(), references.double().cpu())
    assert found[0, 0].abs() < 3e-2  # rounding of squared lengths of about 256
    assert (found.double().cpu() - expected)[1:].abs().max() < 1e-4 if rows > 1 else True


def test_the_kernel_of_scores_passes_nan_on() -> None:
    embedding = torch.ones(3, 8, device=DEVICE)
    embedding[1, 2] = torch.nan
    found = kernels.reference_scores(embedding, torch.zeros(4, 8, device=DEVICE))
    assert found.isnan().all(dim=1).tolist() == [False, True, False]
