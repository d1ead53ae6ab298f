"""FAUST-representative whose first layers learn groups of classes."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import coarse_groups
from coarse_groups import GroupTargets, groups_of
from conftest import started
from faustnet.data import Images, ImageSource
from faustnet.errors import FaustnetError
from faustnet.nn.architectures import NetworkSettings
from faustnet.reproduce.jobs import on_validation
from faustnet.runs.recipes import changed, recipe_from
from faustnet.system.randomness import seeded
from faustnet.testing import check_method
from trials import read

DENSE = NetworkSettings((24, 20, 16), 12)
VGG = NetworkSettings((8, 8), 8, length="unit", kind="vgg", pools=(1,), head=6)
GROUPS = [3, 0, 1, 4, 2, 0, 3, 1, 2, 4]  # of the ten digits
OPTIONS = {"representatives": 2, "contrast": 0.5, "matching": 0.3, "label_smoothing": 0.1, "mixup": 0.2, "scale": 0.05}


def grouped_method(source: ImageSource, coarse_layers: int, **options: object) -> GroupTargets:
    """Return a started method in float64 on the digits, with the weights of `conftest.started`."""
    with seeded(0):
        network = GroupTargets.make_network((1, 8, 8), 10, DENSE)
        method = GroupTargets(network, 10, groups=GROUPS, coarse_layers=coarse_layers, **options)
        method.start(source)
    return method.double()


def batch(source: ImageSource) -> tuple[Tensor, Tensor]:
    return source.plain(torch.arange(24)).double(), source.labels[:24]


@pytest.mark.parametrize("network", [NetworkSettings((16, 12, 12), 8), VGG], ids=["dense", "vgg"])
def test_it_keeps_the_contract(network: NetworkSettings) -> None:
    options = {"groups": [0, 1, 1, 0], "coarse_layers": 1, "representatives": 2}
    check_method(GroupTargets, network=network, options=options | ({"scale": 5.0} if network is VGG else {}))


def test_without_coarse_layers_it_is_faust_representative(source: ImageSource) -> None:
    ours, plain = grouped_method(source, 0, **OPTIONS), started("faust-representative", source, DENSE, **OPTIONS).double()
    plain.load_state_dict(ours.state_dict())
    plain.positions, plain.compared = ours.positions, ours.compared.double()
    plain.mixing.shares.copy_(ours.mixing.shares)
    ours.compared = ours.compared.double()
    x, y = batch(source)
    torch.testing.assert_close(torch.cat(list(ours.losses(x, y))), torch.cat(list(plain.losses(x, y))))
    torch.testing.assert_close(ours.scores(x), plain.scores(x))


def test_the_losses_of_coarse_layers_written_out(source: ImageSource) -> None:
    """Cross entropy over the groups; the probability of a group is the sum over the representatives of its classes."""
    method = grouped_method(source, 2, scale=0.05, representatives=2, label_smoothing=0.1)
    method.compared = method.compared.double()
    x, y = batch(source)
    losses = torch.cat(list(method.losses(x, y)))
    for number, embedding in enumerate(method.network.embeddings(method.rows(x, y))):
        anchors, references = embedding[: len(y)].tolist(), embedding[len(y) :].tolist()
        target, names = (GROUPS, 5) if number < 2 else (list(range(10)), 10)
        total = 0.0
        for anchor, label in zip(anchors, y.tolist(), strict=True):
            sums = [0.0] * names
            for place, reference in enumerate(references):  # two of each class
                distance = sum((a - b) ** 2 for a, b in zip(anchor, reference, strict=True))
                sums[target[place // 2]] += math.exp(-0.05 * distance)
            logs = [math.log(each / sum(sums)) for each in sums]
            total -= 0.9 * logs[target[label]] + 0.1 * sum(logs) / names
        assert losses[number].item() == pytest.approx(total / len(y))


def test_a_coarse_layer_does_not_tell_the_classes_of_a_group_apart(source: ImageSource) -> None:
    """Its loss and gradient are the same for another class of the same group; those of a later layer are not."""
    method = grouped_method(source, 1, **OPTIONS)
    method.compared = method.compared.double()
    x, y = batch(source)
    partner = torch.tensor([next(c for c in range(10) if c != one and GROUPS[c] == GROUPS[one]) for one in range(10)])

    def gradients(labels: Tensor) -> list[list[Tensor]]:
        losses = list(method.losses(x, labels))
        layers = [list(layer.parameters()) for layer in method.network]
        return [list(torch.autograd.grad(loss.sum(), own)) for loss, own in zip(losses, layers, strict=True)]

    (first, *later), (other, *others) = gradients(y), gradients(partner[y])
    for one, two in zip(first, other, strict=True):
        assert one.abs().sum() > 0
        torch.testing.assert_close(one, two)
    assert all(not torch.allclose(one[0], two[0]) for one, two in zip(later, others, strict=True))


def test_a_class_has_the_score_of_its_group_in_a_coarse_layer(source: ImageSource) -> None:
    method = grouped_method(source, 1, representatives=2, scale=0.05)
    method.finish(source)
    x, _ = batch(source)
    scores = method.scores(x)
    embedding = next(iter(method.network.embeddings(x)))
    references = next(iter(method.references))
    for group in range(5):
        own = torch.cat([references[c] for c in range(10) if GROUPS[c] == group])
        squares = (embedding.unsqueeze(1) - own).square().sum(dim=2)
        distance = (-torch.log(torch.exp(-0.05 * squares).mean(dim=1)) / 0.05).sqrt()
        for c in range(10):
            if GROUPS[c] == group:
                torch.testing.assert_close(scores[0, :, c], -distance)
    assert (scores[1:, :, 1] != scores[1:, :, 5]).all(), "classes 1 and 5 are in one group"


def test_groups_come_from_both_kinds_of_labels() -> None:
    pixels = torch.zeros(6, 1, 2, 2, dtype=torch.uint8)
    fine = Images(pixels, torch.tensor([2, 0, 1, 3, 0, 2]))
    assert groups_of(fine, Images(pixels, torch.tensor([1, 1, 0, 0, 1, 1]))) == [1, 0, 1, 0]
    with pytest.raises(FaustnetError, match="those of some class belong to several"):
        groups_of(fine, Images(pixels, torch.tensor([1, 1, 0, 0, 0, 1])))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"groups": [0, 1]}, "groups must have one number for each of 10 classes"),
        ({"groups": [0] * 4 + [1] * 6}, "every group as many classes as the others"),
        ({"groups": GROUPS, "coarse_layers": 3}, "coarse_layers must be from 0 to 2"),
        ({"groups": GROUPS, "classes_per_step": "batch"}, "classes_per_step must be all with groups"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        GroupTargets(GroupTargets.make_network((1, 8, 8), 10, DENSE), 10, **options)


def test_runs_are_stored_once_and_compared(tmp_path: Path) -> None:
    file, groups = tmp_path / "coarse-groups.json", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    table = {"network": {"widths": [60, 60, 60]}, "training": {"epochs": 8, "batch_size": 64}}
    recipe = on_validation(recipe_from(table))
    how = {"jobs": 2, "device": "cpu", "seconds": 600}
    coarse_groups.run(file, ("digits", recipe), groups, [0, 2], seeds=2, **how)
    rows = read(file)
    assert {(row["coarse_layers"], row["seed"]) for row in rows} == {(count, seed) for count in (0, 2) for seed in (0, 1)}
    for row in rows:
        assert row["validation_accuracy"] == row["last_layers_accuracy"][row["coarse_layers"]] > 0.8
        assert "test_accuracy" not in row
        assert row["recipe"]["training"]["validation"] == 0.2
        assert min(row["group_accuracy"]) > 0.8
    coarse_groups.run(file, ("digits", recipe), groups, [0, 2], seeds=2, **how)
    assert read(file) == rows, "nothing is trained again"
    with pytest.raises(FaustnetError, match=r"has runs with another training\.batch_size: move or delete it"):
        coarse_groups.run(file, ("digits", changed(recipe, {"training.batch_size": 32})), groups, [0], seeds=1, **how)
    for other in ({"method": "backprop"}, {"prediction.layers": "last"}):
        with pytest.raises(FaustnetError, match="--base must be a recipe"):
            coarse_groups.run(file, ("digits", changed(recipe, other)), groups, [0], seeds=1, **how)


def test_the_section_says_what_the_intervals_allow() -> None:
    def rows(count: int, *accuracies: tuple[float, float, float]) -> list[dict[str, object]]:
        about = {"base": "best/cifar100/cnn", "epochs": 24, "coarse_layers": count}
        return [{**about, "seed": seed, "last_layers_accuracy": list(one)} for seed, one in enumerate(accuracies)]

    none = rows(0, (0.700, 0.690, 0.680), (0.702, 0.692, 0.682))
    one = rows(1, (0.701, 0.720, 0.66), (0.7025, 0.722, 0.66))
    two = rows(2, (0.600, 0.600, 0.590), (0.602, 0.602, 0.592))
    text = coarse_groups.section(none + one + two)
    assert "| none | 70.10 ± 0.14 | – | – | 70.10 ± 0.14 | – |" in text
    assert "| first 1 | 72.10 ± 0.14 | 69.10 ± 0.14 | +3.00 ± 0.61 | 70.17 ± 0.11 |" in text
    assert "The accuracy of the later layers is higher with 1 and lower with 2 layers of groups." in text
    assert "The accuracy of all layers is lower with 2 layers of groups." in text
    near = coarse_groups.section(none + rows(1, (0.700, 0.690, 0.66), (0.7025, 0.692, 0.66)))
    assert "There is no clear difference in the accuracy of all layers with any number of layers of groups." in near
    assert "over 2 seeds" in text
    assert "For all layers, there are too few runs for an interval." in coarse_groups.section(none[:1] + one[:1])
    assert "| first 1 | 72.10 ± 0.14 | – | – | 70.17 ± 0.11 | – |" in coarse_groups.section(one), "nothing to compare with"
    assert coarse_groups.section([]) == ""
