"""Classes that are added without training, and images that are of none."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from conftest import Answer
from faustnet.data import DataSet, Images, load_data
from faustnet.errors import FaustnetError
from faustnet.methods import METHODS, Faust
from faustnet.nn.references import REFERENCE_KINDS, known_score, references_from
from faustnet.reproduce import rejection
from faustnet.reproduce.new_classes import NewClassJob, new_class_jobs, new_old_all_accuracy, summary
from faustnet.reproduce.rejection import COMPARED, UNKNOWN, RejectionJob, neighbour_scores, rejection_jobs, scores_of
from faustnet.reproduce.worker import StoppableProgress
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.runs.session import train
from faustnet.training.evaluation import all_embeddings, auroc, threshold_accepting

Command = Callable[..., Answer]
FAUST = [name for name, method in METHODS.items() if issubclass(method, Faust)]
LEFT_OUT = 6  # of the digits, so that a new class is not the last by name


def trained(name: str, folder: Path, data: DataSet, **options: object) -> Run:
    table = {
        "method": name,
        "options": options,
        "network": {"widths": [64, 48], "embedding": 32},
        "optimiser": {"learning_rate": 0.005},
        "training": {"epochs": 6, "batch_size": 64, "validation": 200},
    }
    return train(recipe_from(table), folder, device=torch.device("cpu"), progress=StoppableProgress(), data=data)


@pytest.fixture(scope="module")
def nine() -> DataSet:
    return NewClassJob("digits", LEFT_OUT, 1, 0).data(load_data)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, nine: DataSet) -> dict[str, Run]:
    """Of nine digits, by every method of FAUST, one of them also with several references."""
    folder = tmp_path_factory.mktemp("nine")
    found = {name: trained(name, folder / name, nine) for name in FAUST}
    return {**found, "several": trained("faust-representative", folder / "several", nine, representatives=4)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of all digits."""
    return trained("faust-representative", tmp_path_factory.mktemp("ten") / "run", load_data("digits"))


@pytest.fixture
def examples(digits: DataSet) -> torch.Tensor:
    return digits.train.pixels[digits.train.labels == LEFT_OUT][:10]


def black_and_white(count: int) -> torch.Tensor:
    """Images that are like no digit."""
    generator = torch.Generator().manual_seed(0)
    return 255 * torch.randint(2, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)


def test_references_of_a_new_class_are_made_of_its_embeddings() -> None:
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    mean = torch.tensor([sum(rows[i, j].item() for i in range(6)) / 6 for j in range(5)])
    torch.testing.assert_close(references_from(rows, 3, "mean"), mean.expand(3, 5))
    assert torch.equal(references_from(rows, 3, "examples"), rows[:3])
    assert torch.equal(references_from(rows[:2], 5, "examples"), rows[[0, 1, 0, 1, 0]]), "those that there are repeat"
    far = torch.cat([rows, rows + 100, rows - 100])
    middles = references_from(far, 3, "k-means")
    assert sorted(round(middle.mean().item() / 100) for middle in middles) == [-1, 0, 1], "one of each cluster"
    assert all((far == middle).all(dim=1).any() for middle in middles), "and each is an example"
    assert len(references_from(rows[:2], 5, "k-means")) == 5


