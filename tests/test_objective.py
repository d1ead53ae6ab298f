"""An objective is a weighted sum of terms, some of which may be a user's own."""

import math

import pytest
import torch
from torch import Tensor

from faustnet.errors import FaustnetError
from faustnet.losses import marginal_contrastive_loss, reference_tuplet_loss, similarity_matching_loss
from faustnet.losses.gradients import backward, unit_gradient
from faustnet.losses.objective import Contrastive, Objective, ReferenceTuplet, SimilarityMatching, Term

EMBEDDING = torch.randn(2, 6 + 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[0, 3, 1, 1, 2, 0]] * 2)
SHARES = torch.tensor([0.9, 0.5, 0.7, 1.0, 0.6, 0.8], dtype=torch.float64)


class Length(Term):
    """The mean squared length of the anchors."""

    def __init__(self, weight: float = 1.0):
        super().__init__(weight)
        self.calls = 0

    def forward(self, embedding: Tensor, anchors: Tensor, labels: Tensor, shares: Tensor | None) -> Tensor:
        self.calls += 1
        return anchors.square().sum(dim=-1).mean(dim=-1)


def test_an_objective_is_the_weighted_sum_of_its_terms_and_of_a_users_own() -> None:
    terms = [ReferenceTuplet(4, 0.3, 0.0, 0.1, weight=2.0), Contrastive(0.5, 0.2), SimilarityMatching(0.25), Length(0.125)]
    found = Objective(terms)(EMBEDDING, LABELS, SHARES)
    anchors = EMBEDDING[:, :6]
    expected = 2 * reference_tuplet_loss(EMBEDDING, LABELS, 4, 0.3, 0.1, SHARES)
    expected = expected + 0.5 * marginal_contrastive_loss(anchors, LABELS, 0.0, 0.2)
    expected = expected + 0.25 * similarity_matching_loss(anchors, LABELS, SHARES)
    expected = expected + 0.125 * anchors.square().sum(dim=-1).mean(dim=-1)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.5), (2.0, 1.0)])
def test_gradients_by_marked_ones_are_those_by_any_ones(weights: tuple[float, float]) -> None:
    """Marked ones are not multiplied by; the weight of a term and the sum of terms hide the mark or keep it."""
    objective = Objective([ReferenceTuplet(4, 0.3, weight=weights[0]), Contrastive(weights[1], 0.2)])
    embedding = EMBEDDING.clone().requires_grad_()
    found = []
    for make in (unit_gradient, torch.ones_like):
        losses = objective(embedding, LABELS)
        found.append(torch.autograd.grad(losses, embedding, make(losses.detach()))[0])
    assert torch.equal(*found)
    halved = torch.autograd.grad(objective(embedding, LABELS), embedding, torch.full((2,), 0.5, dtype=torch.float64))[0]
    assert torch.equal(halved, found[0] / 2)


def test_marked_ones_that_a_hook_changes_in_place_are_multiplied_by() -> None:
    embedding = EMBEDDING.clone().requires_grad_()
    found = []
    for factor in (1.0, 0.25):
        losses = reference_tuplet_loss(embedding, LABELS, 4, 0.3)
        losses.register_hook(lambda gradient, factor=factor: gradient.mul_(factor))
        found.append(torch.autograd.grad(losses, embedding, unit_gradient(losses.detach()))[0])
    assert torch.equal(found[1], found[0] / 4)


def test_a_backward_pass_is_torchs() -> None:
    weight = torch.tensor([2.0, 3.0], requires_grad=True)
    gradient = torch.tensor([0.5, -1.0])
    backward(weight**2, gradient)
    found, weight.grad = weight.grad, None
    (weight**2).backward(gradient)
    assert torch.equal(found, weight.grad)
    with pytest.raises(RuntimeError, match=r"gradient must have the output's shape, \(2,\), got \(1,\)\."):
        backward(weight**2, gradient[:1])


def test_a_term_without_weight_is_not_computed() -> None:
    off, on = Length(0.0), Length()
    assert torch.equal(Objective([off, on])(EMBEDDING, LABELS), on(EMBEDDING, EMBEDDING[:, :6], LABELS, None))
    assert (off.calls, on.calls) == (0, 2)


def test_the_scale_changes_by_equal_ratios_and_in_place() -> None:
    objective = Objective([ReferenceTuplet(4, 0.1, 0.4)])
    buffer = dict(objective.named_buffers())["terms.0.current_scale"]
    for share, scale in ((0.0, 0.1), (0.5, 0.2), (1.0, 0.4)):
        objective.enter_epoch(share)
        assert buffer.item() == pytest.approx(scale)
        torch.testing.assert_close(objective(EMBEDDING, LABELS), reference_tuplet_loss(EMBEDDING, LABELS, 4, scale))
    assert not objective.state_dict(), "the scale follows from the epoch"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Contrastive(-0.5, 0.1), "The weight of Contrastive must be 0 or more, got -0.5."),
        (lambda: SimilarityMatching(math.nan), "The weight of SimilarityMatching must be 0 or more, got nan."),
        (lambda: Length(math.inf), "The weight of Length must be 0 or more, got inf."),
        (lambda: Contrastive(0.0, 0.0), "temperature must be above 0, got 0.0."),
        (lambda: ReferenceTuplet(4, 0.0), "scale must be above 0, got 0.0."),
        (lambda: ReferenceTuplet(4, 1.0, -1.0), "final_scale must be above 0, or 0 for a constant scale, got -1.0."),
        (lambda: Objective([]), "terms must contain at least one term with a weight above 0, got none."),
        (lambda: Objective([Length(0.0)]), "terms must contain at least one term with a weight above 0, got none."),
    ],
)
def test_impossible_terms_are_refused(make: type, sentence: str) -> None:
    with pytest.raises(FaustnetError) as refused:
        make()
    assert str(refused.value) == sentence
