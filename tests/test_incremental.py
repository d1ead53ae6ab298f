"""Classes that come over time: the three ways to add them, and the study."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import growing
import new_classes
from conftest import Answer, run_to_end
from faustnet.data import load_data
from faustnet.errors import FaustnetError
from faustnet.report.comparison import t_half
from faustnet.reproduce import growth
from faustnet.reproduce.growth import VARIANTS, backprop_steps, exemplars, faust_steps, fine_tuned, shares
from faustnet.reproduce.incremental import IncrementalJob, summary
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.runs.session import set_up

Command = Callable[..., Answer]
DIGITS = load_data("digits")
FIRST = ("0", "1", "2", "3", "4", "5", "6")
COUNTS = (7, 9, 10)
SMALL = {
    "network": {"widths": [48, 32], "embedding": 16},
    "training": {"epochs": 6, "batch_size": 64},
    "optimiser": {"learning_rate": 3e-3},
}


def trained(method: str, **more: Any) -> Model:
    recipe = recipe_from({**SMALL, "method": method, **more})
    model, trainer = set_up(recipe, DIGITS.only(FIRST), torch.device("cpu"))
    run_to_end(trainer)
    return model


@pytest.fixture(scope="module")
def faust() -> Model:
    return trained("faust-representative", options={"representatives": 2})


def test_every_step_has_the_accuracy_of_all_of_old_and_of_new_classes(faust: Model) -> None:
    before = {name: tensor.clone() for name, tensor in faust.method.state_dict().items()}
    found = {(one["variant"], one["classes"]): one for one in faust_steps(faust, DIGITS, COUNTS, seed=0)}
    assert found.keys() == {(variant, count) for variant in ("added", "means", "fine-tuned") for count in COUNTS}
    for (variant, count), one in found.items():
        assert one["old"] > 0.8, variant
        assert (one["new"] is None) == (count == 7)
        if count > 7:
            assert one["new"] > 0.25, variant
            assert min(one["old"], one["new"]) <= one["all"] <= max(one["old"], one["new"])
    assert found["added", 7]["all"] == found["fine-tuned", 7]["all"], "nothing was added yet"
    by_hand = faust.add_classes({name: DIGITS.train.all_pixels[DIGITS.train.labels == int(name)] for name in "789"})
    predicted = [one.class_name for one in by_hand.predict(DIGITS.test.all_pixels)]
    right = [name == str(label) for name, label in zip(predicted, DIGITS.test.labels.tolist(), strict=True)]
    assert found["added", 10]["all"] == pytest.approx(sum(right) / len(right))
    after = faust.method.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items()), "the trained model is not changed"


def test_fine_tuning_changes_the_heads_alone(faust: Model) -> None:
    new = {"7": DIGITS.train.all_pixels[DIGITS.train.labels == 7]}
    wider = faust.add_classes(new)
    memory = exemplars(DIGITS.train, 8, seed=0)
    assert torch.bincount(memory.labels).tolist() == [growth.EXEMPLARS] * 8
    tuned = fine_tuned(wider, memory, seed=0)
    for one, other in zip(wider.method.network, tuned.method.network, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.body.parameters(), other.body.parameters(), strict=True))
        assert one.head is not None
        assert other.head is not None
        pairs = zip(one.head.parameters(), other.head.parameters(), strict=True)
        assert not any(torch.equal(a, b) for a, b in pairs), "every head is trained"
    assert torch.equal(wider.method.images, tuned.method.images), "representatives stay the same images"  # type: ignore[arg-type]
    again = fine_tuned(wider, memory, seed=0)
    images = DIGITS.test.all_pixels[:50]
    torch.testing.assert_close(tuned.scores(images), again.scores(images))


NETWORK = {"kind": "vgg", "widths": [12, 16], "pools": [1, 2], "embedding": 12, "head": 12, "length": "unit"}


def test_fine_tuning_leaves_the_statistics_of_the_bodies() -> None:
    model = trained("faust-representative", network={**NETWORK, "dropout": 0.2})
    wider = model.add_classes({"7": DIGITS.train.all_pixels[DIGITS.train.labels == 7]})
    tuned = fine_tuned(wider, exemplars(DIGITS.train, 8, seed=0), seed=0)
    before, after = wider.method.state_dict(), tuned.method.state_dict()
    assert before.keys() == after.keys()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    heads = {name for name in before if name.startswith("network.") and ".head." in name}
    assert changed >= heads, "weights and statistics of all heads"
    assert not {name for name in changed if ".body." in name}
    assert [layer.dropout for layer in tuned.method.network] == [layer.dropout for layer in model.method.network]
    assert not any(isinstance(module, growth.FixedBody) for module in tuned.method.modules())
    for layer in wider.method.network:
        layer.dropout = 0.0
    wider.method.train()
    for name, tensor in fine_tuned(wider, exemplars(DIGITS.train, 8, seed=0), seed=0).method.state_dict().items():
        torch.testing.assert_close(tensor, after[name], msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("method", ["faust-representative", "faust-prototype"])
def test_fine_tuning_a_convolutional_network_recognises_old_and_new_classes(method: str) -> None:
    model = trained(method, network=NETWORK, options={"scale": 5.0}, data={"crop": 1})
    found = [one for one in faust_steps(model, DIGITS, COUNTS, seed=0) if one["variant"] == "fine-tuned"]
    assert min(one["old"] for one in found) > 0.85
    assert min(one["new"] for one in found[1:]) > 0.6


def test_features_are_averaged_with_those_of_the_mirror_image() -> None:
    model = trained("backprop", network=NETWORK, prediction={"mirror": True})
    images = DIGITS.test.take(torch.arange(20))
    mirrored = replace(images, pixels=images.all_pixels.flip(-1))
    found = growth.features(model, images)
    torch.testing.assert_close(found, growth.features(model, mirrored))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(20))


def test_the_references_of_all_classes_can_be_means(faust: Model) -> None:
    last = [one for one in faust_steps(faust, DIGITS, (7, 10), seed=0) if one["variant"] == "means"][-1]
    method, right = faust.method, 0
    with torch.no_grad():
        train, test = (list(method.network.embeddings(faust.source(part).plain(torch.arange(len(part)))))
                       for part in (DIGITS.train, DIGITS.test))  # fmt: skip
        for place, label in enumerate(DIGITS.test.labels.tolist()):
            scores = torch.zeros(10)
            for mine, others in zip(test, train, strict=True):
                means = torch.stack([others[DIGITS.train.labels == number].mean(dim=0) for number in range(10)])
                scores -= (mine[place] - means).norm(dim=1)
            right += int(scores.argmax()) == label
    assert last["all"] == pytest.approx(right / len(DIGITS.test), abs=0.006)  # rounding decides a tie


def test_the_twin_predicts_the_nearest_class_mean() -> None:
    model = trained("backprop")
    *_, last = backprop_steps(model, DIGITS, COUNTS, seed=0)
    with torch.no_grad():
        train, test = (functional.normalize(model.method.network.embed(model.source(part).plain(torch.arange(len(part)))))
                       for part in (DIGITS.train, DIGITS.test))  # fmt: skip
    means = torch.stack([functional.normalize(train[DIGITS.train.labels == number].mean(0), dim=0) for number in range(10)])
    predicted = torch.cdist(test, means).argmin(dim=1)
    right = predicted == DIGITS.test.labels
    old = DIGITS.test.labels < 7
    assert last["classes"] == 10
    expected = [part.float().mean().item() for part in (right, right[old], right[~old])]
    assert [last[share] for share in ("all", "old", "new")] == pytest.approx(expected)


def test_shares_are_of_images_not_of_classes() -> None:
    found = shares(torch.tensor([8.0, 1.0, 3.0]), torch.tensor([10.0, 2.0, 4.0]), first=2)
    assert found == pytest.approx({"all": 12 / 16, "old": 9 / 12, "new": 3 / 4})
    assert shares(torch.ones(2), torch.ones(2), first=2)["new"] is None


def test_the_order_of_the_classes_depends_on_the_seed() -> None:
    orders = [IncrementalJob("digits/mlp", 4, 3, seed).order(DIGITS) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(DIGITS.class_names)
    twin = IncrementalJob("digits/mlp-backprop", 4, 3, 0)
    assert set(twin.data(lambda name: DIGITS).class_names) == set(orders[0][:4]), "both learn the same classes"


def test_the_study_adds_classes_in_steps(faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    monkeypatch.setattr(growth, "STEPS", 2)
    words = ("--base", "digits/mlp", "--first", "5", "--step", "3", "--seeds", "2", "--device", "cpu", "--out", tmp_path)
    answer = faustnet("reproduce", "incremental", *words)
    assert answer.code == 0, answer.err
    cells = json.loads((tmp_path / "incremental.json").read_text())
    assert {(cell["variant"], cell["classes"]) for cell in cells} == {(v, n) for v in VARIANTS for n in (5, 8, 10)}
    runs = [json.loads((tmp_path / f"incremental/digits-mlp-5-3-{seed}.json").read_text()) for seed in (0, 1)]
    (cell,) = (one for one in cells if (one["variant"], one["classes"]) == ("added", 8))
    both = [100 * one["all"] for run in runs for one in run["steps"] if (one["variant"], one["classes"]) == ("added", 8)]
    assert (cell["all"]["mean"], cell["seeds"]) == (pytest.approx(sum(both) / 2, abs=1e-3), 2)
    assert cell["all"]["interval"] == pytest.approx(12.706 * abs(both[0] - both[1]) / 2, abs=2e-3)
    assert (tmp_path / "figures/incremental.svg").exists()
    lines = (tmp_path / "incremental.md").read_text().splitlines()
    assert lines[2].startswith("| digits/mlp, FAUST, references added | 5 | ")
    assert " | – | " in lines[2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--first", "1"], "--first must be at least 2, got 1"),
        (["--first", "10"], "--first must be below 10 for digits, got 10"),
        (["--step", "0"], "--step must be at least 1, got 0"),
        (["--base", "digits/cnn"], "There is no recipe 'digits/cnn'"),
        (["--base", "cifar10/cwc"], "--base must be a recipe with a backprop twin, got cifar10/cwc"),
    ],
)
def test_bad_input_is_refused(options: list[str], said: str, faustnet: Command, tmp_path: Path) -> None:
    result = faustnet(
        "reproduce", "incremental", "--base", "digits/mlp", "--first", "5", *options, "--out", tmp_path / "out"
    )
    assert result.code == 2
    assert said in result.sentence


def test_other_methods_cannot_grow() -> None:
    with pytest.raises(FaustnetError, match="--base must be a recipe of a FAUST method, got mono-forward"):
        next(faust_steps(trained("mono-forward"), DIGITS, COUNTS, seed=0))


def test_the_interval_of_a_mean() -> None:
    assert t_half([1.0]) is None
    assert t_half([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / 3**0.5, rel=1e-4)  # t(2) of 95 %


def results() -> list[dict[str, Any]]:
    return [
        {"name": name, "dataset": "cifar100", "first": 50, "step": 25, "seed": seed,
         "steps": [{"variant": variant, "classes": count, "all": share + seed / 100, "old": 0.7,
                    "new": None if count == 50 else 0.4} for variant in variants for count in (50, 75, 100)]}
        for name, variants, share in (
            ("cifar100/cnn", list(VARIANTS)[:3], 0.6), ("cifar100/cnn-backprop", ["backprop"], 0.5),
        )
        for seed in (0, 1, 2)
    ]  # fmt: skip


def test_the_cells_of_faust_have_the_differences_to_backprop() -> None:
    cells = {(cell["variant"], cell["classes"]): cell for cell in summary(results())}
    assert "difference" not in cells["backprop", 50]
    found = cells["added", 50]["difference"]
    assert found["all"] == {"mean": 10.0, "interval": pytest.approx(2.267, abs=1e-3)}, "t(4) · √(2/3)"
    assert found["old"] == {"mean": 0.0, "interval": None}, "the runs do not differ"
    assert found["new"] is None
    alone = [one for one in results() if one["name"] == "cifar100/cnn"]
    assert not any("difference" in cell for cell in summary(alone))


def test_the_page_has_the_section_only_with_results(tmp_path: Path) -> None:
    assert growing.section([]) == ""
    section = growing.section(summary(results()))
    assert "trains the recipe best/cifar100/cnn and its backprop twin on 50 of the 100 classes of CIFAR-100" in section
    assert "| FAUST, references added | 50 | 61.00 ± 2.48 | 70.00 ± 0.00 | – | +10.00 ± 2.27 |" in section
    assert "| backprop, nearest class mean | 100 | 51.00 ± 2.48 | 70.00 ± 0.00 | 40.00 ± 0.00 | – |" in section
    assert "in place of the references from the training" in section, "those of faust-representative are images"
    for name in ("new-classes", "rejection"):
        (tmp_path / f"{name}.json").write_bytes(Path("results", f"{name}.json").read_bytes())
    assert "come over time" not in str(new_classes.page(tmp_path))
    (tmp_path / "incremental.json").write_text(json.dumps(summary(results())))
    page = str(new_classes.page(tmp_path))
    assert page.index("## Classes that come and go") < page.index("## Classes that come over time") < page.index("## Reject")