@pytest.mark.parametrize("name", [*FAUST, "several"])
def test_a_class_is_added_without_a_change_to_the_others(
    name: str, runs: dict[str, Run], nine: DataSet, digits: DataSet, examples: torch.Tensor, tmp_path: Path
) -> None:
    model = runs[name].model()
    before = {key: tensor.clone() for key, tensor in model.method.state_dict().items()}
    larger = model.add_class("six", examples)
    assert (model.class_names, larger.class_names) == (nine.class_names, (*nine.class_names, "six"))
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.method.state_dict().items())
    for key, tensor in larger.method.state_dict().items():
        assert torch.equal(tensor[: len(before[key])] if tensor.dim() else tensor, before[key]), key
    test = digits.test.pixels
    torch.testing.assert_close(larger.scores(test)[..., :-1], model.scores(test))
    method = larger.method
    assert isinstance(method, Faust)
    embedded = all_embeddings(model.method, model.source(model.images(examples)))
    for references, rows in zip(method.references, embedded, strict=True):
        mean = rows.mean(dim=0)
        if name == "faust-prototype":  # as long as the learned ones are
            mean = mean / mean.norm() * torch.stack([row.norm() for row in references[:-1, 0]]).mean()
        torch.testing.assert_close(references[-1], mean.expand_as(references[-1]))

    renamed = replace(digits, class_names=tuple("six" if one == str(LEFT_OUT) else one for one in digits.class_names))
    new, old, both = new_old_all_accuracy(larger, renamed)
    unchanged = model.measure(nine.test)["accuracy"]
    assert new > 0.45
    assert old > unchanged - 0.12
    assert both == pytest.approx((new * 36 + old * 324) / 360)

    (tmp_path / "model").write_bytes(larger.to_bytes())
    loaded = Model.load(tmp_path / "model")
    assert loaded.class_names == larger.class_names
    assert torch.equal(loaded.scores(test), larger.scores(test))
    twice = loaded.add_class("another", digits.test.pixels[:1])
    assert twice.scores(test).shape == (2, 360, 11)
    assert twice.predict(digits.test.pixels[:1])[0].class_name == "another", "an example is nearest to itself"


def test_what_stands_for_a_new_class_may_be_chosen(runs: dict[str, Run], examples: torch.Tensor) -> None:
    model = runs["several"].model()
    made = {kind: model.add_class("six", examples, kind).method for kind in REFERENCE_KINDS}
    first = {kind: method.references.layer_0[-1] for kind, method in made.items()}
    embedding = all_embeddings(model.method, model.source(model.images(examples)))[0]
    assert torch.equal(first["examples"], embedding[:4])
    assert len(first["mean"].unique(dim=0)) == 1
    assert all((embedding == row).all(dim=1).any() for row in first["k-means"])
    assert len(first["k-means"].unique(dim=0)) == 4
    assert torch.equal(first["k-means"], model.add_class("six", examples, "k-means").method.references.layer_0[-1])
    images = made["mean"].images[-4:].view(4, 1, 8, 8)
    torch.testing.assert_close(images, model.scaling(examples[:4]))


def test_what_cannot_become_a_class_is_refused(runs: dict[str, Run], examples: torch.Tensor, tmp_path: Path) -> None:
    model = runs["faust-representative"].model()
    for name, pixels, sentence in (
        ("3", examples, "already has a class '3'"),
        (" ", examples, "name of the new class must not be empty, got ' '"),
        (10, examples, "name of the new class must be a string, got 10"),
        ("unknown", examples, "must not be named 'unknown'"),
        ("six", examples[:0], "at least one example of 'six', got none"),
        ("six", torch.zeros(2, 1, 9, 9, dtype=torch.uint8), "must be images of 1×8×8 for this model, got images of 1×9×9"),
    ):
        with pytest.raises(FaustnetError, match=sentence):
            model.add_class(name, pixels)
    with pytest.raises(FaustnetError, match="kind must be mean or k-means or examples, got 'medain'"):
        model.add_class("six", examples, "medain")
    with pytest.raises(FaustnetError, match="pixels must contain finite values only"):
        replace(model, of_bytes=False).add_class("six", examples / torch.tensor(0.0))
    assert model.scaling is not None
    narrow = replace(model, of_bytes=False, scaling=replace(model.scaling, deviation=model.scaling.deviation / 1e30))
    with pytest.raises(FaustnetError, match="The examples of 'six' contain values that are not finite or too large"):
        narrow.add_class("six", examples * 1e30)
    other = trained("backprop", tmp_path / "run", load_data("digits")).model()
    with pytest.raises(FaustnetError, match="Adding a class needs a FAUST model, got backprop"):
        other.add_class("six", examples)
    with pytest.raises(FaustnetError, match="Rejecting images needs a FAUST model, got backprop"):
        other.calibrate(examples)


