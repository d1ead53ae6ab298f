"""Every formula against plain loops over plain numbers."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed as dist

from faustnet.errors import FaustnetError
from faustnet.losses import (
    competitive_loss,
    goodness,
    goodness_by_group,
    goodness_loss,
    marginal_contrastive_loss,
    paired_squared_distances,
    reference_tuplet_loss,
    similarity_matching_loss,
    soft_minimum,
    squared_distances,
    symmetric_loss,
    triplet_loss,
    tuplet_loss,
)
from faustnet.nn.batched import BatchedLinear, StackedParameter
from faustnet.nn.row_shard import RowShard
from faustnet.nn.side_stream import SideStream

Loss = Callable[[torch.Tensor], torch.Tensor]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return sum((p - q) ** 2 for p, q in zip(a.tolist(), b.tolist(), strict=True))


def test_goodness_and_its_loss_are_equations_1_and_2() -> None:
    positive, negative, threshold = random(5, 7), random(6, 7)[:5], 4.0
    expected = 0.0
    for p, n in zip(positive.tolist(), negative.tolist(), strict=True):
        g_positive, g_negative = sum(v * v for v in p), sum(v * v for v in n)
        expected += 0.5 * (math.log(1 + math.exp(threshold - g_positive)) + math.log(1 + math.exp(g_negative - threshold)))
    found = goodness_loss(goodness(positive), goodness(negative), threshold)
    assert found.item() == pytest.approx(expected / 5, rel=1e-12)


def test_cwcs_loss_is_the_cross_entropy_of_the_groups_means_of_squares() -> None:
    activity, labels = random(2, 4, 5 * 6), torch.tensor([[0, 2, 1, 1], [2, 2, 0, 1]])  # 5 pixels, 6 channels, 3 classes
    for layer, own, found in zip(
        activity.tolist(), labels.tolist(), competitive_loss(goodness_by_group(activity, 3, 6), labels), strict=True
    ):
        expected = 0.0
        for row, label in zip(layer, own, strict=True):
            groups = [[row[6 * pixel + channel] for pixel in range(5) for channel in (2 * c, 2 * c + 1)] for c in range(3)]
            means = [sum(v * v for v in group) / 10 for group in groups]
            expected -= math.log(math.exp(means[label]) / sum(math.exp(mean) for mean in means)) / 4
        assert found.item() == pytest.approx(expected, rel=1e-12)


def test_squared_distances_are_those_of_every_pair() -> None:
    anchors, references = random(4, 6), random(3, 6)
    expected = [[distance(a, r) for r in references] for a in anchors]
    torch.testing.assert_close(squared_distances(anchors, references), torch.tensor(expected, dtype=torch.float64))


def test_paired_distances_are_those_to_an_anchors_own_others() -> None:
    anchors, others = random(4, 6), random(4, 3, 6)
    expected = [[distance(a, o) for o in own] for a, own in zip(anchors, others, strict=True)]
    torch.testing.assert_close(paired_squared_distances(anchors, others), torch.tensor(expected, dtype=torch.float64))


def test_triplet_loss_is_equation_3() -> None:
    to_positive, to_negative = random(8).square(), random(9)[:8].square()
    margin, scale = 0.3, 0.7
    terms = [max(scale * (p - n) + margin, 0.0) for p, n in zip(to_positive.tolist(), to_negative.tolist(), strict=True)]
    assert 0 in terms, "a case where the margin is kept"
    found = triplet_loss(to_positive, to_negative, margin, scale)
    assert found.item() == pytest.approx(sum(terms) / 8, rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_tuplet_loss_is_equation_4(scale: float) -> None:
    distances, positive = random(6, 5).square(), [0, 4, 2, 2, 1, 3]
    expected = 0.0
    for row, own in zip(distances.tolist(), positive, strict=True):
        others = [math.exp(scale * (row[own] - d)) for i, d in enumerate(row) if i != own]
        expected += math.log(1 + sum(others))
    found = tuplet_loss(distances, torch.tensor(positive), scale)
    assert found.item() == pytest.approx(expected / 6, rel=1e-12)


def test_label_smoothing_mixes_in_every_class_alike() -> None:
    distances, positive, share = random(4, 3).square(), torch.tensor([0, 2, 1, 1]), 0.2
    every = sum(tuplet_loss(distances, torch.full((4,), c)).item() for c in range(3)) / 3
    expected = (1 - share) * tuplet_loss(distances, positive).item() + share * every
    assert tuplet_loss(distances, positive, 1.0, share).item() == pytest.approx(expected, rel=1e-12)


def test_soft_minimum_joins_references_by_log_sum_exp() -> None:
    distances, scale = random(3, 2, 4).square(), 0.5
    for row, found_row in zip(distances.tolist(), soft_minimum(distances, scale).tolist(), strict=True):
        for members, found in zip(row, found_row, strict=True):
            expected = -math.log(sum(math.exp(-scale * d) for d in members) / len(members)) / scale
            assert found == pytest.approx(expected, rel=1e-12)
            assert min(members) <= found <= sum(members) / len(members)


def test_soft_minimum_of_one_reference_is_its_distance() -> None:
    distances = random(3, 2, 1).square()
    assert torch.equal(soft_minimum(distances, 0.02), distances[..., 0])


def test_losses_and_their_gradients_stay_finite_at_large_distances() -> None:
    distances = torch.tensor([[1e4, 0.0, 1e4], [0.0, 1e4, 1e4]], requires_grad=True)
    loss = tuplet_loss(distances, torch.tensor([0, 0])) + triplet_loss(distances[:, 0], distances[:, 1], 1.0)
    loss = loss + goodness_loss(distances[:, 0], distances[:, 1], 500.0) + soft_minimum(distances, 1.0).mean()
    loss.backward()
    assert loss.isfinite()
    assert distances.grad is not None
    assert distances.grad.isfinite().all()
    assert tuplet_loss(distances, torch.tensor([0, 0])).item() == pytest.approx(5000, rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("count", [1, 3])
def test_the_loss_to_shared_references_and_its_gradient_are_those_of_the_formulas_it_is_made_of(
    count: int, smoothing: float
) -> None:
    embedding = random(2, 20 + 4 * count, 6).requires_grad_()
    labels, weights = torch.arange(40).view(2, 20) % 4, random(2)
    found = reference_tuplet_loss(embedding, labels, 4, 0.3, smoothing)
    distances = squared_distances(embedding[:, :20], embedding[:, 20:]).view(2, 20, 4, count)
    expected = tuplet_loss(soft_minimum(distances, 0.3), labels, 0.3, smoothing)
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(
        torch.autograd.grad((found * weights).sum(), embedding),
        torch.autograd.grad((expected * weights).sum(), embedding),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("count", [1, 3])
def test_the_loss_to_shared_references_stays_finite_at_large_distances(count: int) -> None:
    far = (1e3 * random(20 + 4 * count, 8)).float().requires_grad_()
    loss = reference_tuplet_loss(far, torch.arange(20) % 4, 4, 1.0, 0.1)
    (gradient,) = torch.autograd.grad(loss, far)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_layers_that_are_computed_at_once_are_computed_each_by_itself() -> None:
    anchors, others, references = random(3, 8, 5), random(3, 8, 4, 5), random(3, 4, 5)
    labels = torch.arange(24).view(3, 8) % 4
    calls = {
        goodness: (anchors,),
        squared_distances: (anchors, references),
        paired_squared_distances: (anchors, others),
        lambda p, n: goodness_loss(p, n, 2.0): (goodness(anchors), goodness(random(3, 8, 6))),
        lambda p, n: triplet_loss(p, n, 1.0): (goodness(anchors), goodness(random(3, 8, 6))),
        tuplet_loss: (paired_squared_distances(anchors, others), labels),
        similarity_matching_loss: (anchors, labels),
        lambda e, y: reference_tuplet_loss(e, y, 4, 0.5): (torch.cat([anchors, references], dim=1), labels),
    }
    for function, arguments in calls.items():
        apart = [function(*layer) for layer in zip(*arguments, strict=True)]
        torch.testing.assert_close(function(*arguments), torch.stack(apart))


def test_symbas_loss_is_that_of_the_difference_alone() -> None:
    positive, negative = torch.tensor([1.0, 0.3]), torch.tensor([0.5, 0.9])
    expected = (math.log(1 + math.exp(-4 * 0.5)) + math.log(1 + math.exp(4 * 0.6))) / 2
    assert symmetric_loss(positive, negative, 4.0).item() == pytest.approx(expected)
    assert symmetric_loss(positive + 7, negative + 7, 4.0).item() == pytest.approx(expected, rel=1e-5)


def test_the_marginal_contrastive_loss_written_out() -> None:
    """For two layers at once; one row has nothing of its own class beside it."""
    torch.manual_seed(0)
    embedding, labels = torch.randn(2, 7, 5, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 2, 0, 1])
    margins, temperature = torch.tensor([0.4, 0.1], dtype=torch.float64), 0.2
    found = marginal_contrastive_loss(embedding, labels.expand(2, -1), margins, temperature)
    for layer, rows in enumerate(embedding):
        total = 0.0
        for i in range(7):
            exponentials = {}
            for j in range(7):
                cosine = float(rows[i] @ rows[j] / (rows[i].norm() * rows[j].norm()))
                if labels[i] == labels[j]:
                    cosine = min(cosine + float(margins[layer]), 1)
                exponentials[j] = math.exp(cosine / temperature)
            whole = sum(exponentials[j] for j in range(7) if j != i)
            others = [j for j in range(7) if j != i and labels[j] == labels[i]]
            if others:
                total += sum(-math.log(exponentials[j] / whole) for j in others) / len(others) - math.log(len(others))
        assert found[layer].item() == pytest.approx(total / 7)


def test_mixed_anchors_have_mixed_targets_in_the_tuplet_loss_and_its_gradient() -> None:
    embedding, labels, own = random(6 + 8, 5), torch.tensor([0, 3, 1, 1, 2, 0]), torch.tensor([0.9, 0.5, 0.7, 1.0, 0.6, 0.8])
    own = own.double()

    def loss(rows: torch.Tensor, shares: torch.Tensor | None = None, positive: torch.Tensor = labels) -> torch.Tensor:
        return reference_tuplet_loss(rows, positive, 4, 0.3, 0.1, shares)

    def by_anchor(positive: torch.Tensor) -> torch.Tensor:
        """Each anchor's loss, alone with the references."""
        alone = [torch.cat([embedding[i : i + 1], embedding[6:]]) for i in range(6)]
        return torch.stack([loss(rows, None, positive[i : i + 1]) for i, rows in enumerate(alone)])

    expected = (own * by_anchor(labels) + (1 - own) * by_anchor(labels.roll(-1))).mean()
    assert loss(embedding, own).item() == pytest.approx(expected.item())
    assert torch.autograd.gradcheck(lambda rows: loss(rows, own), embedding.requires_grad_())


