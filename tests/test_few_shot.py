"""N-way K-shot accuracy: episodes, scores, intervals, the command, and the study on alphabets that are kept apart."""

import json
import math
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import few_shot as study
from conftest import Answer
from faustnet.data import DataSet, load_data
from faustnet.data.loading import IMAGE_SETS
from faustnet.data.omniglot import BACKGROUND, EVALUATION, Part, omniglot
from faustnet.errors import FaustnetError
from faustnet.methods import Faust
from faustnet.reproduce import few_shot as reproduced
from faustnet.reproduce import jobs
from faustnet.reproduce.few_shot import interval_text, rows, summary
from faustnet.reproduce.worker import StoppableProgress, cached_data
from faustnet.runs.few_shot import all_images, measure_task, model_features, pixel_features, with_interval
from faustnet.runs.folder import Run
from faustnet.runs.recipes import recipe_from
from faustnet.runs.session import train
from faustnet.training import few_shot
from faustnet.training.few_shot import Episodes, Features, Task, draw_episodes, episode_accuracies, mean_interval
from omniglot_files import write_omniglot

Command = Callable[..., Answer]
CPU = torch.device("cpu")
NAMES = ("a/1", "a/2", "a/3", "b/1", "b/2", "c")
LABELS = torch.tensor([n for n, count in enumerate((5, 6, 4, 7, 4, 3)) for _ in range(count)])[
    torch.randperm(29, generator=torch.Generator().manual_seed(0))
]


def test_an_episode_has_different_images_of_different_classes() -> None:
    found = draw_episodes(Task(3, 2, 2), LABELS, NAMES, 200, seed=0)
    assert (found.support.shape, found.queries.shape, len(found)) == ((200, 3, 2), (200, 3, 2), 200)
    seen = set()
    for support, queries in zip(found.support, found.queries, strict=True):
        images = torch.cat([support, queries], dim=1)
        assert len(images.unique()) == 12
        labels = LABELS[images]
        assert (labels == labels[:, :1]).all()
        assert len(labels[:, 0].unique()) == 3
        seen |= set(labels[:, 0].tolist())
    assert seen == {0, 1, 2, 3, 4}, "class c has too few images"


def test_the_seed_determines_the_episodes() -> None:
    first, again, other = (draw_episodes(Task(2, 1, 1), LABELS, NAMES, 50, seed) for seed in (3, 3, 4))
    assert torch.equal(first.support, again.support)
    assert torch.equal(first.queries, again.queries)
    assert not torch.equal(first.support, other.support)


