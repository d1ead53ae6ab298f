import copy
import math

import pytest
import torch

from conftest import run_to_end, small_trainer
from faustnet.data import ImageSource
from faustnet.errors import FaustnetError
from faustnet.methods import Faust, Method, PredictionSettings
from faustnet.nn.architectures import NetworkSettings
from faustnet.training.evaluation import all_scores, compare_weightings, early_exits, evaluate, evaluating, fitted_weights


@pytest.fixture(scope="module")
def trained(source: ImageSource, held_out: ImageSource) -> Method:
    network = NetworkSettings((48, 32, 24), 16, dropout=0.3)
    return run_to_end(small_trainer("faust-representative", source, held_out, network=network, epochs=4)).method


def voting(method: Method, settings: PredictionSettings) -> Method:
    """The same, but for how it predicts."""
    method = copy.deepcopy(method)
    method.set_prediction(settings)
    return method


@pytest.mark.parametrize("layers", [None, [1, 3]])
def test_accuracies_and_confusion_are_those_counted_one_by_one(
    layers: list[int] | None, trained: Method, held_out: ImageSource
) -> None:
    result = evaluate(trained, held_out, layers)
    with evaluating(trained):
        scores = trained.scores(held_out.plain(torch.arange(len(held_out.labels))))
    alone, first, all_, confusion = [0, 0, 0], [0, 0, 0], 0, [[0] * 10 for _ in range(10)]
    for number, true in enumerate(held_out.labels.tolist()):
        votes = scores[:, number]
        for layer in range(3):
            alone[layer] += int(votes[layer].argmax()) == true
            first[layer] += int(sum(votes[i] for i in range(layer + 1)).argmax()) == true
        chosen = int(sum(votes[i] for i in (number - 1 for number in layers or (1, 2, 3))).argmax())
        all_ += chosen == true
        confusion[true][chosen] += 1
    count = len(held_out.labels)
    assert result.layer_accuracy == pytest.approx([hits / count for hits in alone])
    assert result.first_layers_accuracy == pytest.approx([hits / count for hits in first])
    assert result.accuracy == pytest.approx(all_ / count)
    assert result.confusion == confusion
    assert result.forward_passes == 1


def test_evaluation_is_without_dropout_and_leaves_training_mode_as_it_was(trained: Method, held_out: ImageSource) -> None:
    trained.train()
    assert evaluate(trained, held_out) == evaluate(trained, held_out)
    assert trained.training


def test_a_mirror_image_counts_as_much_as_the_image(trained: Method, held_out: ImageSource) -> None:
    images = held_out.plain(torch.arange(len(held_out.labels)))
    plain, mirrored = voting(trained, PredictionSettings()), voting(trained, PredictionSettings(mirror=True))
    with evaluating(plain), evaluating(mirrored):
        scores, other = plain.scores(images), plain.scores(images[:, :, :, list(range(7, -1, -1))])
        torch.testing.assert_close(mirrored.votes(images), (scores + other) / 2)
        assert torch.equal(mirrored.predict(images, [2]), (scores[1] + other[1]).argmax(dim=1))
        assert not torch.equal(mirrored.predict(images), plain.predict(images))
        right = (mirrored.predict(images) == held_out.labels).double().mean().item()
        assert torch.equal(all_scores(mirrored, held_out), mirrored.votes(images))
    result = evaluate(mirrored, held_out)
    assert result.accuracy == pytest.approx(right)
    assert result.forward_passes == 2


def test_votes_are_summed_by_their_weights_unless_layers_are_named(trained: Method, held_out: ImageSource) -> None:
    plain, weights = evaluate(trained, held_out), (0.5, 0.0, 2.0)
    weighted = voting(trained, PredictionSettings(weights=weights))
    scores = all_scores(weighted, held_out)
    right = 0
    for number, true in enumerate(held_out.labels.tolist()):
        right += int(sum(weight * votes for weight, votes in zip(weights, scores[:, number], strict=True)).argmax()) == true
    result = evaluate(weighted, held_out)
    assert result.accuracy == pytest.approx(right / len(held_out.labels))
    assert result.first_layers_accuracy == plain.first_layers_accuracy
    assert result.layer_accuracy == plain.layer_accuracy
    assert evaluate(weighted, held_out, [1, 2, 3]) == plain
    assert evaluate(voting(trained, PredictionSettings(weights=(0, 0, 7))), held_out).accuracy == plain.layer_accuracy[2]


def test_the_last_layer_alone_is_the_same_as_weights_of_zero_for_the_others(trained: Method, held_out: ImageSource) -> None:
    last = voting(trained, PredictionSettings(layers="last"))
    assert evaluate(last, held_out) == evaluate(voting(trained, PredictionSettings(weights=(0, 0, 1))), held_out)
    images = held_out.plain(torch.arange(20))
    with evaluating(last):
        assert torch.equal(last.predict(images), last.scores(images)[-1].argmax(dim=1))


@pytest.mark.parametrize("weights", [(0.0, 0.0), (-1.0, 2.0), (math.nan, 1.0), (math.inf, 1.0)])
def test_weights_that_cannot_be_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(FaustnetError, match="0 or more and not all 0"):
        PredictionSettings(weights=weights)