@pytest.mark.parametrize("own", [None, [0.9, 0.5, 0.7, 1.0, 0.6, 0.8, 0.55]])
def test_the_similarity_matching_loss_written_out(own: list[float] | None) -> None:
    """For two layers at once; where rows were blended, with the cosines of the blended one-hot labels."""
    embedding, labels = random(2, 7, 5), [0, 1, 0, 1, 2, 0, 1]
    shares = None if own is None else torch.tensor(own, dtype=torch.float64)
    found = similarity_matching_loss(embedding, torch.tensor(labels).expand(2, -1), shares)
    targets = [[float(label == c) for c in range(3)] for label in labels]
    if own is not None:
        following = [*targets[1:], targets[0]]
        triples = zip(own, targets, following, strict=True)
        targets = [[s * a + (1 - s) * b for a, b in zip(mine, other, strict=True)] for s, mine, other in triples]

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(p * q for p, q in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    for loss, rows in zip(found.tolist(), embedding.tolist(), strict=True):
        pairs = [(i, j) for i in range(7) for j in range(7)]
        errors = [(cosine(rows[i], rows[j]) - cosine(targets[i], targets[j])) ** 2 for i, j in pairs]
        assert loss == pytest.approx(sum(errors) / 49, rel=1e-12)


@pytest.mark.parametrize("count", [1, 3])
def test_the_scale_of_the_distances_may_be_a_tensor(count: int) -> None:
    embedding, labels = random(6 + 4 * count, 5).requires_grad_(), torch.tensor([0, 3, 1, 1, 2, 0])
    scale = torch.tensor(0.3, dtype=torch.float64)
    plain, found = (reference_tuplet_loss(embedding, labels, 4, s, 0.1) for s in (0.3, scale))
    assert torch.equal(found, plain)
    assert torch.autograd.gradcheck(lambda rows: reference_tuplet_loss(rows, labels, 4, scale, 0.1), embedding)
    scale.fill_(0.7)
    other = reference_tuplet_loss(embedding, labels, 4, 0.7, 0.1)
    assert torch.equal(reference_tuplet_loss(embedding, labels, 4, scale, 0.1), other)


ROWS, LABELS = random(2, 6 + 4, 5), torch.tensor([[0, 3, 1, 1, 2, 0]] * 2)  # two layers, 6 anchors, 4 classes

BY_CLASS = {  # losses whose labels are class numbers
    "tuplet": lambda labels: tuplet_loss(ROWS[:, :6, :4], labels),
    "smoothed tuplet": lambda labels: tuplet_loss(ROWS[:, :6, :4], labels, 1.0, 0.1),
    "competitive": lambda labels: competitive_loss(ROWS[:, :6, :4], labels),
    "reference tuplet": lambda labels: reference_tuplet_loss(ROWS, labels, 4, 0.3),
}
LABELLED = BY_CLASS | {
    "contrastive": lambda labels: marginal_contrastive_loss(ROWS[:, :6], labels, torch.zeros(2), 0.1),
    "similarity": lambda labels: similarity_matching_loss(ROWS[:, :6], labels),
}


@pytest.mark.parametrize("label", [-100, -1, 4])
@pytest.mark.parametrize("loss", BY_CLASS.values(), ids=BY_CLASS)
def test_labels_that_are_no_class_are_refused(loss: Loss, label: int) -> None:
    labels = LABELS.clone()
    labels[1, 2] = label
    with pytest.raises(FaustnetError, match=rf"^labels must be from 0 to 3.*{label}"):
        loss(labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.complex64])