def test_the_classes_of_an_episode_are_of_one_alphabet() -> None:
    found = draw_episodes(Task(2, 1, 3, "alphabet"), LABELS[LABELS < 5], NAMES[:5], 300, seed=0)
    alphabets = [{NAMES[label][0] for label in LABELS[LABELS < 5][support[:, 0]].tolist()} for support in found.support]
    assert all(len(one) == 1 for one in alphabets)
    share = statistics.mean(one == {"a"} for one in alphabets)
    assert 0.4 < share < 0.6, "an alphabet is drawn first"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Task(1, 1), r"ways must be at least 2 classes, got 1\."),
        (lambda: Task(5, 0), r"shots must be at least 1 image per class, got 0\."),
        (lambda: Task(5, 1, 0), r"queries must be at least 1 image per class, got 0\."),
        (lambda: Task(5, 1, 1, "letters"), r"protocol must be random or alphabet, got 'letters'\."),
        (lambda: draw_episodes(Task(2, 1), LABELS, NAMES, 1, 0), r"episodes must be at least 2, for an interval, got 1\."),
        (
            lambda: draw_episodes(Task(6, 1, 3), LABELS, NAMES, 9, 0),
            r"6-way 1-shot with 3 queries needs at least 6 classes with 4 images or more, got 5: use fewer ways, shots or",
        ),
        (
            lambda: draw_episodes(Task(3, 2, 3, "alphabet"), LABELS, NAMES, 9, 0),
            r"3-way 2-shot within an alphabet with 3 queries needs at least 3 classes in one alphabet with 5 images.*got 2",
        ),
        (
            lambda: draw_episodes(Task(2, 1, 1, "alphabet"), LABELS, NAMES, 9, 0),
            r"protocol must be random for classes without alphabets, whose names are not ALPHABET/NAME, such as 'c'",
        ),
    ],
    ids=["ways", "shots", "queries", "protocol", "episodes", "classes", "alphabets", "names"],
)
def test_tasks_that_cannot_be_drawn(make: Callable[[], object], said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        make()


def looped(features: Features, episodes: Episodes, layers: list[int], weights: list[float]) -> list[float]:
    """The accuracy of some layers in each episode, by plain loops."""
    found = []
    for support, queries in zip(episodes.support.tolist(), episodes.queries.tolist(), strict=True):
        right = []
        for number, own in enumerate(queries):
            for query in own:
                scores = []
                for examples in support:
                    score = 0.0
                    for layer in layers:
                        embedding = features.embeddings[layer]
                        mean = sum(embedding[i] for i in examples) / len(examples)
                        if features.lengths:
                            mean = mean / mean.norm() * features.lengths[layer]
                        sides = [embedding] + ([features.mirrored[layer]] if features.mirrored else [])
                        for side in sides:
                            score -= weights[layer] * (side[query] - mean).norm().item() / len(sides)
                    scores.append(score)
                right.append(scores.index(max(scores)) == number)
        found.append(statistics.mean(right))
    return found


@pytest.mark.parametrize("lengths", [None, [1.0, 0.5]])
@pytest.mark.parametrize("mirrored", [False, True])
def test_accuracies_are_those_of_plain_loops(lengths: list[float] | None, mirrored: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(few_shot, "CHUNK_VALUES", 500)
    generator = torch.Generator().manual_seed(1)
    sides = [[torch.randn(len(LABELS), e, generator=generator, dtype=torch.float64) for e in (4, 7)] for _ in range(2)]
    features = Features(["one", "two"], sides[0], lengths, [1.0, 0.3], sides[1] if mirrored else None)
    episodes = draw_episodes(Task(3, 2, 2), LABELS, NAMES, 30, seed=5)
    alone, first, joint = features.accuracies(episodes)
    for layer in (0, 1):
        assert alone[layer].tolist() == pytest.approx(looped(features, episodes, [layer], [1, 1]))
        assert first[layer].tolist() == pytest.approx(looped(features, episodes, list(range(layer + 1)), [1, 1]))
    assert joint.tolist() == pytest.approx(looped(features, episodes, [0, 1], [1, 0.3]))
    assert len(set(joint.tolist())) > 1


def test_the_interval_is_over_episodes_and_networks() -> None:
    accuracies = [[0.9, 0.8, 1.0, 0.7], [0.6, 0.9, 0.9, 0.8], [1.0, 0.9, 0.7, 0.8]]
    means, variances = [statistics.mean(one) for one in accuracies], [statistics.variance(one) for one in accuracies]
    mean, (low, high) = mean_interval(means[:1], variances[:1], [4])
    assert (mean, high - mean) == pytest.approx((means[0], 1.959964 * math.sqrt(variances[0] / 4)))
    assert mean - low == pytest.approx(high - mean)
    mean, (low, high) = mean_interval(means, variances, [4, 4, 4])
    assert mean == pytest.approx(statistics.mean(means))
    within = sum(variance / 4 for variance in variances) / 9
    assert within > statistics.variance(means) / 3, "networks that differ less than the episodes explain"
    assert high - mean == pytest.approx(1.959964 * math.sqrt(within))
    mean, (low, high) = mean_interval([0.5, 0.7, 0.9], [0.001] * 3, [1000] * 3)
    assert (mean, high - mean) == pytest.approx((0.7, 1.959964 * math.sqrt(statistics.variance([0.5, 0.7, 0.9]) / 3)))


def trained(folder: Path, method: str, data: DataSet, **recipe: Any) -> Run:
    table = {
        "method": method,
        "network": {"widths": [32, 24], "embedding": 16},
        "training": {"epochs": 1, "batch_size": 64},
        **recipe,
    }
    return train(recipe_from(table), folder, device=CPU, progress=StoppableProgress(), data=data)


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory, digits: DataSet) -> Path:
    """A run on the digits 0 to 5."""
    folder = tmp_path_factory.mktemp("few-shot") / "run"
    return trained(folder, "faust-representative", digits.only(list("012345"))).folder


def write_folders(folder: Path, digits: DataSet, names: str, images: int) -> Path:
    """Write some images of each of these digits as a folder of class folders."""
    for name in names:
        (folder / name).mkdir(parents=True)
        own = digits.train.all_pixels[digits.train.labels == int(name)][:images, 0]
        for number, pixels in enumerate(own.numpy()):
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("method", "recipe"),
    [
        ("faust-representative", {"options": {"representatives": 3}}),
        ("faust-prototype", {}),
        ("faust-prototype", {"prediction": {"weights": [0.2, 1.0]}}),
        ("faust-representative", {"prediction": {"mirror": True}, "options": {"scale": 0.5}}),
        ("faust-tuplet", {"network": {"widths": [24], "length": "unit"}}),
    ],
    ids=["representatives", "prototype", "weights", "mirror", "tuplet"],
)
def test_an_episode_is_predicted_as_by_added_classes(
    method: str, recipe: dict[str, Any], digits: DataSet, tmp_path: Path
) -> None:
    model = trained(tmp_path / "run", method, digits.only(list("012345")), **recipe).model(CPU)
    assert isinstance(model.method, Faust)
    new = digits.only(list("6789"))
    images = all_images(new)
    features = model_features(model, images)
    episodes = draw_episodes(Task(4, 3, 6), images.labels, new.class_names, 3, seed=0)
    _, _, joint = features.accuracies(episodes)
    for support, queries, accuracy in zip(episodes.support, episodes.queries, joint.tolist(), strict=True):
        larger = model.add_classes({f"new {n}": images.pixels[own] for n, own in enumerate(support)})
        scores = larger.method.joined(larger.scores(images.pixels[queries.flatten()]))[:, -4:]
        assert episode_accuracies(scores.unsqueeze(0)).item() == pytest.approx(accuracy)


