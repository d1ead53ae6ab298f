"""The search for the strongest recipes, and the pages that go past the paper."""

import json
import math
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import archive
import best
import beyond
import many_page
import new_classes
import time_to_accuracy
import twins
from conftest import run_to_end
from faustnet.data import DataSet
from faustnet.runs.recipes import Recipe, changed, dotted, recipe_from, shipped_recipe
from faustnet.runs.session import set_up
from time_to_accuracy import ARMS, Work
from trials import add_row, results_of

SMALL = ("network.widths=[24,16]", "network.embedding=8", "training.batch_size=64")


def search(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["best.py", *map(str, words)])
    best.main()


def test_the_best_trial_becomes_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], digits: DataSet
) -> None:
    file = tmp_path / "study.json"
    tuned = ("--base", "tuned/digits/faust-representative")
    search(monkeypatch, "add", file, "digits/tiny", *tuned, *SMALL, "optimiser.learning_rate=1e-6", "--epochs", "2")
    search(monkeypatch, "add", file, "digits/tiny", *tuned, *SMALL, "options.choice=k-means", "--epochs", "2")
    search(monkeypatch, "add", file, "digits/tiny-backprop", *SMALL, "method=backprop", "training.epochs=1")
    capsys.readouterr()
    search(monkeypatch, "run", file, "--device", "cpu")
    assert len(capsys.readouterr().out.splitlines()) == 3
    trials = best.read(file)
    assert [(trial["study"], trial["number"]) for trial in trials] == [
        ("digits/tiny", 0), ("digits/tiny", 1), ("digits/tiny-backprop", 0),
    ]  # fmt: skip
    recipe = best.trial_recipe(trials[1])
    assert (recipe.training.epochs, recipe.training.validation) == (2, 0.2)
    _, trainer = set_up(recipe, digits, best.choose_device("cpu"))
    assert trials[1]["validation_accuracy"] == run_to_end(trainer).history[-1].accuracy > trials[0]["validation_accuracy"]
    assert trials[1]["seconds"] > 0
    assert trials[1]["environment"]["torch"]

    search(monkeypatch, "run", file, "--device", "cpu")
    assert not capsys.readouterr().out, "what has a figure is not trained again"
    assert best.read(file) == trials
    search(monkeypatch, "show", file)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in shown] == ["1", "0", "0"], "by study, the best first"

    monkeypatch.setattr(best, "RECIPES", tmp_path)
    search(monkeypatch, "write", file)
    text = (tmp_path / "best/digits/tiny.toml").read_text()
    accuracy = trials[1]["validation_accuracy"]
    assert text.startswith("# faustnet train --recipe best/digits/tiny\n# The best of 2 trials, ")
    assert f"{accuracy:.2%} of the validation images after 2 epochs (results/best-study.json)." in text
    written = read(text)
    tuned_recipe = recipe_from(shipped_recipe("tuned/digits/faust-representative"))
    assert written.training.epochs == tuned_recipe.training.epochs, "a trial's own epochs are not the recipe's"
    assert (written.network.widths, written.options["choice"], written.training.validation) == ((24, 16), "k-means", 0.0)
    assert read((tmp_path / "best/digits/tiny-backprop.toml").read_text()).training.epochs == 1


def read(text: str) -> Recipe:
    return recipe_from(tomllib.loads(text))


