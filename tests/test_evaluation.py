import pytest
import torch

from conftest import run_to_end, small_trainer
from faustnet.data import ImageSource
from faustnet.evaluation import early_exits, evaluate, evaluating
from faustnet.methods import Faust, Method
from faustnet.network import NetworkSettings


@pytest.fixture(scope="module")
def trained(source: ImageSource, held_out: ImageSource) -> Method:
    network = NetworkSettings((48, 32, 24), 16, dropout=0.3)
    return run_to_end(small_trainer("faust-representative", source, held_out, network=network, epochs=4)).method


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


def test_leaving_early_is_what_the_scores_say_image_by_image(trained: Faust, held_out: ImageSource) -> None:
    images = held_out.plain(torch.arange(len(held_out.labels)))
    with evaluating(trained):
        scores = trained.scores(images)
    for line in early_exits(trained, held_out):
        threshold = float("inf") if line.threshold is None else line.threshold
        with evaluating(trained):
            classes, used = trained.predict_early(images, threshold)
        multiplications, right = 0, 0
        for number, true in enumerate(held_out.labels.tolist()):
            for layers in (1, 2, 3):
                mean = sum(scores[i, number] for i in range(layers)) / layers
                first, second, *_ = sorted(mean.tolist(), reverse=True)
                if first - second >= threshold or layers == 3:
                    break
            assert (int(classes[number]), int(used[number])) == (int(mean.argmax()), layers)
            right += int(classes[number]) == true
            multiplications += sum(trained.multiplications[:layers])
        count = len(held_out.labels)
        assert line.accuracy == pytest.approx(right / count)
        assert line.saved == pytest.approx(1 - multiplications / count / sum(trained.multiplications))
        assert sum(line.leaving) == pytest.approx(1)


def test_the_range_of_margins_goes_from_all_at_once_to_never(trained: Faust, held_out: ImageSource) -> None:
    found = early_exits(trained, held_out)
    assert found[0].leaving == pytest.approx([1, 0, 0])
    assert found[-1].leaving == pytest.approx([0, 0, 1])
    assert found[-1].accuracy == evaluate(trained, held_out).accuracy
    assert [line.saved for line in found] == sorted((line.saved for line in found), reverse=True)
    assert found[-1].saved == pytest.approx(0)
    assert trained.multiplications == [64 * 48 + 48 * 16 + 160, 48 * 32 + 32 * 16 + 160, 32 * 24 + 24 * 16 + 160]