def test_known_score_is_the_best_score_of_the_first_layer(whole: Run, digits: DataSet) -> None:
    model = whole.model()
    assert isinstance(model.method, Faust)
    near = known_score(model.scores(digits.test.pixels[:7]))
    first = all_embeddings(model.method, model.source(model.images(digits.test.pixels[:7])))[0]
    for embedding, found in zip(first, near, strict=True):
        distances = [(embedding - reference).norm().item() for reference in model.method.references.layer_0[:, 0]]
        assert -found.item() == pytest.approx(min(distances), rel=1e-4)


@pytest.mark.parametrize("accept", [0.5, 0.9, 0.95, 1.0])
def test_the_threshold_leaves_out_the_share_that_was_asked_for(accept: float, whole: Run, digits: DataSet) -> None:
    model = whole.model()
    pixels = digits.test.pixels[:200]
    calibrated = model.calibrate(pixels, accept)
    answers = calibrated.predict(pixels, reject=True)
    assert sum(answer.class_name == "unknown" for answer in answers) == round(200 * (1 - accept))
    plain = calibrated.predict(pixels)
    assert all(answer.class_name in ("unknown", one.class_name) for answer, one in zip(answers, plain, strict=True))
    assert [answer.score for answer in answers] == [one.score for one in plain]
    assert threshold_accepting(torch.arange(10.0), accept) == round(10 * (1 - accept) - 0.1)


def test_a_calibrated_model_rejects_noise_and_remembers_it(
    whole: Run, digits: DataSet, examples: torch.Tensor, tmp_path: Path
) -> None:
    model = whole.model()
    noise = black_and_white(50)
    with pytest.raises(FaustnetError, match="has no rejection threshold yet: run 'faustnet calibrate RUN'"):
        model.predict(noise, reject=True)
    for accept in (0.0, 1.1, float("nan")):
        with pytest.raises(FaustnetError, match="accept must be above 0 and at most 1, got"):
            model.calibrate(digits.test.pixels, accept)
    with pytest.raises(FaustnetError, match="at least one image of a class of the model"):
        model.calibrate(digits.test.pixels[:0])
    calibrated = model.calibrate(digits.test.pixels)
    (tmp_path / "model").write_bytes(calibrated.to_bytes())
    loaded = Model.load(tmp_path / "model")
    assert loaded.threshold == calibrated.threshold
    strange = [answer.class_name == "unknown" for answer in loaded.predict(noise, reject=True)]
    assert strange == (known_score(model.scores(noise)) < calibrated.threshold).tolist()
    assert sum(strange) > 25
    one = noise[strange.index(True)].unsqueeze(0)
    larger = loaded.add_class("noise", one).calibrate(digits.test.pixels)
    assert larger.predict(one, reject=True)[0].class_name == "noise", "what is known is not rejected"


def test_a_model_file_without_a_threshold_a_tokeniser_and_a_checksum_is_read(whole: Run, tmp_path: Path) -> None:
    content = whole.model().to_bytes()
    newer = re.compile(rb', \\"threshold\\": null, \\"tokeniser\\": null, \\"checksum\\": \\"[0-9a-f]{64}\\"')
    older, count = newer.subn(lambda found: b" " * len(found[0]), content)
    assert count == 1
    (tmp_path / "model").write_bytes(older)
    assert Model.load(tmp_path / "model").threshold is None


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    generator = torch.Generator().manual_seed(0)
    known, strange = (torch.randint(8, (size,), generator=generator) + shift for size, shift in ((40, 2), (25, 0)))
    pairs = [(a > b) + 0.5 * (a == b) for a in known.tolist() for b in strange.tolist()]
    assert auroc(known, strange) == pytest.approx(sum(pairs) / len(pairs))
    truth = np.repeat([1, 0], [40, 25])
    assert auroc(known, strange) == pytest.approx(roc_auc_score(truth, torch.cat([known, strange]).numpy()))
    assert auroc(strange, known) == pytest.approx(1 - auroc(known, strange))