def test_other_methods_compare_the_last_layer_by_cosine(digits: DataSet, tmp_path: Path) -> None:
    model = trained(tmp_path / "run", "backprop", digits.only(list("012345"))).model(CPU)
    images = all_images(digits)
    last = model.method.embed(model.source(images).plain(torch.arange(len(images))), [2])
    features = model_features(model, images)
    assert features.names == ["layer 2"]
    torch.testing.assert_close(features.embeddings[0], last / last.norm(dim=1, keepdim=True))
    raw = model_features(model, images, [1, 2], unit=False)
    assert (raw.names, raw.lengths) == (["layer 1", "layer 2"], None)
    torch.testing.assert_close(raw.embeddings[1], last)
    with pytest.raises(FaustnetError, match="layers must be one or more different numbers from 1 to 2"):
        model_features(model, images, [3])


def test_the_command_measures_a_folder(digits_run: Path, digits: DataSet, tmp_path: Path, faustnet: Command) -> None:
    folder = write_folders(tmp_path / "new", digits, "6789", 12)
    options = ("--ways", "2,4", "--shots", "1,3", "--episodes", "30", "--device", "cpu")
    answer = faustnet("few-shot", digits_run, "--data", folder, *options, "--json")
    found = json.loads(answer.out)
    assert [(one["ways"], one["shots"], one["method"]) for one in found] == [
        (ways, shots, method) for ways in (2, 4) for shots in (1, 3) for method in ("faust-representative", "pixels")
    ]
    for one in found:
        assert one["interval"][0] <= one["mean"] <= one["interval"][1]
        assert (one["episodes"], one["protocol"], one["dataset"], one["queries"]) == (30, "random", "new", 5)
        assert one["mean"] > 1 / one["ways"]
        assert len(one["layer_accuracy"]) == len(one["layers"]) == (1 if one["method"] == "pixels" else 2)
    model, data = Run.open(digits_run).model(CPU), load_data(str(folder))
    images = all_images(data)
    task = measure_task(model_features(model, images), Task(2, 1), images.labels, data.class_names, 30, 0)
    assert found[0] == {"run": str(digits_run), "dataset": "new", "seed": 0, "method": "faust-representative",
                        **with_interval(task)}  # fmt: skip
    table = faustnet("few-shot", digits_run, "--dataset", folder, *options)
    assert f"{100 * found[0]['mean']:.2f}" in table.out
    assert "4-way 3-shot" in table.out
    one_layer = json.loads(faustnet("few-shot", digits_run, "--data", folder, *options, "--layers", "2", "--json").out)
    assert one_layer[0]["mean"] == pytest.approx(found[0]["layer_accuracy"][1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ways", "5"), "5-way 1-shot with 5 queries needs at least 5 classes with 6 images or more, got 4"),
        (("--ways", "4", "--shots", "9"), "needs at least 4 classes with 14 images or more, got 0"),
        (("--ways", "4", "--protocol", "words"), "protocol must be random or alphabet, got 'words'."),
        (("--ways", "4", "--protocol", "alphabet"), "protocol must be random for classes without alphabets"),
        (("--ways", "four"), "--ways must be whole numbers separated by commas, got 'four'."),
        (("--ways", "4", "--episodes", "0"), "episodes must be at least 2, for an interval, got 0."),
        (("--ways", "4", "--layers", "5"), "layers must be one or more different numbers from 1 to 2"),
    ],
    ids=["classes", "images", "protocol", "alphabets", "ways", "episodes", "layers"],
)
def test_the_command_says_what_is_wrong(
    options: tuple[str, ...], said: str, digits_run: Path, digits: DataSet, tmp_path: Path, faustnet: Command
) -> None:
    folder = write_folders(tmp_path / "new", digits, "6789", 12)
    answer = faustnet("few-shot", digits_run, "--data", folder, *options, "--device", "cpu")
    assert answer.code == 2
    assert said in answer.sentence


