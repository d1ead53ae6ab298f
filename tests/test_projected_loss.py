"""The tuplet loss of embeddings that are a linear map of activations, computed without the anchors' embeddings."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from conftest import started
from faustnet.data import ImageSource
from faustnet.errors import FaustnetError
from faustnet.losses import projected, projected_tuplet_loss, reference_tuplet_loss
from faustnet.losses.gradients import unit_gradient
from faustnet.methods import FaustRepresentative, Source
from faustnet.methods.shared_loss import SharedReferenceLoss
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.structure import Structure
from faustnet.system.randomness import seeded
from faustnet.training.distributed.communicator import RankGrid
from faustnet.training.distributed.part import RankPart
from faustnet.training.optimisers import OptimiserSettings
from faustnet.training.schedules import SCHEDULES

LAYERS, BATCH, CLASSES, WIDTH, SIZE = 2, 20, 4, 7, 5
NETWORK = NetworkSettings((40, 30), 80)
Count = Callable[[], int]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def projections(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Use the projected loss for layers of any size, and count its calls."""
    monkeypatch.setattr(projected, "WORTHWHILE", 0)
    calls: list[None] = []
    original = projected._projected_tuplet
    monkeypatch.setattr(projected, "_projected_tuplet", lambda *arguments: calls.append(None) or original(*arguments))
    return lambda: len(calls)


@pytest.mark.parametrize("given", [False, True], ids=["activations", "references"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("mix", [False, True], ids=["", "mixup"])
@pytest.mark.parametrize("count", [1, 3])
def test_it_is_the_loss_of_the_embeddings_and_so_are_its_gradients(
    count: int, mix: bool, smoothing: float, given: bool
) -> None:
    number = CLASSES * count
    activation = random(LAYERS, BATCH + (0 if given else number), WIDTH).requires_grad_()
    projection = random(LAYERS, SIZE, WIDTH, seed=1).requires_grad_()
    references = random(LAYERS, number, SIZE, seed=2).requires_grad_() if given else None
    labels, weights = torch.arange(LAYERS * BATCH).view(LAYERS, BATCH) % CLASSES, random(LAYERS, seed=3)
    shares = torch.linspace(0.5, 1, BATCH, dtype=torch.float64) if mix else None
    scale = torch.tensor(0.03, dtype=torch.float64)

    embedding = activation @ projection.mT
    embedding = embedding if references is None else torch.cat([embedding, references], dim=1)
    expected = reference_tuplet_loss(embedding, labels, CLASSES, scale, smoothing, shares)
    found = projected_tuplet_loss(activation, projection, labels, CLASSES, scale, smoothing, shares, references=references)
    torch.testing.assert_close(found, expected)
    inputs = [tensor for tensor in (activation, projection, references) if tensor is not None]
    for mine, theirs in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_its_gradients_are_those_of_finite_differences() -> None:
    labels = torch.arange(6) % 3
    inputs = random(9, WIDTH).requires_grad_(), random(SIZE, WIDTH, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, p: projected_tuplet_loss(a, p, labels, 3, 0.05), inputs)


def test_it_stays_finite_at_large_distances() -> None:
    activation = (1e3 * random(BATCH + CLASSES, WIDTH)).float().requires_grad_()
    projection = random(SIZE, WIDTH, seed=1).float().requires_grad_()
    loss = projected_tuplet_loss(activation, projection, torch.arange(BATCH) % CLASSES, CLASSES, 1.0, 0.1)
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (activation, projection)))


@pytest.mark.parametrize("far", [1.0, 1e3, 1e8])
def test_a_reference_far_from_the_others_of_its_class_costs_no_precision(far: float) -> None:
    """The gradients of both losses in single precision are those in double precision."""
    activation, projection = random(BATCH + 3 * CLASSES, WIDTH), random(SIZE, WIDTH, seed=1)
    activation[BATCH::3] *= far
    labels = torch.arange(BATCH) % CLASSES
    for loss in (
        lambda a, p: projected_tuplet_loss(a, p, labels, CLASSES, 0.02),
        lambda a, p: reference_tuplet_loss(a @ p.mT, labels, CLASSES, 0.02),
    ):
        inputs = activation.requires_grad_(), projection.requires_grad_()
        exact, _ = torch.autograd.grad(loss(*inputs), inputs)
        single = tuple(tensor.detach().float().requires_grad_() for tensor in inputs)
        found, _ = torch.autograd.grad(loss(*single), single)
        assert (found[:BATCH] - exact[:BATCH]).norm() < 1e-5 * exact[:BATCH].norm()