def written(folder: Path, pixels: torch.Tensor) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{number}.png" for number in range(len(pixels))]
    for path, picture in zip(paths, pixels, strict=True):
        Image.fromarray(picture[0].numpy()).save(path)
    return paths


def test_a_class_is_added_by_one_command(
    faustnet: Command, runs: dict[str, Run], digits: DataSet, examples: torch.Tensor, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["faust-representative"].folder, run)
    model = run / "model.safetensors"
    as_it_was = model.read_bytes()
    paths = written(tmp_path / "examples", examples)
    aside = faustnet("add-class", run, LEFT_OUT, *paths[:3], "--out", tmp_path / "aside.safetensors", "--device", "cpu")
    assert aside.code == 0
    assert model.read_bytes() == as_it_was, "the run stays"
    assert len(Model.load(tmp_path / "aside.safetensors").class_names) == 10

    answer = faustnet("add-class", run, LEFT_OUT, tmp_path / "examples", "--device", "cpu")
    assert answer.code == 0
    assert "now has 10 classes: 0, 1, 2, 3, 4, 5, 7, 8, 9, 6" in answer.out
    assert f"Predictions for the 10 examples of {LEFT_OUT}, before: " in answer.out
    expected = Model.load(model).method.state_dict()
    direct = runs["faust-representative"].model().add_class(str(LEFT_OUT), examples).method.state_dict()
    assert all(torch.equal(tensor, direct[key]) for key, tensor in expected.items())
    found = json.loads(faustnet("predict", run, *paths, "--json", "--device", "cpu").out)
    assert sum(entry["class_name"] == str(LEFT_OUT) for entry in found) >= 9
    (measured,) = json.loads(faustnet("evaluate", run, "--json", "--device", "cpu").out)
    new, _, both = new_old_all_accuracy(Model.load(model), digits)
    assert measured["accuracy"] == pytest.approx(both), "on data that have the class, under its own name"
    assert measured["confusion"][-1][-1] == round(36 * new)


def test_a_class_that_cannot_be_added_leaves_the_model_as_it_was(
    faustnet: Command, runs: dict[str, Run], examples: torch.Tensor, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["faust-representative"].folder, run)
    as_it_was = (run / "model.safetensors").read_bytes()
    paths = written(tmp_path / "examples", examples[:2])
    (tmp_path / "bad.png").write_bytes(b"not an image")
    (tmp_path / "empty").mkdir()
    for words, sentence in (
        (("3", *paths), "The model already has a class '3': choose another name."),
        (("six", *paths, tmp_path / "bad.png"), "bad.png is not a readable image"),
        (("six", tmp_path / "none.png"), "none.png does not exist"),
        (("six", tmp_path / "empty"), "contains no image"),
        (("six", *paths, "--out", tmp_path / "nowhere/model"), "could not be written"),
    ):
        answer = faustnet("add-class", run, *words, "--device", "cpu")
        assert answer.code == 2
        assert sentence in answer.sentence
    assert (run / "model.safetensors").read_bytes() == as_it_was
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    assert "is not a run" in faustnet("add-class", tmp_path, "six", *paths).sentence


