"""The command line, through its real entry point, on real data."""

import csv
import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from conftest import SMALL, Answer, fitting
from faustnet.bench import PARTS as BENCH_PARTS
from faustnet.cli import app, defaults, predictions
from faustnet.data import DATASETS, DataSet
from faustnet.data.image_folder import COMMON_SIZE, KEPT_SIZE
from faustnet.errors import OUT_OF_MEMORY
from faustnet.methods import METHODS, Faust
from faustnet.methods.ffcm import FFCM
from faustnet.methods.goodness import LabelMethod
from faustnet.runs.model import Model
from faustnet.runs.recipes import LARGEST_IMAGE, Recipe, dotted, kinds_of_recipes
from faustnet.version import VERSION
from processes import COMMAND, Program

Command = Callable[..., Answer]
PLAIN = ["--widths", "64,48", "--batch-size", "64", "--epochs", "6", "--device", "cpu", "--learning-rate", "0.005"]
QUICK = [*PLAIN, "--embedding", "32"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "faust"
    process = Program(COMMAND, "train", *QUICK, "--out", folder)
    _, said = process.communicate()
    assert process.returncode == 0, said
    return folder


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_in_one_command(name: str, faustnet: Command, tmp_path: Path) -> None:
    network = fitting(name, SMALL)
    other = ["--set", f"network.kind={network.kind}", "--set", f"network.widths={list(network.widths)}"]
    quick = QUICK if issubclass(METHODS[name], Faust | FFCM) else PLAIN
    answer = faustnet(
        "train", "--dataset", "digits", "--method", name, *quick, *other, "--seed", "1", "--out", tmp_path / "run", "--json"
    )
    assert answer.code == 0
    printed = json.loads(answer.out)
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["test_accuracy"] == printed["test_accuracy"] > 0.5
    assert metrics["forward_passes"] == (10 if issubclass(METHODS[name], LabelMethod) else 1)
    assert len(metrics["layer_accuracy"]) == (1 if name in ("backprop", "ffcm") else 2)


def test_progress_has_a_line_for_each_epoch_with_every_layer(faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet("train", *QUICK, "--out", tmp_path / "run")
    lines = answer.err.splitlines()
    assert lines[0].startswith("faust-representative on digits: 1,437 training images of 1×8×8, 10 classes")
    assert lines[1].startswith("dense layers 64-48, ")
    assert "22 batches of 64 per epoch" in lines[1]
    epochs = [line for line in lines if line.strip()[:1].isdigit()]
    assert [line.split()[0] for line in epochs] == ["1/6", "2/6", "3/6", "4/6", "5/6", "6/6"]
    assert answer.out.startswith("test accuracy ")


def test_a_recipe_file_and_options_beside_it(faustnet: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('method = "faust-tuplet"\nseed = 3\n[training]\nepochs = 2\nbatch_size = 50\n')
    answer = faustnet(
        "train", "--recipe", tmp_path / "mine.toml", "--widths", "20", "--epochs", "1", "--set", "options.scale=0.5",
        "--out", tmp_path / "run", "--device", "cpu",
    )  # fmt: skip
    assert answer.code == 0
    written = (tmp_path / "run/recipe.toml").read_text()
    for line in ('method = "faust-tuplet"', "seed = 3", "epochs = 1", "batch_size = 50", "widths = [20]", "scale = 0.5"):
        assert line in written.splitlines()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "backprop", "--embedding", "8"], "network.embedding has no effect on backprop"),
        (["--set", "data.tokens=40"], "data.tokens is for texts, and has no effect on digits, got 40: leave it out."),
        (["--set", "data.image_size=16"], "data.image_size is for folders of images, and has no effect on digits, got 16"),
        (["--parallel", "layers"], "--parallel layers has no effect on one process: start several with torchrun"),
    ],
)
def test_an_option_without_effect_is_refused_before_the_run(
    words: list[str], said: str, faustnet: Command, tmp_path: Path
) -> None:
    assert said in faustnet("train", *PLAIN, *words, "--out", tmp_path / "run").sentence
    assert not (tmp_path / "run").exists()