def test_a_folder_without_classes_or_of_nothing(digits_run: Path, tmp_path: Path, faustnet: Command) -> None:
    (tmp_path / "empty").mkdir()
    answer = faustnet("few-shot", digits_run, "--data", tmp_path / "empty")
    assert "must contain a folder of images for each of at least two classes, got 0." in answer.sentence
    assert "There is no data set or file" in faustnet("few-shot", digits_run, "--data", tmp_path / "none").sentence


def result(method: str, seed: int, mean: float, episodes: int = 100) -> dict[str, Any]:
    def tasks(accuracy: float) -> list[dict[str, Any]]:
        return [
            {
                "protocol": task.protocol, "ways": task.ways, "shots": task.shots, "queries": task.queries,
                "episodes": episodes, "mean": accuracy, "variance": 0.01, "layers": ["layer 1", "layer 2"],
                "layer_accuracy": [accuracy - 0.1, accuracy], "first_layers_accuracy": [accuracy - 0.1, accuracy],
            }
            for task in reproduced.TASKS
        ]  # fmt: skip

    return {"method": method, "seed": seed, "episodes": episodes, "tasks": tasks(mean), "pixels": tasks(0.3)}


def test_rows_pool_the_seeds() -> None:
    results = [result("backprop", 0, 0.8), result("faust-prototype", 0, 0.9), result("faust-prototype", 1, 0.92)]
    cells = summary(results)
    assert [(cell["ways"], cell["shots"], cell["protocol"], cell["method"]) for cell in cells] == [
        (ways, shots, protocol, method)
        for ways, shots, protocol in ((5, 1, "random"), (5, 5, "random"), (20, 1, "random"), (20, 5, "random"),
                                      (20, 1, "alphabet"))
        for method in ("faust-prototype", "backprop", "pixels")
    ]  # fmt: skip
    first, twin, pixels = cells[:3]
    assert {"dataset", "protocol", "ways", "shots", "method", "mean", "interval", "episodes"} <= set(first)
    assert (first["dataset"], first["mean"], first["episodes"], first["seeds"], first["std"]) == (
        "omniglot", 91.0, 200, 2, 1.414
    )  # fmt: skip
    assert first["interval"] == pytest.approx([91 - 1.96, 91 + 1.96], abs=0.01)
    assert first["layer_accuracy"] == [81.0, 91.0]
    assert (twin["seeds"], pixels["seeds"], pixels["episodes"], pixels["mean"]) == (1, 2, 200, 30.0)
    assert rows(cells)[0][2:4] == ["91.00 ± 1.96", "+11.00"]
    assert rows(cells)[2][1] == "raw pixels"
    close = summary([result("backprop", 0, 0.8), result("faust-prototype", 0, 0.81)])
    assert rows(close)[0][3] == "+1.00 ○", "the intervals overlap"
    assert interval_text(close[0]) == "81.00 ± 1.96"