def test_a_run_is_calibrated_by_one_command(faustnet: Command, whole: Run, digits: DataSet, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole.folder, run)
    paths = written(tmp_path / "noise", black_and_white(2))
    assert "run 'faustnet calibrate RUN'" in faustnet("predict", run, *paths, "--reject", "--device", "cpu").sentence
    answer = faustnet("calibrate", run, "--accept", "0.9", "--device", "cpu")
    assert answer.code == 0
    assert "rejects 20 of these 200 images of known classes (10.00%)" in answer.out
    _, held_out = digits.train.split(200, seed=0)
    assert Run(run).model().threshold == whole.model().calibrate(held_out.pixels, 0.9).threshold
    found = json.loads(faustnet("predict", run, *paths, "--reject", "--json", "--device", "cpu").out)
    assert [entry["class_name"] for entry in found] == ["unknown", "unknown"]
    answer = faustnet("predict", run, *paths, "--json", "--device", "cpu")
    assert "unknown" not in [entry["class_name"] for entry in json.loads(answer.out)]
    assert all(entry["far"] for entry in json.loads(answer.out))
    expected = f"far from all classes: {paths[0]}, {paths[1]}; --reject prints unknown for them"
    assert expected in " ".join(answer.err.split())
    assert "far from" not in faustnet("predict", run, *paths, "--reject", "--device", "cpu").err
    assert "--reject exclude each other" in faustnet("predict", run, *paths, "--reject", "--exit-margin", "1").sentence

    np.savez(
        tmp_path / "mine.npz",
        x_train=digits.train.pixels.numpy(), y_train=digits.train.labels.numpy(),
        x_test=digits.test.pixels[:100].numpy(), y_test=digits.test.labels[:100].numpy(),
    )  # fmt: skip
    answer = faustnet("calibrate", run, "--data", tmp_path / "mine.npz", "--device", "cpu")
    assert "rejects 5 of these 100 images" in answer.out
    assert "accept must be above 0 and at most 1, got 2" in faustnet("calibrate", run, "--accept", "2").sentence


def test_a_run_that_held_out_nothing_asks_for_data(faustnet: Command, tmp_path: Path) -> None:
    quick = ("--widths", "16", "--epochs", "1", "--device", "cpu", "--out", tmp_path / "run")
    assert faustnet("train", *quick).code == 0
    sentence = faustnet("calibrate", tmp_path / "run", "--device", "cpu").sentence
    assert "has no validation images: give other images of its classes with --dataset" in sentence
    assert faustnet("calibrate", tmp_path / "run", "--dataset", "digits", "--device", "cpu").code == 0
    assert faustnet("train", "--method", "backprop", *quick[:-1], tmp_path / "other").code == 0
    answer = faustnet("calibrate", tmp_path / "other", "--device", "cpu")
    assert "Rejecting images needs a FAUST model, got backprop" in answer.sentence  # no advice that would fail, too


def test_new_classes_are_studied_by_one_command(faustnet: Command, digits: DataSet, tmp_path: Path) -> None:
    words = ("reproduce", "new-classes", "--datasets", "digits", "--classes", "6", "--references", "1", "--device", "cpu")
    answer = faustnet(*words, "--out", tmp_path)
    assert answer.code == 0
    (path,) = (tmp_path / "new-classes").iterdir()
    result = json.loads(path.read_text())
    assert (result["left_out"], result["class_name"], result["test_accuracy"] > 0.95) == (6, "6", True)
    assert [(one["examples"], one["kind"]) for one in result["added"]] == [
        (1, "mean"), *((size, kind) for size in (10, 100) for kind in REFERENCE_KINDS)
    ]  # fmt: skip
    cells = json.loads((tmp_path / "new-classes.json").read_text())
    assert cells == summary([result])
    (ten,) = (cell for cell in cells if (cell["examples"], cell["kind"]) == (10, "mean"))
    assert ten["mean"] == ten["least"] == pytest.approx(20 * sum(result["added"][1]["new"]), abs=1e-3)
    assert ten["mean"] > 60
    assert f"| digits, 1 | mean | 10 | {ten['mean']:.2f} |" in (tmp_path / "new-classes.md").read_text()
    again = faustnet(*words, "--out", tmp_path)
    assert "training" not in again.err
    assert again.out == answer.out


