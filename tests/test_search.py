"""Predictions among many classes, whose references are compared in pieces."""

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from faustnet.losses import soft_minimum
from faustnet.methods import METHODS, PredictionSettings, build
from faustnet.methods.faust import Faust
from faustnet.nn import network, search
from faustnet.nn.architectures import NetworkSettings
from faustnet.nn.references import References, known_score, reference_scores
from faustnet.nn.search import MANY, Decisions, decisions_from, nearest_classes
from faustnet.training import evaluation
from faustnet.training.evaluation import chunks

CLASSES = MANY + 11


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last piece is not a whole one."""
    monkeypatch.setattr(search, "PIECE_VALUES", 6 * 8 * 3)
    monkeypatch.setattr(search, "PIECE_SCORES", 7 * 5 * 3)


def random_references(count: int) -> list[Tensor]:
    return [torch.randn(CLASSES, count, size) for size in (8, 6)]


def with_squares(references: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(layer, layer.square().sum(dim=2)) for layer in references]


def assert_same(found: Decisions, expected: Decisions) -> None:
    for name in ("classes", "alone"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    for name in ("scores", "known"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("count", [1, 3])
def test_scores_in_pieces_are_the_distances(count: int) -> None:
    torch.manual_seed(0)
    references, embedding = random_references(count)[0], torch.randn(5, 8)
    scores = reference_scores(embedding, references, 0.3)
    assert scores.shape == (5, CLASSES)
    for image in range(5):
        for number in (0, 1, 2, 300, CLASSES - 1):
            squares = torch.stack([((embedding[image] - own) ** 2).sum() for own in references[number]])
            torch.testing.assert_close(scores[image, number], -soft_minimum(squares, 0.3).sqrt())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.0, 1.0], [0.25, 0.5], [1.0, 0.0]])
@pytest.mark.parametrize("sides", [1, 2])
def test_the_search_finds_what_all_scores_give(count: int, weights: list[float], sides: int) -> None:
    torch.manual_seed(0)
    references = random_references(count)
    embeddings = [torch.randn(sides * 5, size) for size in (8, 6)]
    found = nearest_classes(embeddings, with_squares(references), weights, 0.3, sides)
    votes = torch.stack([reference_scores(e, r, 0.3) for e, r in zip(embeddings, references, strict=True)])
    assert_same(found, decisions_from(votes.unflatten(1, (sides, 5)).mean(dim=1), weights))


def test_of_equal_classes_the_first_is_predicted() -> None:
    references = [torch.ones(CLASSES, 1, 8)]
    references[0][:3] = 2
    found = nearest_classes([torch.ones(2, 8)], with_squares(references), [1.0], 1.0)
    assert found.classes.tolist() == [3, 3]
    assert found.scores.tolist() == [0, 0]


def test_an_image_at_a_reference_has_a_finite_score() -> None:
    torch.manual_seed(0)
    references = 100 * torch.randn(CLASSES, 1, 8)
    found = nearest_classes([references[:, 0]], with_squares([references]), [1.0], 1.0)
    assert found.classes.tolist() == list(range(CLASSES))
    assert found.scores.isfinite().all()
    assert found.scores.max() <= 0


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if issubclass(method, Faust)])
@pytest.mark.parametrize("mirror", [False, True])
def test_every_method_decides_by_its_scores(name: str, mirror: bool) -> None:
    torch.manual_seed(0)
    method = build(name, (1, 4, 4), CLASSES, NetworkSettings((12, 10), 8), {})
    for layer in method.references:
        layer.normal_()
    method.mark_ready()
    method.set_prediction(PredictionSettings(mirror=mirror))
    images = torch.randn(5, 1, 4, 4)
    with evaluation.evaluating(method):
        votes, found = method.votes(images), method.decide(images, method.voter_weights([2]))
    assert found.alone.tolist() == votes.argmax(dim=2).tolist()
    assert found.classes.tolist() == votes[1].argmax(dim=1).tolist()
    torch.testing.assert_close(found.known, known_score(votes))


def test_a_class_with_its_own_scores_is_predicted_by_them() -> None:
    class Reversed(METHODS["faust-representative"]):  # type: ignore[misc]
        def scores(self, x: Tensor) -> Tensor:
            return -super().scores(x)

    torch.manual_seed(0)
    network = METHODS["faust-representative"].make_network((1, 4, 4), CLASSES, NetworkSettings((12,), 8))
    method = Reversed(network, CLASSES)
    next(iter(method.references)).normal_()
    method.mark_ready()
    images = torch.randn(5, 1, 4, 4)
    with evaluation.evaluating(method):
        assert torch.equal(method.decide(images, [1.0]).classes, method.votes(images)[0].argmax(dim=1))


def change_in_place(references: References) -> References:
    references.layer_1[3] += 1  # type: ignore[index, operator]
    return references


def change_by_name(references: References) -> References:
    references.layer_1 = references.layer_1 + 1  # type: ignore[operator]
    return references


def load_others(references: References) -> References:
    state = {name: tensor + 1 for name, tensor in references.state_dict().items()}
    references.load_state_dict(state)
    return references


@pytest.mark.parametrize(
    "change",
    [
        change_in_place,
        change_by_name,
        load_others,
        lambda references: references.double(),
        lambda references: change_in_place(copy.deepcopy(references)),
        lambda references: change_in_place(pickle.loads(pickle.dumps(references))),
        lambda references: references.set([torch.ones(CLASSES, 8), torch.ones(CLASSES, 6)]) or references,
    ],
)
def test_lengths_are_always_those_of_the_present_references(change: Callable[[References], References]) -> None:
    torch.manual_seed(0)
    references = References(CLASSES, 1, [8, 6])
    references.set(random_references(1))
    first = references.with_squares()
    assert all(one[1] is other[1] for one, other in zip(first, references.with_squares(), strict=True))
    changed = change(references)
    for layer, (vectors, squares) in zip(changed, changed.with_squares(), strict=True):
        assert vectors is layer
        torch.testing.assert_close(squares, layer.square().sum(dim=2))


def test_few_images_are_scored_at_once_if_there_are_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Three:
        labels = torch.zeros(3, dtype=torch.long)

    method = build("faust-representative", (1, 4, 4), CLASSES, NetworkSettings((12,), 8), {})
    assert len(chunks(Three(), method)) == 1  # type: ignore[arg-type]
    monkeypatch.setattr(evaluation, "MAX_SCORES", 2 * CLASSES + 1)
    assert [len(part) for part in chunks(Three(), method)] == [2, 1]  # type: ignore[arg-type]
    monkeypatch.setattr(evaluation, "MAX_SCORES", 1)
    assert len(chunks(Three(), method)) == 3  # type: ignore[arg-type]


def test_on_a_cpu_fewer_images_are_scored_at_once_if_their_feature_maps_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    class Many:
        labels = torch.zeros(300, dtype=torch.long)

    settings = NetworkSettings((4, 4), 8, kind="vgg", head=4)
    method = build("faust-representative", (1, 16, 16), CLASSES, settings, {})
    assert method.network.peak_values == 4 * 16 * 16
    monkeypatch.setattr(network, "CPU_VALUES", 100 * 4 * 16 * 16)
    assert [len(part) for part in chunks(Many(), method)] == [100, 100, 100]  # type: ignore[arg-type]
    monkeypatch.setattr(network, "CPU_VALUES", 1)
    assert len(chunks(Many(), method)[0]) == network.CPU_LEAST  # type: ignore[arg-type]
    monkeypatch.setattr(network, "MAX_VALUES", 2 * 4 * 16 * 16)
    assert len(chunks(Many(), method)[0]) == 2  # type: ignore[arg-type]


def test_decisions_weigh_the_voters() -> None:
    votes = torch.tensor([[[0.0, 2.0]], [[3.0, 0.0]]])
    assert decisions_from(votes, [1.0, 1.0]).classes.tolist() == [0]
    found = decisions_from(votes, [2.0, 1.0])
    assert (found.classes.tolist(), found.scores.tolist(), found.alone.tolist()) == ([1], [4.0], [[1], [0]])
    assert math.isclose(found.known.item(), 2)