def small(part: Part, characters: int, **options: bool) -> Callable[..., DataSet]:
    return partial(omniglot, part=Part(part.folder, part.md5, characters), **options)


@pytest.fixture
def small_omniglot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with four background and two evaluation alphabets of 20 characters."""
    background = dict.fromkeys(["Greek", "Latin", "Hebrew", "Korean"], 20)
    evaluation = {"Angelic": 20, "Keble": 20}
    write_omniglot(tmp_path / "data", {"images_background": background, "images_evaluation": evaluation})
    for name, loader in (
        ("omniglot", small(BACKGROUND, 80)),
        ("omniglot-rotated", small(BACKGROUND, 80, rotations=True)),
        ("omniglot-evaluation", small(EVALUATION, 40)),
    ):
        monkeypatch.setitem(IMAGE_SETS, name, (loader, ""))
    return tmp_path / "data"


TINY = {"dataset": "omniglot", "network": {"widths": [24, 16], "embedding": 16}, "training": {"epochs": 1}}


def test_reproduce_writes_a_row_for_every_task_and_method(
    small_omniglot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faustnet: Command
) -> None:
    monkeypatch.setattr(reproduced, "shipped_recipe", lambda name: {**TINY, "method": name.split("/")[-1]})
    monkeypatch.setattr(reproduced, "choice_of_recipe", lambda name, family: {"trials": 1})
    monkeypatch.setattr(
        jobs, "shipped_recipes", lambda: [f"few-shot/omniglot/{name}" for name in ("faust-prototype", "backprop")]
    )
    words = ("reproduce", "few-shot", "--methods", "faust-prototype,backprop", "--episodes", "20", "--seeds", "2")
    other = faustnet("reproduce", "few-shot", "--methods", "faust-representative", "--out", tmp_path / "out")
    assert other.code == 2
    assert "This version has no recipe 'few-shot/omniglot/faust-representative'" in other.sentence
    answer = faustnet(*words, "--out", tmp_path / "out", "--data-dir", small_omniglot, "--device", "cpu")
    assert answer.code == 0, answer.err
    cells = json.loads((tmp_path / "out/few-shot.json").read_text())
    assert len(cells) == 15
    assert {(cell["episodes"], cell["seeds"]) for cell in cells} == {(40, 2)}
    assert {cell["method"] for cell in cells} == {"faust-prototype", "backprop", "pixels"}
    assert "20-way 1-shot within an alphabet" in (tmp_path / "out/few-shot.md").read_text()
    stored = json.loads((tmp_path / "out/few-shot/omniglot-backprop-20-1.json").read_text())
    assert stored["environment"]["torch"] == torch.__version__
    assert stored["seed"] == 1
    monkeypatch.setattr(reproduced.FewShotJob, "measure", lambda *arguments: pytest.fail("it is trained already"))
    assert faustnet(*words, "--out", tmp_path / "out", "--data-dir", small_omniglot, "--device", "cpu").code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--methods", "forward-forward"), "There is no method of the comparison 'forward-forward'"),
        (("--methods", ","), "--methods must be one or more of faust-representative, faust-prototype, backprop, got none."),
        (("--episodes", "1"), "--episodes must be at least 2, for an interval, got 1."),
        (("--seeds", "0"), "--seeds must be from 1 to 1000, got 0."),
    ],
)
def test_reproduce_says_what_is_wrong(options: tuple[str, ...], said: str, tmp_path: Path, faustnet: Command) -> None:
    answer = faustnet("reproduce", "few-shot", *options, "--out", tmp_path)
    assert answer.code == 2
    assert said in answer.sentence


def test_settings_are_chosen_without_the_evaluation_alphabets(
    small_omniglot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAUSTNET_DATA", str(small_omniglot))
    asked, read = [], cached_data.__wrapped__

    def recorded(name: str, data_dir: Path | None) -> DataSet:
        asked.append(name)
        return read(name, data_dir)

    monkeypatch.setattr(study, "cached_data", recorded)
    monkeypatch.setattr(study, "EPISODES", 10)
    small_network = {"network.widths": [24, 16], "network.embedding": 16, "network.length": "unit"}
    others = {"dataset": "omniglot-rotated", "optimiser.learning_rate": 0.002, "training.batch_size": 64}
    monkeypatch.setattr(study, "BASE", {**small_network, **others})
    file, recipes = tmp_path / "study.json", tmp_path / "recipes"
    monkeypatch.setattr(study, "RECIPES", recipes)
    monkeypatch.setattr(study, "results_of", here)
    for words in (("draw", "--trials", "2", "--epochs", "1"), ("run", "--device", "cpu"), ("show",), ("write",)):
        monkeypatch.setattr(sys, "argv", ["few_shot.py", words[0], str(file), *words[1:]])
        study.main()
    trials = study.read(file)
    assert [(trial["study"], trial["number"]) for trial in trials] == [
        (method, number) for method in reproduced.METHODS for number in (0, 1)
    ]
    by_method = [[trial["changes"] for trial in trials if trial["study"] == method] for method in reproduced.METHODS]
    assert by_method[0] == by_method[1] == by_method[2], "every method has the same draws"
    assert by_method[0][0] == {}, "the first trial has the base settings"
    assert set(asked) == {"omniglot", "omniglot-rotated"}
    assert all(0 < trial["validation_accuracy"] < 1 for trial in trials)
    assert [len(trial["readouts"]) for trial in trials] == [3, 3, 3, 3, 6, 6]
    assert trials[0]["validation_accuracy"] == pytest.approx(max(one["accuracy"] for one in trials[0]["readouts"]), abs=1e-4)
    choices = json.loads((recipes / "few-shot/choices.json").read_text())
    assert {choice["trials"] for choice in choices.values()} == {2}
    assert set(choices["omniglot/backprop"]["readout"]) == {"layers", "unit"}
    for method in reproduced.METHODS:
        assert (recipes / f"few-shot/omniglot/{method}.toml").read_text().startswith("# faustnet train --recipe few-shot/")


def test_variations_of_the_best_trials_are_not_chosen(tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    study.draw(file, 2, 8, list(reproduced.METHODS))
    trials = study.read(file)
    for trial in trials:
        trial["validation_accuracy"] = 0.8 + 0.1 * trial["number"]
    study.save(file, trials)
    study.vary(file)
    varied = study.read(file)[6:]
    assert [(trial["study"], trial["number"], trial["variation"], trial["epochs"]) for trial in varied[:2]] == [
        ("faust-representative", 2, "40 epochs", 40), ("faust-representative", 3, "40 epochs, 4 layers", 40)
    ]  # fmt: skip
    assert varied[0]["changes"] == trials[1]["changes"]
    assert study.trial_recipe(varied[1]).network.widths == (64, 128, 256, 512)
    best = [{**trial, "validation_accuracy": 0.99} for trial in varied]
    found = {method: (trial["number"], count) for method, (trial, count) in study.chosen([*trials, *best]).items()}
    assert found == dict.fromkeys(reproduced.METHODS, (1, 2))
    assert "(40 epochs) " in study.line(varied[0])
    with pytest.raises(FaustnetError, match="has variations already"):
        study.vary(file)


def here(function: Any, calls: Any, slots: Any, jobs: int, seconds: float) -> Any:
    """Call a function in this process, where the data are patched."""
    return enumerate(function(*call) for call in calls)


def test_the_validation_alphabets_are_kept_apart(small_omniglot: Path) -> None:
    data = load_data("omniglot-rotated", small_omniglot)
    kept, held_out = study.split(data)
    assert {name.split("/")[0] for name in kept.class_names} == {"Greek", "Korean"}
    assert {name.split("/")[0] for name in held_out.class_names} == {"Latin", "Hebrew"}
    assert len(kept.class_names) + len(held_out.class_names) == len(data.class_names) == 320


def test_the_validation_alphabets_are_background_alphabets(large_data: Path) -> None:
    if not (large_data / "omniglot-py").exists():
        pytest.skip("FAUSTNET_DATA has no Omniglot")
    kept, held_out = study.split(load_data("omniglot", large_data))
    assert len({name.split("/")[0] for name in held_out.class_names}) == len(study.VALIDATION) == 6
    assert len(held_out.class_names) == 187
    assert len(kept.class_names) == 777


def test_pixels_are_compared_as_they_are(digits: DataSet) -> None:
    features = pixel_features(digits.test)
    assert np.array_equal(features.embeddings[0].numpy(), digits.test.all_pixels.flatten(1).float().numpy())