def test_what_cannot_be_studied_is_refused() -> None:
    for arguments, sentence in (
        ((["mnist"], [10], [1], 1), "--classes must be numbers from 0 to 9, got 10"),
        ((["mnist"], [0], [0], 1), "--references must be at least 1, got 0"),
        ((["emnist"], [0], [1], 1), "did you mean mnist"),
        ((["mnist"], [0], [1], 0), "--seeds must be from 1"),
    ):
        with pytest.raises(FaustnetError, match=sentence):
            new_class_jobs(*arguments)
    with pytest.raises(
        FaustnetError, match="--datasets must be mnist or fashion-mnist or cifar10 or omniglot, got 'cifar100'"
    ):
        rejection_jobs(["cifar100"], 1)


def test_a_class_left_out_is_in_no_training_image(nine: DataSet, digits: DataSet) -> None:
    assert nine.class_names == ("0", "1", "2", "3", "4", "5", "7", "8", "9")
    for part, before in ((nine.train, digits.train), (nine.test, digits.test)):
        kept = before.labels != LEFT_OUT
        assert torch.equal(part.pixels, before.pixels[kept])
        names = [nine.class_names[number] for number in part.labels.tolist()]
        assert names == [digits.class_names[number] for number in before.labels[kept].tolist()]


def test_rejection_is_measured_by_every_score(
    whole: Run, digits: DataSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))

    def shuffled(images: Images) -> Images:
        return replace(images, pixels=images.pixels.flatten(1)[:, order].view_as(images.pixels))

    strange = DataSet("shuffled", digits.class_names, shuffled(digits.train), shuffled(digits.test))
    monkeypatch.setitem(UNKNOWN, "digits", "shuffled")
    monkeypatch.setattr("faustnet.reproduce.rejection.HELD_OUT", 200)
    model = whole.model()
    job = RejectionJob("digits", "faust-representative", 0)
    found = job.measure(model, lambda name: digits if name == "digits" else strange)
    assert found["strange"] == "shuffled"
    by_name = {one["score"]: one for one in found["scores"]}
    assert list(by_name) == [*scores_of(model), "neighbour 1", "neighbour 50"]
    near = [known_score(model.scores(images.pixels)) for images in (digits.test, strange.test)]
    truth = np.repeat([1, 0], 360)
    assert by_name["first layer"]["auroc"] == pytest.approx(roc_auc_score(truth, torch.cat(near).numpy()))
    assert by_name["first layer"]["auroc"] > 0.9
    reached = near[0].sort().values[18]  # 5 % of 360 are below
    assert by_name["first layer"]["false_positives"] == pytest.approx((near[1] >= reached).double().mean().item())
    for one in by_name.values():
        assert 0.85 < one["accepted"] <= 1
        assert 0 <= one["rejected"] <= 1
    backprop = trained("backprop", tmp_path / "run", digits).model()
    softmax = scores_of(backprop)["softmax"](backprop.scores(digits.test.pixels))
    assert softmax.min() >= 0.1
    assert softmax.max() <= 1


def test_the_distance_to_a_neighbour_is_that_of_unit_embeddings(whole: Run, digits: DataSet) -> None:
    model = whole.model()
    some, train = Images(digits.test.pixels[:6], digits.test.labels[:6]), Images(digits.train.pixels, digits.train.labels)
    found = neighbour_scores(model, train, [some])
    rows, others = (
        model.method.embed(model.source(images).plain(torch.arange(len(images))), [2]) for images in (some, train)
    )
    for image in range(6):
        distances = sorted((rows[image] / rows[image].norm() - other / other.norm()).norm().item() for other in others)
        for count in (1, 50):
            assert found[f"neighbour {count}"][0][image].item() == pytest.approx(-distances[count - 1], abs=1e-4)
    few = Images(digits.train.pixels[:100], digits.train.labels[:100])
    assert list(neighbour_scores(model, few, [some])) == ["neighbour 1"], "a class has fewer than 50 images"