def test_a_trial_of_a_best_recipe_states_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe may be another by the time that the trial is looked at."""
    search(monkeypatch, "add", tmp_path / "s.json", "digits/x", "--base", "best/digits/mlp", "method=backprop")
    (trial,) = best.read(tmp_path / "s.json")
    assert trial["base"] is None
    mine, base = best.recipe_of("digits/x", None, trial["changes"]), recipe_from(shipped_recipe("best/digits/mlp"))
    assert mine == changed(base, {"method": "backprop"})
    assert mine.options["label_smoothing"] == base.options["label_smoothing"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mlp"], "A study is DATASET/NAME"),
        (["imagenet/mlp"], "A study is DATASET/NAME"),
        (["digits/../x"], "A study is DATASET/NAME"),
        (["digits/x", "--base", "best/digits/mpl"], "did you mean best/digits/mlp?"),
        (["digits/x", "training.epoch=3"], "did you mean training.epochs?"),
        (["digits/x", "epochs"], "must be set with --set KEY=VALUE"),
    ],
)
def test_a_trial_that_cannot_be_is_not_put_in(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=said.replace("?", r"\?")):
        search(monkeypatch, "add", tmp_path / "study.json", *words)
    assert not (tmp_path / "study.json").exists()


def cell(name: str, mean: float, *, twin: bool = False, seeds: int = 3) -> dict[str, Any]:
    dataset = name.split("/")[0]
    return {
        "name": f"{name}-backprop" if twin else name, "of": name, "dataset": dataset, "method": "m",
        "role": "backprop" if twin else "local", "tuning": "learning-rate", "trials": 2,
        "seeds": seeds, "mean": mean, "std": 0.1, "parameters": 1234567, "seconds": 12.3, "epochs": 5,
        "trunk_parameters": None,
    }  # fmt: skip


def test_there_is_no_part_without_its_results(tmp_path: Path) -> None:
    assert not list(beyond.sections(tmp_path))
    assert beyond.representatives(tmp_path) is None
    assert new_classes.page(tmp_path) is None


def test_the_strongest_recipes_stand_beside_their_twins_and_the_records(tmp_path: Path) -> None:
    cells = [
        cell("cifar10/mlp-plain", 60.0), cell("cifar10/mlp", 70.07), cell("cifar10/mlp", 66.0, twin=True),
        cell("mnist/cnn", 99.6, seeds=1),
    ]  # fmt: skip
    (tmp_path / "best.json").write_text(json.dumps(cells))
    trials: list[dict[str, Any]] = [
        {"study": study, "base": None, "changes": {"optimiser.learning_rate": rate}, "validation_accuracy": accuracy}
        for study, rate, accuracy in (
            ("cifar10/mlp", 1, 0.6), ("cifar10/mlp", 2, 0.7), ("cifar10/mlp", 3, 0.5), ("cifar10/mlp", 4, None),
            ("digits/mlp", 1, 0.9),
        )
    ]  # fmt: skip
    (tmp_path / "best-study.json").write_text(json.dumps(trials))
    past, local = beyond.sections(tmp_path)
    assert "| cifar10/mlp | 70.07 ± 0.10 | 66.00 ± 0.10 | +4.07 ± 0.23 | 2 / 2, learning-rate | 1,234,567 / 1,2" in past
    assert "| cifar10/mlp-plain | 60.00 ± 0.10 | – | – | 2 | 1,234,567 |" in past
    assert past.index("| mnist/cnn") < past.index("| cifar10/mlp |"), "in the paper's order"
    assert "1 to 3 seeds" in past
    assert past.endswith("Number of trials in the file: cifar10/mlp 3.")
    rows = {row.split(" | ")[0]: row for row in local.splitlines() if row.startswith("| ")}
    assert len(rows) == 2 + len(beyond.RECORDS)
    (mlp,) = (row for words, row in rows.items() if "CIFAR-10, MLP" in words)
    assert mlp.endswith("| 69.07 | mlp 70.07 ± 0.10 (+1.00)<br>mlp-plain 60.00 ± 0.10 (−9.07) |")
    (cnn,) = (row for words, row in rows.items() if "| MNIST, CNN: best method" in words)
    assert cnn.endswith("| 99.70 | cnn 99.60 ± 0.10 (−0.10) |")
    assert all(row.endswith("| – |") for words, row in rows.items() if "Fashion" in words)
    for rates, said in ([1, 2, 3], False), ([1, 3, 2], True), ([2, 1, 3], True):  # the second is the best
        tried = zip(rates, (0.5, 0.7, 0.6), strict=True)
        for_twin = [
            {
                "study": "cifar10/mlp-backprop",
                "base": None,
                "changes": {"optimiser.learning_rate": rate},
                "validation_accuracy": found,
            }
            for rate, found in tried
        ]
        (tmp_path / "best-study.json").write_text(json.dumps(for_twin))
        assert next(beyond.sections(tmp_path)).endswith(" range: cifar10/mlp-backprop.") == said
    (tmp_path / "best.json").write_text(json.dumps([cell("digits/mlp", 98.0)]))
    assert len(list(beyond.sections(tmp_path))) == 1, "nothing was published for digits"


def test_what_each_piece_gives_is_told_of_every_base(tmp_path: Path) -> None:
    changes = [
        {"base": base, "epochs": 15, "change": change, "mean": mean, "std": None, "difference": difference, "seeds": 1}
        for base in ("cifar10/mlp", "mnist/mlp")
        for change, mean, difference in (("nothing", 70.0, 0.0), ("no dropout", 69.5, -0.5))
    ]
    (tmp_path / "ablation.json").write_text(json.dumps(changes))
    one, other = beyond.sections(tmp_path)
    assert "| no dropout | 69.50 | −0.50 |" in one
    assert "--base cifar10/mlp" in one
    assert "--base mnist/mlp" in other


def test_the_page_of_representatives_is_made_of_their_file(tmp_path: Path) -> None:
    points = [
        {"dataset": "cifar10", "network": "3x500", "kind": kind, "count": count, "mean": mean, "std": 0.25,
         "accuracies": [mean - 0.5, mean, mean + 0.5]}
        for kind, count, mean in (("random", 1, 57.0), ("k-means", 1, 58.0), ("random", 5, 59.0))
    ]  # fmt: skip
    (tmp_path / "representatives.json").write_text(json.dumps(points))
    page = beyond.representatives(tmp_path)
    assert page is not None
    assert "| references per class | 1 | 5 |" in page
    assert "| random | 57.00 ± 0.25 (3) | 59.00 ± 0.25 (3) |" in page
    assert "| k-means | 58.00 ± 0.25 (3) | – |" in page
    assert "| CIFAR-10 | 3 | 56.50 | 57.00 | 57.50 | 0.25 |" in page
    assert "3×500" in page
    assert "medoid changes the mean by +1.00. The best number of each kind changes it by: +2.00 (5 random images)" in page
    (link,) = beyond.sections(tmp_path)
    assert "docs/representatives.md" in link


def test_the_page_of_new_classes_is_made_of_both_studies(tmp_path: Path) -> None:
    added = [
        {"dataset": "mnist", "references": 1, "kind": kind, "examples": 10, "runs": 10, "mean": mean, "std": 4.5,
         "least": 80.0, "before": 98.0, "old": 96.5, "all": 95.0}
        for kind, mean in (("k-means", 70.0), ("mean", 91.0))
    ]  # fmt: skip
    rejected = [
        {"dataset": "mnist", "strange": "fashion-mnist", "method": method, "score": score, "seeds": 3, "mean": mean,
         "std": 0.5, "validation_auroc": 97.0, "accepted": 95.0, "rejected": 88.0, "accuracy": 98.0}
        for method, score, mean in (("backprop", "softmax", 93.0), ("faust-representative", "first layer", 97.5))
    ]  # fmt: skip
    (tmp_path / "new-classes.json").write_text(json.dumps(added))
    (link,) = beyond.sections(tmp_path)
    assert "docs/new-classes.md" in link
    assert new_classes.page(tmp_path) is None, "one study is missing"
    (tmp_path / "rejection.json").write_text(json.dumps(rejected))
    page = new_classes.page(tmp_path)
    assert page is not None
    assert "MNIST: 91.00 ± 4.50 % of its images are recognised; the accuracy of the old classes changes by −1.50" in page
    assert "| MNIST, 1 | k-means | 10 | 70.00 ± 4.50 | 80.00 | 98.00 | 96.50 | −1.50 | 95.00 |" in page
    scores = "first layer: 97.50 ± 0.50 on MNIST. AUROC of backprop's largest softmax probability: 93.00 ± 0.50"
    assert scores in " ".join(page.split())
    best_scores = "for FAUST: *first layer* on MNIST (97.50 ± 0.50); for backprop: *softmax* on MNIST (93.00 ± 0.50)."
    assert best_scores in " ".join(page.split())
    assert "*neighbour* need" not in page, "there is no such score"
    assert page.index("| first layer | 97.50 ± 0.50 |") < page.index("| softmax | 93.00 ± 0.50 |"), "FAUST comes first"


def test_the_outputs_on_the_page_of_an_archive_are_those_of_its_result() -> None:
    page, found = (path.read_text(encoding="utf-8") for path in (archive.PAGE, archive.RESULTS))
    assert archive.with_outputs(page, json.loads(found)["outputs"]) == page


def test_the_blocks_of_a_page_are_run_in_order_with_shared_names(tmp_path: Path) -> None:
    parts = {"python": "x = 3", "sh": "echo b > a; cat a", "text": "old"}
    page = "\n\n".join(f"```{language}\n{content}\n```" for language, content in parts.items())
    page += "\n```python\nprint(x, x + 1)\n```\n"
    outputs = archive.run(page, tmp_path)
    assert outputs == ["", "b\n", "3 4\n"]
    assert (tmp_path / "a").exists()
    assert archive.with_outputs(page, outputs) == page.replace("old", "b")


def test_the_section_about_many_classes_has_the_figures_of_both_files(tmp_path: Path) -> None:
    assert many_page.section(tmp_path) == ""
    network = {"command_seconds": [3.46, 4.0], "ratio": 1.27}
    of_classes = {"classes": 964, "added": 659, "networks": [network, {**network, "ratio": 1.01}]}
    prediction = {
        "classes": 100_000, "milliseconds": {"shortest": 12.34}, "milliseconds_one_thread": 15.0,
        "milliseconds_per_image_of_100": 1.5, "memory": 1.21,
    }  # fmt: skip
    compared = {"classes": 100_000, "images": "related", "recall": 0.994, "ratio": {"1": 18.9, "100": 11.4},
                "seconds_to_build": 9.0}  # fmt: skip
    of_references = {"embedding": 256, "cores": 2, "predictions": [prediction], "faiss": {"comparisons": [compared]}}
    (tmp_path / "many-classes.json").write_text(json.dumps(of_classes))
    (tmp_path / "many-references.json").write_text(json.dumps(of_references))
    section = many_page.section(tmp_path)
    assert "| 100,000 | 12.3 | 15.0 | 1.50 | 1.21 |" in section
    assert "| 100,000 | related | 0.994 | 18.9 | 11.4 | 9.0 |" in section
    assert "3.5 s for three dense layers" in section
    assert "takes 1.27 times as long" in section
    of_references["faiss"] = {"comparisons": []}
    (tmp_path / "many-references.json").write_text(json.dumps(of_references))
    assert "faiss" not in many_page.section(tmp_path)


def test_the_products_of_dense_layers_are_counted() -> None:
    assert many_page.products(964, 659) == pytest.approx((1_276_000 + 1623 * 768) / (1_276_000 + 964 * 768))


def test_all_arms_of_equal_tuning_get_the_same_draws_and_only_these_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.json"
    base = ("--base", "best/digits/mlp")
    search(monkeypatch, "add", file, "digits/mlp", *base)
    search(monkeypatch, "draw", file, "digits/mlp", *base, "--trials", 4, "--epochs", 5)
    trials = best.read(file)
    arms = {
        method: [best.trial_recipe(trial) for trial in trials[1:] if trial["changes"]["method"] == method]
        for method in ("faust-representative", "backprop", "deep-supervision")
    }
    assert [len(recipes) for recipes in arms.values()] == [4, 4, 4]
    assert {trial["study"] for trial in trials} == {"digits/mlp", "digits/mlp-backprop", "digits/mlp-deep-supervision"}
    drawn = [
        "network.dropout", "optimiser.learning_rate", "optimiser.weight_decay", "options.label_smoothing", "options.mixup",
        "data.cutout",
    ]  # fmt: skip
    for recipes in zip(*arms.values(), strict=True):
        settings = [[dotted(recipe)[key] for key in drawn] for recipe in recipes]
        assert settings[0] == settings[1] == settings[2]
        assert {recipe.training.epochs for recipe in recipes} == {5}
    rates = {recipe.optimiser.learning_rate for recipe in arms["backprop"]}
    assert len(rates) == 4, "which differ"
    with pytest.raises(SystemExit, match="has drawn trials of digits/mlp already"):
        search(monkeypatch, "draw", file, "digits/mlp", *base)

    for number, trial in enumerate(trials[:-1]):
        trial["validation_accuracy"] = 0.9 if number == 0 else number / 100
    assert {study: trial["number"] for study, (trial, _) in best.chosen(trials).items()} == {"digits/mlp": 0}, (
        "one is missing"
    )
    trials[-1]["failed"] = "It had no memory."
    assert best.chosen(trials).keys() == {"digits/mlp"}, "the arms would have different numbers of trials"
    trials[-1]["validation_accuracy"] = 0.12
    chosen = best.chosen(trials)
    assert {study: (trial["number"], count) for study, (trial, count) in chosen.items()} == {
        "digits/mlp": (4, 4), "digits/mlp-backprop": (3, 4), "digits/mlp-deep-supervision": (3, 4),
    }  # fmt: skip


def fail_at_two(number: int) -> int:
    if number == 2:
        raise ValueError("two")
    return 10 * number


def test_the_table_of_equal_trials_shows_the_best_of_each_arm_once_all_arms_have_one() -> None:
    def trial(study: str, accuracy: float | None, **about: Any) -> dict[str, Any]:
        changes = {"dataset": "cifar10", "training.epochs": 300}
        return {"study": study, "base": None, "changes": changes, "epochs": 30, "tuning": "equal",
                "validation_accuracy": accuracy, **about}  # fmt: skip

    arms = {"": (0.5, 0.7), "-backprop": (0.6, None), "-deep-supervision": (0.65,)}
    trials = [trial(f"cifar10/mlp{ending}", accuracy) for ending, found in arms.items() for accuracy in found]
    trials += [
        trial("cifar10/mlp", 0.9, tuning="learning-rate"),
        trial("cifar10/cnn", 0.8),
        trial("cifar10/cnn-backprop", 0.8),
    ]
    lines = twins.equal_trials(trials).splitlines()
    assert lines[2:] == ["| cifar10/mlp | 30 | 70.00 (2) | 60.00 (1) | 65.00 (1) |"]
    assert not twins.equal_trials(trials[2:])
    del trials[0]["epochs"]  # a trial of the recipe's length
    assert twins.equal_trials(trials).splitlines()[2].startswith("| cifar10/mlp | 30 / 300 |")


def test_a_learning_rate_that_is_the_default_may_be_at_the_edge() -> None:
    trials = [
        {"study": "digits/mlp", "base": None, "changes": changes, "validation_accuracy": accuracy}
        for changes, accuracy in (
            ({}, 0.9),
            ({"optimiser.learning_rate": 0.01}, 0.8),
            ({"optimiser.learning_rate": 0.1}, 0.7),
        )
    ]
    assert twins.at_the_edge(trials)
    trials[1]["validation_accuracy"] = 0.95
    assert not twins.at_the_edge(trials)


@pytest.mark.parametrize("arm", ARMS)
def test_the_arms_of_the_time_to_an_accuracy_are_networks_of_cifar10(arm: str) -> None:
    recipe = Work.read(f"{arm}:15", 3).recipe
    assert (recipe.dataset, recipe.training.epochs, recipe.training.evaluate_every, recipe.seed) == ("cifar10", 15, 15, 3)
    assert recipe.method == ("backprop" if arm.endswith("-backprop") else "faust-representative")
    assert recipe.network.kind == ("residual" if "large" in arm else "vgg")


def test_the_time_to_an_accuracy_is_measured_once_for_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_to_accuracy, "DEVICE", torch.device("cpu"))
    changes = {key: json.loads(value) for key, value in (setting.split("=") for setting in SMALL)}
    monkeypatch.setattr(time_to_accuracy, "ARMS", {"tiny": ("tuned/digits/faust-representative", changes)})
    file = tmp_path / "times.json"

    def measure(*words: str) -> dict[str, list[dict[str, Any]]]:
        monkeypatch.setattr(sys, "argv", ["time_to_accuracy.py", str(file), *words])
        time_to_accuracy.main()
        found: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())
        return found

    measure("--only", "tiny:2:0.002", "tiny:2:1e-9", "--validation", "--seeds", "1")
    found = measure("--only", "tiny:3:0.002", "tiny:3:0.002", "--seeds", "2")
    one, other = found["validation"]
    assert one["accuracy"] > other["accuracy"], "the learning rate counts"
    runs = [(line["epochs"], line["seed"], line["recipe"]["training"]["epochs"]) for line in found["runs"]]
    assert runs == [(3, 0, 3), (3, 1, 3)]
    assert all(0 < line["epoch_seconds"] <= line["seconds"] for line in found["runs"])
    assert measure("--only", "tiny:3:0.002", "--seeds", "2") == found, "runs of this commit are not measured again"
    with pytest.raises(SystemExit):
        measure("--only", "tiny:1")
    with pytest.raises(SystemExit):
        measure("--only", "small:3")


def test_other_calls_go_on_if_one_fails() -> None:
    found: list[tuple[int, int]] = []
    with pytest.raises(ValueError, match="two"):
        found.extend(results_of(fail_at_two, [(number,) for number in (1, 2, 3, 4)], [1] * 4, 2, math.inf))
    assert sorted(found) == [(0, 10), (2, 30), (3, 40)]


def test_a_row_replaces_the_one_of_the_same_run(tmp_path: Path) -> None:
    file = tmp_path / "new" / "rows.json"
    for seed, accuracy in ((0, 0.5), (1, 0.6), (0, 0.7)):
        add_row(file, {"code": "plain", "seed": seed, "accuracy": accuracy}, ("code", "seed"))
    assert [(row["seed"], row["accuracy"]) for row in json.loads(file.read_text())] == [(1, 0.6), (0, 0.7)]