@pytest.mark.parametrize(
    ("rows", "references", "message"),
    [
        (BATCH, None, "with K at least 1, got 0 rows of references for classes=4"),
        (BATCH + 3, None, "got 3 rows of references for classes=4"),
        (BATCH, 6, "got 6 rows of references for classes=4"),
        (BATCH + 4, 4, "activation must have one row for each of the 20 labels if references are given, got 24 rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: int, references: int | None, message: str) -> None:
    given = None if references is None else random(references, SIZE)
    with pytest.raises(FaustnetError, match=message):
        projected_tuplet_loss(
            random(rows, WIDTH), random(SIZE, WIDTH), torch.arange(BATCH) % CLASSES, CLASSES, 0.3, references=given
        )


def trained(method: SharedReferenceLoss, source: ImageSource, schedule: str) -> list[Tensor]:
    """Train on five batches, and return the parameters."""
    order = SCHEDULES[schedule](method, source, OptimiserSettings(weight_decay=0.01).create())
    order.enter(0)
    with seeded(1):
        order.begin(torch.arange(320).view(5, 64), torch.full((5,), 1e-3, dtype=torch.float64), 0)
        for _ in range(5):
            order.step()
        order.drain()
    assert bool((order.totals > 0).all())
    return [parameter.detach().clone() for parameter in method.parameters()]


@pytest.mark.parametrize("schedule", ["sequential", "greedy"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("faust-representative", {}),
        ("faust-representative", {"representatives": 3, "final_scale": 0.1, "label_smoothing": 0.1}),
        ("faust-representative", {"representatives": 3, "representatives_per_step": 2}),
        ("faust-prototype", {"prototypes": 2}),
    ],
)
def test_a_training_with_it_learns_the_same_weights(
    name: str,
    options: dict[str, object],
    schedule: str,
    source: ImageSource,
    projections: Count,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(NETWORK, dropout=0.2)
    found = trained(started(name, source, settings, **options).double(), source, schedule)
    layers = 2 if schedule == "sequential" else 1  # a phase of the greedy schedule trains one layer
    assert projections() == 5 * layers
    monkeypatch.setattr(projected, "WORTHWHILE", 2**60)
    expected = trained(started(name, source, settings, **options).double(), source, schedule)
    assert projections() == 5 * layers
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_mixup_is_part_of_it(source: ImageSource, projections: Count) -> None:
    method = started("faust-representative", source, NETWORK, mixup=0.5).double()
    x, y = source.plain(torch.arange(64)), source.labels[:64]
    losses = torch.cat(list(method.losses(x, y)))
    assert projections() == 2
    embeddings = enumerate(method.network.embeddings(method.rows(x, y)))
    torch.testing.assert_close(losses, torch.stack([method.local_loss(embedding, y, n) for n, embedding in embeddings]))


def test_a_layer_gets_no_gradient_from_the_next_one(source: ImageSource, projections: Count) -> None:
    method = started("faust-representative", source, NETWORK)
    first, second = method.losses(source.plain(torch.arange(64)), source.labels[:64])
    assert projections() == 2
    second.sum().backward()
    assert all(parameter.grad is None for parameter in method.network[0].parameters())
    assert all(parameter.grad is not None for parameter in method.network[1].parameters())
    first.sum().backward()
    assert all(parameter.grad is not None for parameter in method.network[0].parameters())


@pytest.mark.parametrize(
    "options", [{"contrast": 0.5}, {"matching": 0.5}, {"classes_per_step": "batch"}, {"representatives": 20}]
)
def test_other_losses_and_many_references_need_the_embeddings(
    options: dict[str, object], source: ImageSource, projections: Count
) -> None:
    trained(started("faust-representative", source, NETWORK, **options), source, "sequential")
    assert projections() == 0


@pytest.mark.parametrize("settings", [{"length": "unit"}, {"passes_on": "embedding"}, {"embedding": 0}])
def test_embeddings_that_are_no_linear_map_or_that_others_use_are_computed(
    settings: dict[str, object], source: ImageSource, projections: Count
) -> None:
    trained(started("faust-representative", source, replace(NETWORK, **settings)), source, "sequential")
    assert projections() == 0


def test_hooks_of_a_head_are_called(source: ImageSource, projections: Count) -> None:
    method, seen = started("faust-representative", source, NETWORK), []
    head = method.network[0].head
    assert head is not None
    head.register_forward_hook(lambda module, rows, embedding: seen.append(embedding.shape))
    trained(method, source, "sequential")
    assert seen == [(74, 80)] * 5
    assert projections() == 5  # of the second layer


def test_hooks_of_the_objective_and_of_its_terms_are_called(source: ImageSource, projections: Count) -> None:
    method, x, y = started("faust-representative", source, NETWORK), source.plain(torch.arange(64)), source.labels[:64]
    assert isinstance(method, SharedReferenceLoss)
    plain = torch.cat(list(method.losses(x, y)))
    for module in (method.objective, method.objective.terms[0]):
        hook = module.register_forward_hook(lambda module, inputs, loss: 2 * loss)
        torch.testing.assert_close(torch.cat(list(method.losses(x, y))), 2 * plain)
        hook.remove()
    seen: list[str] = []
    hook = register_module_forward_hook(lambda module, inputs, output: seen.append(type(module).__name__))
    list(method.losses(x, y))
    hook.remove()
    assert seen.count("ReferenceTuplet") == seen.count("Layer") == 2
    assert projections() == 2


def test_it_ignores_autocast(source: ImageSource, projections: Count) -> None:
    method, x, y = started("faust-representative", source, NETWORK), source.plain(torch.arange(64)), source.labels[:64]
    expected = [loss.detach() for loss in method.losses(x, y)]
    with torch.autocast("cpu", torch.bfloat16):
        for loss, exact in zip(method.losses(x, y), expected, strict=True):
            loss.backward()
            torch.testing.assert_close(loss.detach(), exact, rtol=0.02, atol=0)
    assert projections() == 4


class OwnLayerLoss(FaustRepresentative):
    def layer_loss(self, number: int, rows: Structure, y: Tensor) -> tuple[Structure, Tensor]:
        passed, loss = super().layer_loss(number, rows, y)
        return passed, 0 * loss + 7


class OwnLocalLoss(FaustRepresentative):
    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        return 0 * super().local_loss(embedding, y, layer) + 7


class OwnBatchedLoss(FaustRepresentative):
    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return 0 * super().batched_loss(embedding, y, layers) + 7


class OtherLocalLoss(FaustRepresentative):
    def local_loss(self, embedding: Tensor, y: Tensor, layer: int) -> Tensor:
        return super().local_loss(embedding, y, layer) + 1


class OwnBatchedLossOfOther(OtherLocalLoss):
    def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
        return 0 * super().batched_loss(embedding, y, layers) + 7


class OwnEmbeddingLoss(FaustRepresentative):
    def embedding_loss(self, embedding: Tensor, y: Tensor, number: int) -> Tensor:
        return 0 * super().embedding_loss(embedding, y, number) + 7


class OwnLossOfObject(FaustRepresentative):
    """A loss that was set on the object."""

    name_of_loss: ClassVar[str]

    def start(self, train: Source) -> None:
        super().start(train)
        replaced = getattr(self, self.name_of_loss)
        setattr(self, self.name_of_loss, lambda *given: 0 * replaced(*given) + 7)


class OwnLocalLossOfObject(OwnLossOfObject):
    name_of_loss = "local_loss"


class OwnBatchedLossOfObject(OwnLossOfObject):
    name_of_loss = "batched_loss"


class OwnObjectiveOfObject(FaustRepresentative):
    """An objective that is not the package's."""

    def start(self, train: Source) -> None:
        super().start(train)
        self.objective = SevenPerLayer()  # type: ignore[assignment]


class SevenPerLayer(nn.Module):
    def forward(self, embedding: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        return 0 * embedding.sum(dim=(-2, -1)) + 7


OWN_LOSSES = [
    OwnLayerLoss, OwnLocalLoss, OwnBatchedLoss, OwnBatchedLossOfOther, OwnEmbeddingLoss, OwnLocalLossOfObject,
    OwnBatchedLossOfObject, OwnObjectiveOfObject,
]  # fmt: skip


@pytest.mark.parametrize("schedule", ["sequential", "wavefront", "greedy"])
@pytest.mark.parametrize("worthwhile", [0, 2**60])
@pytest.mark.parametrize("kind", OWN_LOSSES)
def test_the_loss_of_a_subclass_is_used_by_all_schedules_and_for_all_layers(
    kind: type[FaustRepresentative], worthwhile: int, schedule: str, source: ImageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are five layers of one kind: the sequential schedule may compute the losses of several together."""
    monkeypatch.setattr(projected, "WORTHWHILE", worthwhile)
    with seeded(0):
        method = kind(FaustRepresentative.make_network((1, 8, 8), 10, NetworkSettings((40,) * 5, 80)), 10)
        method.start(source)
    before = [parameter.detach().clone() for parameter in method.parameters()]
    assert [loss.tolist() for loss in method.losses(source.plain(torch.arange(64)), source.labels[:64])] == [[7.0]] * 5
    order = SCHEDULES[schedule](method, source, OptimiserSettings("sgd").create())
    order.enter(0)
    order.begin(torch.arange(320).view(5, 64), torch.full((5,), 1e-3, dtype=torch.float64), 0)
    for _ in range(5):
        order.step()
    order.drain()
    layers = order.totals if schedule != "greedy" else order.totals[:1]
    assert (layers == 5 * 7).all()
    assert all(map(torch.equal, before, method.parameters()))


def test_batches_are_not_divided_among_ranks_if_a_subclass_computes_the_loss_from_rows(source: ImageSource) -> None:
    method = OwnLayerLoss(FaustRepresentative.make_network((1, 8, 8), 10, NETWORK), 10)
    with pytest.raises(FaustnetError, match="OwnLayerLoss has a layer_loss of its own, so batches cannot be divided"):
        RankPart(method, cast(RankGrid, SimpleNamespace(row_ranks=2)))


def test_a_loss_of_rows_that_is_not_averaged_is_refused(source: ImageSource) -> None:
    class Unaveraged(FaustRepresentative):
        def layer_loss(self, number: int, rows: Structure, y: Tensor) -> tuple[Structure, Tensor]:
            passed, loss = super().layer_loss(number, rows, y)
            return passed, loss + torch.zeros(len(y))

    method = Unaveraged(FaustRepresentative.make_network((1, 8, 8), 10, NETWORK), 10)
    method.start(source)
    with pytest.raises(FaustnetError, match=r"Unaveraged.layer_loss must return one value as the loss, .* got \(64,\)"):
        list(method.losses(source.plain(torch.arange(64)), source.labels[:64]))


def test_losses_that_only_train_step_would_use_are_refused() -> None:
    with pytest.raises(FaustnetError, match=r"Other must not override losses, .*: override layer_loss"):
        type("Other", (FaustRepresentative,), {"losses": lambda self, x, y: iter(())})
    mixin = type("Mixin", (), {"losses": lambda self, x, y: iter(())})
    with pytest.raises(FaustnetError, match="Other must not override losses"):
        type("Other", (mixin, FaustRepresentative), {})
    type("Same", (FaustRepresentative,), {"losses": FaustRepresentative.losses})


def test_a_replaced_method_of_a_layer_is_called(source: ImageSource, projections: Count) -> None:
    method, x, y = started("faust-representative", source, NETWORK), source.plain(torch.arange(64)), source.labels[:64]
    embed = method.network[0].embed
    method.network[0].embed = lambda passed: 0 * embed(passed)  # type: ignore[method-assign]
    first, second = method.losses(x, y)
    assert first.item() == pytest.approx(math.log(10))
    assert second.item() != pytest.approx(math.log(10))
    assert projections() == 1


@pytest.mark.parametrize(
    ("batch", "references", "size", "width", "faster"),
    [
        (256, 10, 256, 800, True),  # 48 of 52 million multiplications are saved, in each of three products
        (256, 10, 64, 800, True),  # 10.5 of 13.1 million
        (256, 10, 64, 400, False),  # 5.3 of 6.6 million: too few to make up for more operations
        (256, 100, 256, 800, True),  # 11.5 of 52 million
        (256, 200, 256, 800, False),  # 200 references take longer than the embeddings
    ],
)
def test_the_faster_form_is_used(batch: int, references: int, size: int, width: int, faster: bool) -> None:
    assert projected.projection_saves(batch, references, torch.empty(size, width)) is faster


def test_gradients_of_activations_in_another_order_of_memory_have_their_own() -> None:
    """A GPU multiplies the gradients of several layers in the order of memory."""
    activation = torch.randn(12, 3, 7).transpose(0, 1).requires_grad_()
    weights, labels = torch.randn(3, 5, 7), torch.arange(10).expand(3, -1) % 2
    loss = projected_tuplet_loss(activation, weights, labels, 2, 0.1)
    seen: list[Tensor] = []
    loss.grad_fn.register_hook(lambda inputs, outputs: seen.append(inputs[0]))  # type: ignore[union-attr]
    loss.backward(unit_gradient(loss))
    assert seen[0].is_contiguous()


def test_the_loss_of_a_subclass_is_used(source: ImageSource, projections: Count) -> None:
    class Twice(FaustRepresentative):
        def batched_loss(self, embedding: Tensor, y: Tensor, layers: slice) -> Tensor:
            return 2 * super().batched_loss(embedding, y, layers)

    x, y = source.plain(torch.arange(64)), source.labels[:64]
    with seeded(0):
        method = Twice(FaustRepresentative.make_network((1, 8, 8), 10, NETWORK), 10)
        method.start(source)
    losses = torch.cat(list(method.losses(x, y)))
    assert projections() == 0
    embeddings = enumerate(method.network.embeddings(method.rows(x, y)))
    torch.testing.assert_close(losses, torch.stack([method.local_loss(embedding, y, n) for n, embedding in embeddings]))
