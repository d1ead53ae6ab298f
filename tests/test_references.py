import math

import pytest
import torch

from faustnet.errors import FaustnetError
from faustnet.nn.references import (
    ClassIndex,
    choose_representatives,
    medoids,
    named_representatives,
    reference_scores,
    updated_centroids,
)

LABELS = torch.tensor([2, 0, 1, 1, 0, 2, 1, 1])
NAMES = ["apple", "bear", "cup"]


def test_draw_gives_each_member_of_the_named_class_equally_often() -> None:
    torch.manual_seed(0)
    index = ClassIndex(LABELS, 3)
    wanted = torch.tensor([[0, 1, 2]]).repeat(4000, 1)
    drawn = index.draw(wanted)
    assert torch.equal(LABELS[drawn], wanted)
    counts = torch.bincount(drawn.flatten(), minlength=8) / 4000
    torch.testing.assert_close(counts, 1 / torch.bincount(LABELS).float()[LABELS], atol=0.04, rtol=0)


def test_draw_never_leaves_the_class_when_a_random_number_rounds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, device: torch.ones(shape, device=device))
    assert LABELS[ClassIndex(LABELS, 3).draw(torch.tensor([0, 1, 2]))].tolist() == [0, 1, 2]


def test_representatives_are_different_images_of_their_class_in_order() -> None:
    torch.manual_seed(0)
    chosen = choose_representatives(ClassIndex(LABELS, 3), NAMES, 2)
    assert LABELS[chosen].tolist() == [0, 0, 1, 1, 2, 2]
    assert len(set(chosen.tolist())) == 6


def test_the_medoid_of_one_cluster_has_the_smallest_distances() -> None:
    rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(3))
    sums = [sum(float((a - b).square().sum()) for b in rows) for a in rows]
    assert medoids(rows, 1).tolist() == [sums.index(min(sums))]


def test_medoids_are_different_rows_of_different_clusters() -> None:
    torch.manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    rows = (centres[:, None] + 0.3 * torch.randn(3, 20, 2)).flatten(0, 1)
    assert sorted((medoids(rows, 3) // 20).tolist()) == [0, 1, 2]
    assert len(set(medoids(torch.zeros(7, 2), 5).tolist())) == 5, "even where all rows are the same"


def test_clusters_are_made_within_each_class() -> None:
    torch.manual_seed(0)
    looks = torch.randn(len(LABELS), 4)
    chosen = choose_representatives(ClassIndex(LABELS, 3), NAMES, 2, lambda own: looks[own])
    assert LABELS[chosen].tolist() == [0, 0, 1, 1, 2, 2]
    assert len(set(chosen.tolist())) == 6


def test_too_few_images_for_the_representatives_is_an_error_that_names_the_class() -> None:
    with pytest.raises(FaustnetError, match=r"options.representatives must be at most 2, .* of class 'apple', got 3"):
        choose_representatives(ClassIndex(LABELS, 3), NAMES, 3)


def test_named_representatives_are_sorted_by_class() -> None:
    assert named_representatives([3, 0, 1], LABELS, NAMES, 1).tolist() == [1, 3, 0]


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ([1, 3], "but contains 0 of class .cup"),
        ([1, 3, 0, 2], "but contains 2 of class .bear"),
        ([1, 3, 8], "from 0 to 7, got 8"),
    ],
)
def test_wrongly_named_representatives_are_refused(positions: list[int], said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        named_representatives(positions, LABELS, NAMES, 1)


def test_scores_are_minus_the_euclidean_distance_to_a_single_reference() -> None:
    embedding, references = torch.randn(4, 6).double(), torch.randn(3, 1, 6).double()
    expected = [
        [-(sum((a - b) ** 2 for a, b in zip(e, r[0], strict=True)) ** 0.5) for r in references.tolist()]
        for e in embedding.tolist()
    ]
    torch.testing.assert_close(reference_scores(embedding, references, 0.02), torch.tensor(expected).double())


def test_scores_of_several_references_join_them_by_log_sum_exp() -> None:
    embedding, references, scale = torch.randn(4, 6).double(), torch.randn(3, 5, 6).double(), 0.3
    for e, scores in zip(embedding, reference_scores(embedding, references, scale), strict=True):
        for members, score in zip(references, scores.tolist(), strict=True):
            nearness = [math.exp(-scale * float((e - member).square().sum())) for member in members]
            assert score == pytest.approx(-math.sqrt(-math.log(sum(nearness) / 5) / scale))


def test_an_image_that_is_its_own_reference_has_distance_zero_despite_rounding() -> None:
    embedding = torch.randn(50, 8) * 100
    scores = reference_scores(embedding, embedding.unsqueeze(1), 1.0)
    assert scores.isfinite().all()
    assert scores.argmax(dim=1).tolist() == list(range(50))


def test_centroids_take_in_the_mean_of_their_class_and_the_gradient_flows_through_its_share() -> None:
    """Two layers at once; the third class is not in the batch, though it would have a share."""
    torch.manual_seed(0)
    centroids, embedding = torch.randn(2, 3, 4).double(), torch.randn(2, 5, 4).double().requires_grad_()
    labels, shares = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([0.3, 1.0, 0.5]).double()
    found = updated_centroids(centroids, embedding, labels, shares)
    for layer in range(2):
        for number in range(2):
            members = [embedding[layer, i] for i in range(5) if labels[i] == number]
            mean = sum(members) / len(members)
            expected = (1 - shares[number]) * centroids[layer, number] + shares[number] * mean
            torch.testing.assert_close(found[layer, number], expected)
        assert torch.equal(found[layer, 2], centroids[layer, 2])
    (gradient,) = torch.autograd.grad(found[0, 0].sum(), embedding)
    expected_gradient = torch.zeros_like(embedding)
    expected_gradient[0, [1, 4]] = 0.3 / 2
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_centroids_refuse_labels_out_of_range(wrong: int) -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        updated_centroids(torch.zeros(3, 4), torch.randn(2, 4), torch.tensor([0, wrong]), torch.ones(3))