@pytest.mark.parametrize("loss", LABELLED.values(), ids=LABELLED)
def test_labels_that_are_not_integers_are_refused(loss: Loss, dtype: torch.dtype) -> None:
    with pytest.raises(FaustnetError, match=f"^labels must be integers.*{dtype}"):
        loss(LABELS.to(dtype))


def test_labels_may_be_any_integers() -> None:
    for loss in LABELLED.values():
        for dtype in (torch.int32, torch.uint8):
            assert torch.equal(loss(LABELS.to(dtype)), loss(LABELS))


@pytest.mark.parametrize(
    "labels", [LABELS[0], LABELS[:, :5], LABELS.unsqueeze(-1), LABELS.mT], ids=lambda y: str(tuple(y.shape))
)
@pytest.mark.parametrize("loss", LABELLED.values(), ids=LABELLED)
def test_labels_of_another_shape_are_refused(loss: Loss, labels: torch.Tensor) -> None:
    with pytest.raises(FaustnetError, match=r"labels must have shape|rows for \d labels"):
        loss(labels)


@pytest.mark.parametrize(
    "loss",
    [
        lambda none: tuplet_loss(torch.zeros(0, 4), none),
        lambda none: reference_tuplet_loss(torch.zeros(4, 5), none, 4, 0.3),
        lambda none: marginal_contrastive_loss(torch.zeros(0, 5), none, torch.tensor(0.1), 0.1),
        lambda none: similarity_matching_loss(torch.zeros(0, 5), none),
        lambda none: goodness_loss(none.float(), none.float(), 1.0),
        lambda none: symmetric_loss(none.float(), none.float(), 1.0),
        lambda none: triplet_loss(none.float(), none.float(), 1.0),
    ],
)
def test_an_empty_batch_is_refused(loss: Loss) -> None:
    with pytest.raises(FaustnetError, match="at least one"):
        loss(torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize("loss", [goodness_loss, symmetric_loss, triplet_loss])
def test_pairs_of_different_shapes_are_refused(loss: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(FaustnetError, match=r"must have the same shape, got \(5,\) and \(5, 1\)"):
        loss(torch.ones(5), torch.ones(5, 1), 1.0)


@pytest.mark.parametrize(
    "loss",
    [
        goodness,
        lambda rows: goodness_by_group(rows, 2, 4),
        lambda rows: squared_distances(rows, rows),
        lambda rows: paired_squared_distances(rows, rows.unsqueeze(1)),
        lambda rows: tuplet_loss(rows, torch.tensor([0, 1])),
        lambda rows: similarity_matching_loss(rows, torch.tensor([0, 1])),
        lambda rows: marginal_contrastive_loss(rows, torch.tensor([0, 1]), torch.tensor(0.1), 0.1),
        lambda rows: reference_tuplet_loss(rows, torch.tensor([0]), 1, 0.3),
    ],
)
def test_integer_embeddings_are_refused(loss: Loss) -> None:
    with pytest.raises(FaustnetError, match=r"must be floating-point, got torch\.int64"):
        loss(torch.ones(2, 4, dtype=torch.long))


@pytest.mark.parametrize(("classes", "rows"), [(3, 10), (5, 10), (4, 6), (4, 11), (0, 10)])
def test_classes_that_do_not_fit_the_rows_are_refused(classes: int, rows: int) -> None:
    with pytest.raises(FaustnetError, match=rf"classes.*{classes}"):
        reference_tuplet_loss(random(rows, 5), LABELS[0].clamp_max(2), classes, 0.3)


def test_channels_that_do_not_fit_the_classes_are_refused() -> None:
    with pytest.raises(FaustnetError, match="channels must be a multiple of classes"):
        goodness_by_group(random(3, 12), 4, 6)
    with pytest.raises(FaustnetError, match="multiple of channels"):
        goodness_by_group(random(3, 12), 4, 8)


@pytest.mark.parametrize("count", [1, 5])
def test_shares_of_another_shape_are_refused(count: int) -> None:
    with pytest.raises(FaustnetError, match=r"^shares must have shape \(6,\)"):
        reference_tuplet_loss(ROWS, LABELS, 4, 0.3, 0.0, torch.ones(count))


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(FaustnetError, match=r"scale must be above 0, got -0\.3"):
        reference_tuplet_loss(ROWS, LABELS, 4, -0.3)
    with pytest.raises(FaustnetError, match=r"label_smoothing must be at least 0 and below 1, got 1\.5"):
        reference_tuplet_loss(ROWS, LABELS, 4, 0.3, 1.5)
    with pytest.raises(FaustnetError, match="temperature must be above 0, got 0"):
        marginal_contrastive_loss(ROWS[:, :6], LABELS, torch.zeros(2), 0.0)
    with pytest.raises(FaustnetError, match=r"margin must be a number or a tensor of shape \(2,\), got shape \(3,\)"):
        marginal_contrastive_loss(ROWS[:, :6], LABELS, torch.zeros(3), 0.1)
    with pytest.raises(FaustnetError, match=r"margin must be a number or a tensor of shape \(2,\), got \[0\.1, 0\.2\]"):
        marginal_contrastive_loss(ROWS[:, :6], LABELS, [0.1, 0.2], 0.1)


def test_the_margin_may_be_a_number() -> None:
    expected = marginal_contrastive_loss(ROWS[:, :6], LABELS, torch.full((2,), 0.1, dtype=torch.float64), 0.1)
    assert torch.equal(marginal_contrastive_loss(ROWS[:, :6], LABELS, 0.1, 0.1), expected)


def test_squared_distances_are_never_negative_and_keep_their_gradient() -> None:
    anchors = (100 * random(64, 32)).float()
    near = (anchors + 1e-3 * random(64, 33)[:, :32]).float()
    anchors.requires_grad_()
    distances = squared_distances(anchors, near)
    assert (distances.diagonal() == 0).any(), "a case where rounding takes all of it, or more"
    assert (distances >= 0).all()
    (found,) = torch.autograd.grad(distances.diagonal().sum(), anchors)
    torch.testing.assert_close(found, 2 * (anchors - near).detach(), rtol=0, atol=1e-4)


@pytest.fixture
def one_rank() -> Iterator[RowShard]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield RowShard(dist.group.WORLD, 0, 1, 6)
    dist.destroy_process_group()


@pytest.mark.parametrize("function", ["reference tuplet", "stacked product", "entry product", "batch norm"])
def test_functions_with_a_gradient_of_their_own_refuse_a_second_derivative(function: str, one_rank: RowShard) -> None:
    rows, weight, entry = random(2, 6, 5), random(2, 4, 5).requires_grad_(), random(1, 4, 5).requires_grad_()
    gain = torch.ones(5, dtype=torch.float64, requires_grad=True)

    def product(parts: list[torch.Tensor], *weights: torch.Tensor) -> torch.Tensor:
        stacked = [StackedParameter("weight", slice(0, 2), one, one) for one in (*weights, gain)]
        return BatchedLinear(stacked[:-1], stacked[-1], SideStream(torch.device("cpu"))).product(parts)

    outputs = {
        "reference tuplet": lambda: reference_tuplet_loss(weight, torch.tensor([[0, 1]] * 2), 2, 0.3),
        "stacked product": lambda: product([rows], weight),
        "entry product": lambda: product([rows[:1], rows], entry, weight),
        "batch norm": lambda: one_rank.batch_norm(weight.flatten(0, 1)[:6], gain, gain, 1e-5),
    }
    (first,) = torch.autograd.grad(outputs[function]().square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