def test_there_is_a_weight_for_each_voter(trained: Method) -> None:
    with pytest.raises(FaustnetError, match=r"must have 3 weights for faust-representative, one for each of .*, got 2"):
        trained.set_prediction(PredictionSettings(weights=(1, 1)))


def test_fitted_weights_are_the_likeliest_on_a_grid() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (3000,), generator=generator)
    truth = torch.nn.functional.one_hot(labels, 4)
    noise = torch.randn(3, 3000, 4, generator=generator)
    scores = torch.stack([truth + 2 * noise[0], 10 * (truth + noise[1]), -0.3 * truth + noise[2]])
    scores = torch.cat([scores, torch.full((1, 3000, 4), 5.0)])  # of the last two one is worse than none, one of no use

    def likelihood(weights: list[float]) -> float:
        joined = sum(weight * votes for weight, votes in zip(weights, scores, strict=True))
        return joined.log_softmax(dim=1)[torch.arange(3000), labels].mean().item()

    found = fitted_weights(scores, labels)
    assert max(found) == 1
    assert found[1] == pytest.approx(0.4, abs=0.1), "as for two Gaussians: a tenth for the units, four for the noise"
    assert found[2:] == [0, 0]
    steps = [step / 100 for step in range(5, 60, 5)]
    best = max((likelihood([scale, scale * second, scale * third, 0]), second, third)
               for scale in steps for second in steps for third in (0, 0.1))  # fmt: skip
    assert found[1:3] == pytest.approx(best[1:], abs=0.05)


def test_weights_are_finite_where_votes_are_always_right() -> None:
    labels = torch.arange(5).repeat(20)
    sure = torch.nn.functional.one_hot(labels, 5).float()
    found = fitted_weights(torch.stack([sure, 3 * sure]), labels)
    assert max(found) == 1
    assert min(found) >= 0


def test_ways_to_join_votes_are_compared_on_the_images_given(trained: Method, held_out: ImageSource) -> None:
    ways = compare_weightings(trained, held_out)
    assert [way.name for way in ways] == ["all layers", "last layer", "last 2 layers", "fitted"]
    for way, layers in zip(ways, ([1, 2, 3], [3], [2, 3]), strict=False):
        assert way.accuracy == pytest.approx(evaluate(trained, held_out, layers).accuracy, abs=2e-3)
        assert way.weights == [float(number in layers) for number in (1, 2, 3)]
    fitted = voting(trained, PredictionSettings(weights=tuple(ways[-1].weights)))
    assert ways[-1].accuracy == pytest.approx(evaluate(fitted, held_out).accuracy, abs=2e-3)


@pytest.mark.parametrize(
    "settings",
    [
        PredictionSettings(),
        PredictionSettings(mirror=True),
        PredictionSettings(weights=(0.3, 2.0, 1.0)),
        PredictionSettings(mirror=True, weights=(0.0, 1.0, 0.0)),
        PredictionSettings(mirror=True, layers="last"),
    ],
)
def test_leaving_early_is_what_the_scores_say_image_by_image(
    settings: PredictionSettings, trained: Faust, held_out: ImageSource
) -> None:
    trained = voting(trained, settings)
    weights = (0, 0, 1) if settings.layers == "last" else settings.weights or (1, 1, 1)
    images = held_out.plain(torch.arange(len(held_out.labels)))
    costs = trained.multiplications
    with evaluating(trained):
        scores = trained.votes(images)
    for line in early_exits(trained, held_out):
        threshold = float("inf") if line.threshold is None else line.threshold
        with evaluating(trained):
            classes, used = trained.predict_early(images, threshold)
        multiplications, right = 0, 0
        for number, true in enumerate(held_out.labels.tolist()):
            for layers in (1, 2, 3):
                if not any(weights[:layers]):
                    continue
                mean = sum(weights[i] * scores[i, number] for i in range(layers)) / sum(weights[:layers])
                first, second, *_ = sorted(mean.tolist(), reverse=True)
                if first - second >= threshold or layers == 3:
                    break
            assert (int(classes[number]), int(used[number])) == (int(mean.argmax()), layers)
            right += int(classes[number]) == true
            multiplications += sum(costs[:layers])
        count = len(held_out.labels)
        assert line.accuracy == pytest.approx(right / count)
        assert line.saved == pytest.approx(1 - multiplications / count / sum(costs))
        assert sum(line.leaving) == pytest.approx(1)


def test_the_range_of_margins_goes_from_all_at_once_to_never(trained: Faust, held_out: ImageSource) -> None:
    found = early_exits(trained, held_out)
    assert found[0].leaving == pytest.approx([1, 0, 0])
    assert found[-1].leaving == pytest.approx([0, 0, 1])
    assert found[-1].accuracy == evaluate(trained, held_out).accuracy
    assert [line.saved for line in found] == sorted((line.saved for line in found), reverse=True)
    assert found[-1].saved == pytest.approx(0)
    last = early_exits(voting(trained, PredictionSettings(weights=(0, 1, 1))), held_out)
    assert last[0].leaving == pytest.approx([0, 1, 0]), "nobody leaves before the first layer that counts"
    assert 0.05 < last[1].leaving[2] < 0.15
    assert trained.multiplications == [64 * 48 + 48 * 16 + 160, 48 * 32 + 32 * 16 + 160, 32 * 24 + 24 * 16 + 160]
