import pytest
import torch

from conftest import run_to_end, small_trainer
from faustnet.data import ImageSource
from faustnet.evaluation import evaluate, evaluating
from faustnet.methods import Method
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
