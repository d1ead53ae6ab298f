"""Every formula against plain loops over plain numbers."""

import math

import pytest
import torch

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