def test_training_holds_out_a_validation_split_and_reports_on_the_test_set(faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet("train", *QUICK, "--set", "training.validation=200", "--out", tmp_path / "run")
    assert "1,237 training images" in answer.err
    assert "validation accuracy" in answer.err
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    history = json.loads((tmp_path / "run/history.json").read_text())
    assert metrics["validation_accuracy"] == history[-1]["accuracy"]
    assert sum(map(sum, metrics["confusion"])) == 360


def test_ways_to_join_votes_are_compared_on_the_validation_images(faustnet: Command, run: Path, tmp_path: Path) -> None:
    words = [*QUICK, "--set", "training.validation=200", "--set", "prediction.mirror=true"]
    assert faustnet("train", *words, "--set", "prediction.weights=[0,1]", "--out", tmp_path / "run").code == 0
    found = json.loads(faustnet("votes", tmp_path / "run", "--json", "--device", "cpu").out)
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    history = json.loads((tmp_path / "run/history.json").read_text())
    assert (found["images"], found["voters"]) == (200, ["layer 1", "layer 2"])
    accuracy = {way["name"]: way["accuracy"] for way in found["weightings"]}
    assert accuracy["last layer"] == history[-1]["accuracy"] == metrics["validation_accuracy"]
    assert accuracy["all layers"] == history[-1]["first_layers_accuracy"][-1]
    assert (metrics["test_accuracy"], metrics["forward_passes"]) == (metrics["layer_accuracy"][1], 2)
    assert "The accuracy above weights the layers 0, 1" in faustnet("evaluate", tmp_path / "run", "--device", "cpu").out
    shown = faustnet("votes", tmp_path / "run", "--device", "cpu").out
    assert "evaluated on the images they were fitted to" in shown
    line = shown.splitlines()[-1]
    assert json.loads(line.partition("weights=")[2]) == found["weightings"][-1]["weights"]
    assert f"{accuracy['fitted']:.2%}" in shown
    assert "has no validation images: train with --set training.validation" in faustnet("votes", run).sentence
    words = ["--method", "backprop", "--set", "training.validation=200", "--out", tmp_path / "backprop"]
    assert faustnet("train", *PLAIN, *words).code == 0
    assert "predicts from one layer only" in faustnet("votes", tmp_path / "backprop").sentence


def test_evaluate_finds_the_accuracy_that_training_reported(faustnet: Command, run: Path) -> None:
    answer = faustnet("evaluate", run, "--json", "--device", "cpu")
    (result,) = json.loads(answer.out)
    metrics = json.loads((run / "metrics.json").read_text())
    assert result["accuracy"] == metrics["test_accuracy"]
    assert result["layer_accuracy"] == metrics["layer_accuracy"]
    (first,) = json.loads(faustnet("evaluate", run, "--layers", "1", "--json", "--device", "cpu").out)
    assert first["accuracy"] == metrics["layer_accuracy"][0]
    assert (first["layers"], result["layers"]) == ([1], None)
    assert "test accuracy of layers 1 together" in faustnet("evaluate", run, "--layers", "1").out


def test_evaluate_prints_tables_for_one_run_and_for_several(faustnet: Command, run: Path) -> None:
    one = faustnet("evaluate", run).out
    assert "layer 2" in one
    assert "1 forward pass and" in one
    assert one.count("\n") > 15, "the confusion matrix is there"
    several = faustnet("evaluate", run, run).out
    assert several.count("faust-representative") == 2


def test_predict_names_the_class_its_score_and_each_layers_vote(
    faustnet: Command, run: Path, digits: DataSet, tmp_path: Path
) -> None:
    paths = []
    for number in range(30):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(digits.test.pixels[number, 0].numpy()).resize((80, 80)).convert("RGB").save(paths[-1])
    found = json.loads(faustnet("predict", run, *paths, "--json", "--device", "cpu").out)
    right = [entry["class_name"] == str(int(label)) for entry, label in zip(found, digits.test.labels, strict=False)]
    assert sum(right) >= 24
    assert all(len(entry["votes"]) == 2 and entry["score"] < 0 for entry in found)
    table = faustnet("predict", run, paths[0], "--device", "cpu").out
    assert found[0]["class_name"] in table
    assert "layer 2" in table


def digit_files(digits: DataSet, folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True)
    paths = [folder / f"{number:03}.png" for number in range(count)]
    for path, pixels in zip(paths, digits.test.pixels, strict=False):
        Image.fromarray(pixels[0].numpy()).save(path)
    return paths


def test_own_data_are_given_by_either_name(faustnet: Command, digits: DataSet, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    for label in (0, 1):
        own = digits.test.take((digits.test.labels == label).nonzero()[:, 0])
        digit_files(replace(digits, test=own), folder / str(label), 10)
    for number, name in enumerate(("--dataset", "--data")):
        words = ("train", name, folder, "--epochs", 1, "--widths", "8", "--batch-size", 4, "--device", "cpu")
        assert faustnet(*words, "--out", tmp_path / f"run{number}").code == 0
    assert (tmp_path / "run0/model.safetensors").read_bytes() == (tmp_path / "run1/model.safetensors").read_bytes()


def test_predict_takes_files_and_folders_in_order_a_few_at_a_time(
    faustnet: Command, run: Path, digits: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = digit_files(digits, tmp_path / "many" / "deep", 10)
    (tmp_path / "many" / "notes.txt").write_text("not an image")
    words = ("predict", run, paths[7], tmp_path / "many", paths[2], "--json", "--device", "cpu")
    found = json.loads(faustnet(*words).out)
    assert [entry["file"] for entry in found] == [str(path) for path in (paths[7], *paths[:7], *paths[8:])]
    sizes, whole = [], Model.predict
    monkeypatch.setattr(predictions, "AT_ONCE", 4)
    monkeypatch.setattr(Model, "predict", lambda self, x, *how, **more: sizes.append(len(x)) or whole(self, x, *how, **more))
    again = json.loads(faustnet(*words).out)
    assert sizes == [4, 4, 2]
    assert [(entry["file"], entry["class_name"]) for entry in again] == [(e["file"], e["class_name"]) for e in found]


def test_predict_names_what_cannot_be_read_and_predicts_the_rest(
    faustnet: Command, run: Path, digits: DataSet, tmp_path: Path
) -> None:
    paths = digit_files(digits, tmp_path / "digits", 3)
    paths[1].write_bytes(b"")
    (tmp_path / "nothing").mkdir()
    given = (tmp_path / "digits", tmp_path / "gone.png", tmp_path / "nothing")
    answer = faustnet("predict", run, *given, "--json", "--device", "cpu")
    assert answer.code == 1
    assert [entry["file"] for entry in json.loads(answer.out)] == [str(paths[0]), str(paths[2])]
    assert [line.split(" ")[1] for line in answer.err.splitlines()] == [
        str(paths[1]),
        str(tmp_path / "gone.png"),
        str(tmp_path / "nothing"),
    ]
    assert "Traceback" not in answer.err
    assert faustnet("predict", run, paths[0], paths[2], "--device", "cpu").code == 0


def test_predict_prints_lines_for_a_spreadsheet(faustnet: Command, run: Path, digits: DataSet, tmp_path: Path) -> None:
    (path, *_) = digit_files(digits, tmp_path / 'a, "b"', 3)
    words = ("predict", run, tmp_path / 'a, "b"', "--device", "cpu")
    rows = list(csv.DictReader(io.StringIO(faustnet(*words, "--csv").out)))
    found = json.loads(faustnet(*words, "--json").out)
    assert list(rows[0]) == ["file", "class", "score", "layer 1", "layer 2"]
    assert rows[0]["file"] == str(path)
    assert [[row["class"], float(row["score"])] for row in rows] == [[p["class_name"], p["score"]] for p in found]
    assert [[row["layer 1"], row["layer 2"]] for row in rows] == [p["votes"] for p in found]
    early = list(csv.DictReader(io.StringIO(faustnet(*words, "--csv", "--exit-margin", "0").out)))
    assert [row["layers used"] for row in early] == ["1", "1", "1"]
    assert "--json and --csv exclude each other" in faustnet(*words, "--csv", "--json").sentence


def test_long_names_of_files_are_printed_whole(faustnet: Command, run: Path, digits: DataSet, tmp_path: Path) -> None:
    (path,) = digit_files(digits, tmp_path / ("x" * 230), 1)
    table = faustnet("predict", run, path, "--device", "cpu").out
    assert table.count("x") == str(path).count("x")


def test_a_prediction_may_stop_at_the_first_layer_that_is_sure(
    faustnet: Command, run: Path, digits: DataSet, tmp_path: Path
) -> None:
    lines = json.loads(faustnet("evaluate", run, "--early-exit", "--json", "--device", "cpu").out)[0]["early_exit"]
    assert lines[-1]["threshold"] is None
    shown = faustnet("evaluate", run, "--early-exit", "--device", "cpu").out
    assert f"{lines[3]['accuracy']:.2%}" in shown
    assert "never" in shown
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(digits.test.pixels[number, 0].numpy()).save(paths[-1])
    words = ("predict", run, *paths, "--device", "cpu")
    quick = json.loads(faustnet(*words, "--exit-margin", "0", "--json").out)
    assert [entry["layers"] for entry in quick] == [1, 1, 1]
    thorough = json.loads(faustnet(*words, "--exit-margin", "1e9", "--json").out)
    whole = json.loads(faustnet(*words, "--json").out)
    assert [entry["layers"] for entry in thorough] == [2, 2, 2]
    assert [entry["class_name"] for entry in thorough] == [entry["class_name"] for entry in whole]
    assert "layers used" in faustnet(*words, "--exit-margin", "0").out
    assert "threshold (--exit-margin) must be 0 or more, got nan" in faustnet(*words, "--exit-margin", "nan").sentence
    assert "layers and early exit exclude each other" in faustnet("evaluate", run, "--early-exit", "--layers", "1").sentence
    assert "exclude each other" in faustnet(*words, "--exit-margin", "0", "--layers", "1").sentence


def test_backprop_cannot_stop_early(faustnet: Command, tmp_path: Path) -> None:
    assert faustnet("train", "--method", "backprop", *PLAIN, "--out", tmp_path / "run").code == 0
    answer = faustnet("evaluate", tmp_path / "run", "--early-exit", "--device", "cpu")
    assert answer.code == 2
    assert "Early exit needs a FAUST model, got backprop" in answer.sentence


def test_own_images_and_arrays_are_trained_on(
    faustnet: Command, digits: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(400):
        folder = tmp_path / "own" / f"digit {int(digits.train.labels[number])}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.train.pixels[number, 0].numpy()).save(folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    answer = faustnet("train", "--dataset", "own", *QUICK, "--out", tmp_path / "a", "--json")
    assert json.loads(answer.out)["test_accuracy"] > 0.6
    assert json.loads(answer.out)["class_names"][3] == "digit 3"
    monkeypatch.chdir("/")
    again = json.loads(faustnet("evaluate", tmp_path / "a", "--json", "--device", "cpu").out)
    assert again[0]["accuracy"] == json.loads(answer.out)["test_accuracy"], "whatever folder it is asked from"
    train, test = digits.train, digits.test
    np.savez(
        tmp_path / "own.npz",
        x_train=train.pixels[:, 0].numpy(), y_train=train.labels.numpy(),
        x_test=test.pixels[:, 0].numpy(), y_test=test.labels.numpy(),
    )  # fmt: skip
    answer = faustnet("train", "--dataset", tmp_path / "own.npz", *QUICK, "--out", tmp_path / "b", "--json")
    assert json.loads(answer.out)["test_accuracy"] > 0.8


def test_own_images_of_all_kinds_are_trained_on_and_what_was_odd_is_told(
    faustnet: Command, digits: DataSet, tmp_path: Path
) -> None:
    """Names that do harm in a page or a table, sizes and modes that differ, files that are no images."""
    own = tmp_path / "own"
    names = {3: "<img src=x>", 4: "[bold]\nnew line", 7: "few"}
    counts = {3: 60, 4: 30, 7: 8}
    for label, name in names.items():
        (own / name).mkdir(parents=True)
        chosen = (digits.train.labels == label).nonzero()[: counts[label], 0].tolist()
        for place, number in enumerate(chosen):
            image = Image.fromarray(digits.train.pixels[number, 0].numpy()).resize((20 + place, 30))
            image.convert(("L", "RGB", "RGBA", "P")[place % 4]).save(own / name / f"{place}.png")
    (own / "few" / "broken.png").write_text("no image")
    words = ("train", "--dataset", own, *QUICK, "--batch-size", "16", "--set", "data.image_size=8")
    answer = faustnet(*words, "--out", tmp_path / "run")
    assert answer.code == 0
    assert f"skipped: {own / 'few' / 'broken.png'} is not a readable image" in answer.err
    assert "imbalanced classes: '<img src=x>' has" in answer.err
    assert "training images and 'few' " in answer.err
    assert "few training images: 'few' " in answer.err
    assert "uneven" not in faustnet(*words, "--set", "training.balance=true", "--out", tmp_path / "even").err
    found = json.loads(faustnet("predict", tmp_path / "run", own / "<img src=x>", "--json", "--device", "cpu").out)
    assert sum(entry["class_name"] == "<img src=x>" for entry in found) > 40
    strict = faustnet(*words, "--strict", "--out", tmp_path / "strict")
    assert strict.code == 2
    assert "broken.png is not a readable image" in strict.sentence
    assert not (tmp_path / "strict").exists()
    for name in names.values():  # other images of these classes, grey and of one size, are evaluated all the same
        for number in range(20):
            path = tmp_path / "other" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), number).save(path)
    (tmp_path / "other" / "few" / "notes.txt").touch()
    answer = faustnet("evaluate", tmp_path / "run", "--dataset", tmp_path / "other", "--device", "cpu")
    assert answer.code == 0
    assert answer.err == "skipped: 1 files whose suffix is not that of an image (.txt 1)\n"
    if importlib.util.find_spec("plotly"):
        assert faustnet("report", tmp_path / "run", "--images", "20", "--device", "cpu").code == 0
        assert "<img src=x>" not in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_methods_and_datasets_are_listed(faustnet: Command) -> None:
    listed = json.loads(faustnet("methods", "--json").out)
    assert [entry["name"] for entry in listed] == list(METHODS)
    assert {entry["name"]: entry["options"] for entry in listed}["faust-representative"]["representatives"] == 1
    assert "one-pass" in faustnet("methods", "forward-forward").out
    assert "did you mean backprop?" in faustnet("methods", "backprob").sentence
    assert {entry["name"] for entry in json.loads(faustnet("datasets", "--json").out)} == {
        "digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "cifar100-coarse", "omniglot", "omniglot-rotated",
        "omniglot-evaluation", "sst2", "trec",
    }  # fmt: skip
    assert "faust-tuplet" in faustnet("methods").out
    assert "fashion-mnist" in faustnet("datasets").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "faust-representativ"], "did you mean faust-representative?"),
        (["--dataset", "mnisd"], "did you mean mnist?"),
        (["--dataset", "no/such/folder"], "There is no data set or file"),
        (["--set", "training.epoch=3"], "did you mean training.epochs?"),
        (["--recipe", "no-such-recipe"], "There is no recipe"),
        (["--widths", "500,0"], "network.widths must be one or more numbers of at least 1"),
        (["--widths", "500,many"], "--widths must be whole numbers"),
        (["--batch-size", "2000"], "must be at most the number of training images, 1437, got 2000"),
        (
            ["--set", "training.validation=0.99"],
            "without those that training.validation=0.99 keeps apart, 14, got 256: try 7",
        ),
        (["--set", "options.representatives=500"], "options.representatives must be at most"),
        (["--set", "data.crop=8"], "data.crop must be less than 8"),
        (["--set", "prediction.weights=[0,1]"], "prediction.weights must have 3 weights for"),
        (["--device", "tpu"], "device must be auto or cpu or cuda or mps, got 'tpu'"),
        (["--learning-rate", "-1"], "must be positive"),
        (["--method", "backprop", "--schedule", "greedy"], "training.schedule must be sequential for backprop"),
        (["--set", "options.scale=1e38"], "The loss of layer 1 is no longer finite in epoch 1: try"),
        (["--resume"], "is not a run"),
        (["--widths", "4000000000,4000000000"], "not enough memory"),
        (["--embedding", "4000000000"], "not enough memory"),
        (["--set", "options.representatives=4000000000"], "not enough memory"),
        (["--dataset", "x" * 5000], "File name too long"),
        (["--set", "seed=" + "[" * 5000], "seed must be a whole number"),
    ],
)
def test_a_mistake_gets_one_sentence_and_a_code(words: list[str], said: str, faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet("train", *words, "--out", tmp_path / "run")
    assert answer.code == 2
    assert said in answer.sentence
    assert answer.sentence.startswith("faustnet: ")
    assert "Traceback" not in answer.err
    assert answer.out == ""
    assert not (tmp_path / "run").exists()


def test_mistakes_in_predicting_and_evaluating(faustnet: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not an image")
    assert "is not a readable image" in faustnet("predict", run, tmp_path / "text.png").sentence
    assert "nothing.png does not exist" in faustnet("predict", run, tmp_path / "nothing.png").sentence
    assert "layers must be one or more different numbers from 1 to 2" in faustnet("evaluate", run, "--layers", "3").sentence
    assert "is not a run" in faustnet("predict", tmp_path, tmp_path / "text.png").sentence
    np.savez(tmp_path / "x.npz", x_train=np.zeros((4, 9)), y_train=[0, 11] * 2, x_test=np.zeros((4, 9)), y_test=[0, 11] * 2)
    assert "must have only classes of the model" in faustnet("evaluate", run, "--dataset", tmp_path / "x.npz").sentence


def test_names_with_square_brackets_are_just_names(faustnet: Command, digits: DataSet, tmp_path: Path) -> None:
    names = np.array(["[/b]", "[bold]", ":smile:"])
    x, y = digits.train.pixels[:90, 0].numpy(), names[digits.train.labels[:90].numpy() % 3]
    np.savez(tmp_path / "[x].npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = ["train", "--dataset", tmp_path / "[x].npz", *QUICK, "--batch-size", "32", "--out", tmp_path / "run"]
    assert "on [x]: 90 training images" in faustnet(*words).err
    table = faustnet("evaluate", tmp_path / "run").out
    assert all(name in table for name in names)
    Image.fromarray(x[0]).save(tmp_path / "[red].png")
    assert "[red].png" in faustnet("predict", tmp_path / "run", tmp_path / "[red].png").out


def test_help_and_version_answer(faustnet: Command) -> None:
    assert "train" in faustnet("--help").out
    assert "--batch-size" in faustnet("train", "--help").out
    assert faustnet("--version").out == f"faustnet {VERSION}\n"


COMMANDS = [[]] + [[name] for name in typer.main.get_command(app).commands]
COMMANDS += [["reproduce", name] for name in typer.main.get_command(app).commands["reproduce"].commands]


def test_help_and_version_import_no_torch() -> None:
    """torch takes seconds to import, and numpy and scikit-learn a part of one."""
    program = """
import json, sys
from faustnet.__main__ import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["faustnet", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, words
    found = {"numpy", "sklearn", "torch"} & set(sys.modules)
    assert not found, f"faustnet {' '.join(words)} imports {found}"
"""
    asked = [["--version"], *([*words, "--help"] for words in COMMANDS)]
    answer = subprocess.run([sys.executable, "-c", program, json.dumps(asked)], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("Usage:") == len(COMMANDS) >= 22


def test_the_help_texts_show_the_defaults_of_the_library() -> None:
    recipe = dotted(Recipe())
    assert {key: recipe[key] for key in defaults.RECIPE} == defaults.RECIPE
    assert list(defaults.RECIPES) == kinds_of_recipes()
    assert list(defaults.DATASETS) == list(DATASETS)
    assert defaults.LARGEST_IMAGE == LARGEST_IMAGE
    assert (defaults.KEPT_SIZE, defaults.COMMON_SIZE) == (KEPT_SIZE, COMMON_SIZE)
    assert list(defaults.BENCH_PARTS) == list(BENCH_PARTS)


@pytest.mark.parametrize(
    "raised", [MemoryError(), torch.OutOfMemoryError("full"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_told_in_a_sentence(
    raised: Exception, faustnet: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("faustnet.runs.session.load_data", fail)
    answer = faustnet("train", "--dataset", "digits", "--out", tmp_path / "run")
    assert (answer.code, answer.sentence) == (2, f"faustnet: {OUT_OF_MEMORY}")


def test_a_report_of_runs_is_one_page(faustnet: Command, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="a report needs plotly")
    answer = faustnet("report", run, "--images", "50", "--out", tmp_path / "page.html")
    assert answer.code == 0, answer.err
    assert answer.out == f"written: {tmp_path / 'page.html'}\n"
    assert "faust-representative" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_report_that_cannot_be_made_is_a_sentence(faustnet: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    for words, said in (
        ([tmp_path / "nowhere", "--out", tmp_path / "page.html"], "is not a run"),
        ([run, "--out", tmp_path / "folder.html"], "could not be written"),
        ([run, "--out", tmp_path / "no" / "page.html"], "could not be written"),
        ([run, "--images", "0", "--out", tmp_path / "page.html"], "--images must be at least 1"),
        ([run, "--out", run / "model.safetensors"], "--out must end in .html"),
    ):
        answer = faustnet("report", *words)
        assert answer.code == 2
        assert said in answer.sentence