def test_a_study_without_its_recipe_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faustnet.reproduce.jobs.shipped_recipes", lambda: ["tuned/mnist/backprop"])
    with pytest.raises(FaustnetError, match="This version has no recipe 'few-shot/omniglot/backprop'"):
        RejectionJob("omniglot", "backprop", 0)


def test_near_images_are_studied_with_the_best_recipes_and_their_twins() -> None:
    jobs = rejection_jobs(["cifar10"], 2)
    assert [(job.method, job.seed) for job in jobs] == [(name, seed) for seed in (0, 1) for name in COMPARED]
    for job in jobs:
        assert (job.recipe.dataset, job.recipe.method, job.recipe.seed) == ("cifar10", job.method, job.seed)
        assert job.recipe.training.validation == 5000
        assert job.recipe.network.kind == "vgg"


def test_earlier_results_have_no_false_positives() -> None:
    cell = {
        "dataset": "mnist", "strange": "fashion-mnist", "method": "backprop", "score": "softmax", "seeds": 3, "mean": 93.0,
        "std": 0.5, "validation_auroc": 97.0, "accepted": 95.0, "rejected": 88.0, "accuracy": 98.0,
    }  # fmt: skip
    (before,), (after,) = rejection.rows([cell]), rejection.rows([{**cell, "false_positives": 12.345}])
    assert before[4:] == ["97.00", "–", "95.00", "88.00"]
    assert after[4:] == ["97.00", "12.35", "95.00", "88.00"]


def test_a_model_that_learned_a_class_is_to_be_calibrated_anew(whole: Run, examples: torch.Tensor, digits: DataSet) -> None:
    larger = whole.model().calibrate(digits.test.pixels).add_class("new", examples)
    assert larger.threshold is None
    with pytest.raises(FaustnetError, match="calibrate"):
        larger.predict(examples, reject=True)


def test_prototypes_of_free_length_reject_nothing(runs: dict[str, Run], digits: DataSet) -> None:
    with pytest.raises(FaustnetError, match=r"network\.length must be unit or learned to reject images .*, got free"):
        runs["faust-prototype"].model().calibrate(digits.test.pixels)


def test_metrics_without_the_added_classes_are_not_reported(
    faustnet: Command, runs: dict[str, Run], examples: torch.Tensor, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["faust-representative"].folder, run)
    (run / "model.safetensors").write_bytes(runs["faust-representative"].model().add_class("six", examples).to_bytes())
    answer = faustnet("report", run)
    assert answer.code == 2
    assert "Classes were added to the model in" in answer.sentence
    assert "undo the changes with 'faustnet undo-classes'" in answer.sentence
    assert "Traceback" not in answer.err


def test_a_model_file_is_as_good_as_a_run(
    faustnet: Command, runs: dict[str, Run], examples: torch.Tensor, tmp_path: Path
) -> None:
    run, file = runs["faust-representative"].folder, tmp_path / "ten.safetensors"
    (picture, *_) = written(tmp_path / "sixes", examples[:3])
    assert faustnet("add-class", run, "six", tmp_path / "sixes", "--out", file).code == 0
    found = json.loads(faustnet("predict", file, picture, "--json").out)
    assert found[0]["class_name"] == Model.load(file).predict(examples[:1])[0].class_name
    assert "six" in faustnet("evaluate", file, "--dataset", "digits").sentence, "the digits have no class of that name"


def test_a_model_of_other_numbers_refuses_bytes(whole: Run, digits: DataSet) -> None:
    model = replace(whole.model(), of_bytes=False)
    with pytest.raises(FaustnetError, match="pixels must be floats"):
        model.predict(digits.test.pixels)
    with pytest.raises(FaustnetError, match="this model was trained on other values"):
        model.image_shape  # noqa: B018
