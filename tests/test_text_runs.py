"""Runs on texts: training, prediction, report, export, and what is refused."""

import json
import pickle
import random
import runpy
import shutil
import string
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import faustnet as package
from conftest import Answer
from faustnet.data import Tokeniser, load_data
from faustnet.errors import FaustnetError
from faustnet.runs.folder import MODEL, TOKENISER, Run
from faustnet.runs.model import Model
from faustnet.runs.prediction import UNKNOWN
from faustnet.runs.recipes import DataSettings

Command = Callable[..., Answer]
WORDS = {"good": ("fine", "warm", "great", "funny"), "bad": ("dull", "cold", "poor", "boring")}
THINGS = ("film", "story", "play", "book", "song", "actor", "plot", "scene", "role", "show")
NETWORK = {"kind": "transformer", "widths": [16, 16], "heads": 2, "embedding": 8}
EXAMPLE = Path(__file__).parents[1] / "examples" / "classify_texts.py"


def write_texts(path: Path, count: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [(f"a {WORDS[label][i % 4]} {THINGS[i // 4 % 10]}", label) for i in range(count) for label in WORDS]
    path.write_text("\n".join(["text,label", *(f'"{text}",{label}' for text, label in rows)]))
    return path


def recipe(dataset: Path, **changes: Any) -> dict[str, Any]:
    return {
        "dataset": str(dataset),
        "network": NETWORK,
        "training": {"epochs": 12, "batch_size": 16, "validation": 0.2},
        "optimiser": {"learning_rate": 0.005},
        **changes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("films")
    write_texts(place / "train.csv", 40)
    write_texts(place / "test.csv", 10)
    return place


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return package.train(recipe(folder), tmp_path_factory.mktemp("runs") / "films", device="cpu")


@pytest.fixture(scope="module")
def model(run: Run) -> Model:
    return run.model()


def test_a_transformer_learns_texts_and_predicts_strings(run: Run, model: Model) -> None:
    assert run.metrics["test_accuracy"] > 0.9
    assert [found.class_name for found in model.predict(["A GREAT film", "a boring film"])] == ["good", "bad"]
    assert model.predict_early(["a great film"], 0.0)[0].layers == 1


def test_predict_prints_the_usual_columns_for_texts(faustnet: Command, run: Run) -> None:
    found = json.loads(faustnet("predict", run.folder, "--text", "a warm film", "--text", "a cold film", "--json").out)
    assert [entry["text"] for entry in found] == ["a warm film", "a cold film"]
    assert [entry["class_name"] for entry in found] == ["good", "bad"]
    assert all(len(entry["votes"]) == 2 for entry in found)
    table = faustnet("predict", run.folder, "--text", "a warm film", "--csv").out.splitlines()
    assert table[0] == "text,class,score,layer 1,layer 2"
    assert table[1].startswith("a warm film,good,")
    early = faustnet("predict", run.folder, "--text", "a warm film", "--csv", "--exit-margin", "0").out.splitlines()
    assert early == ["text,class,layers used", "a warm film,good,1"]


def test_the_model_file_alone_is_enough_to_predict(run: Run, model: Model, tmp_path: Path) -> None:
    shutil.copy(run.folder / MODEL, tmp_path / "alone.safetensors")
    alone = package.load(tmp_path / "alone.safetensors", device="cpu")
    assert alone.tokeniser == model.tokeniser
    assert torch.equal(alone.scores(["a fine film"]), model.scores(["a fine film"]))
    assert torch.equal(pickle.loads(pickle.dumps(model)).scores(["a fine film"]), model.scores(["a fine film"]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tokens": 16}, r"data\.tokens must be 32, as in the model to start from, got 16: leave it out"),
        (
            {"vocabulary": 300},
            r"data\.vocabulary must be at least \d+, the number of tokens in the model .*, got 300",
        ),
    ],
)
def test_a_training_from_a_model_of_texts_keeps_its_tokeniser(
    settings: dict[str, int], said: str, folder: Path, run: Run, tmp_path: Path
) -> None:
    further = recipe(folder, data=settings, start={"model": str(run.folder)})
    with pytest.raises(FaustnetError, match=said):
        package.train(further, tmp_path / "run", device="cpu")


def test_a_table_that_is_none_is_refused_in_a_sentence(folder: Path, run: Run, tmp_path: Path) -> None:
    with pytest.raises(FaustnetError, match="data"):
        package.train(recipe(folder, data=16, start={"model": str(run.folder)}), tmp_path / "run", device="cpu")


def test_a_training_on_other_texts_needs_no_settings_of_the_tokeniser(folder: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices(string.ascii_lowercase, k=7)) for _ in range(3000)]
    many = tmp_path / "many.csv"
    rows = [f"{' '.join(draw.choices(words, k=20))},{label}" for _ in range(400) for label in WORDS]
    many.write_text("\n".join(["text,label", *rows]))
    once = {"epochs": 1, "batch_size": 32}
    first = package.train(recipe(many, data={"vocabulary": 20_000}, training=once), tmp_path / "first", device="cpu")
    further = recipe(folder, start={"model": str(first.folder)}, training=once)
    second = package.train(further, tmp_path / "second", device="cpu").model()
    assert second.tokeniser == first.model().tokeniser is not None
    assert second.vocabulary > DataSettings().vocabulary + 1
    assert second.read_data().train.shape == second.shape
    again = tomllib.loads((tmp_path / "second" / "recipe.toml").read_text())
    assert (again["data"]["tokens"], again["data"]["vocabulary"]) == (second.shape[0], second.vocabulary - 1)
    package.train(again, tmp_path / "again", device="cpu")
    again["data"] |= {"tokens": 0, "vocabulary": DataSettings().vocabulary}  # as earlier versions wrote it
    package.train(again, tmp_path / "earlier", device="cpu")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--text", ""], "Text 1 is empty"),
        (["--text", "a film", "--text", "film " * 50], "at most 32 tokens for this model, but text 2 has 50"),
        (["photo.png"], "This model was trained on texts, not on images"),
        (["photo.png", "--text", "a film"], "Give either image files or texts with --text, got both"),
        ([], "Give either image files or texts with --text, got neither"),
    ],
)
def test_what_a_model_of_texts_cannot_read_is_refused(faustnet: Command, run: Run, words: list[str], message: str) -> None:
    for command in (["predict", run.folder], ["add-class", run.folder, "question"]):
        answer = faustnet(*command, *words)
        assert answer.code == 2
        assert message in answer.sentence


def test_a_model_of_images_refuses_texts(faustnet: Command, tmp_path: Path) -> None:
    package.train({"training": {"epochs": 1}, "network": {"widths": [8]}}, tmp_path / "digits", device="cpu")
    for words in (["predict", tmp_path / "digits"], ["add-class", tmp_path / "digits", "four"]):
        assert "was trained on images, not on texts" in faustnet(*words, "--text", "four").sentence


def test_python_callers_get_sentences_too(model: Model) -> None:
    with pytest.raises(FaustnetError, match="got a single string: put it in a list"):
        model.predict("a film")
    with pytest.raises(FaustnetError, match="Text 1 must be a string, got int"):
        model.predict([3])  # type: ignore[list-item]
    with pytest.raises(FaustnetError, match="tokens must have ids from 0 to"):
        model.predict(torch.full((1, 32), 9000))
    with pytest.raises(FaustnetError, match="tokens must have a token in every text"):
        model.predict(torch.zeros(1, 32, dtype=torch.long))
    with pytest.raises(FaustnetError, match="tokens must be whole numbers"):
        model.predict(torch.ones(1, 32))
    with pytest.raises(FaustnetError, match="Texts must have 32 token ids"):
        model.predict(torch.ones(1, 31, dtype=torch.long))


def test_other_texts_are_encoded_by_the_tokeniser_of_the_model(run: Run, model: Model, tmp_path: Path) -> None:
    write_texts(tmp_path / "others" / "train.csv", 3)
    path = write_texts(tmp_path / "others" / "test.csv", 5)
    data = model.read_data(str(path.parent))
    assert data.tokeniser == model.tokeniser != load_data(str(path.parent)).tokeniser
    assert model.measure(data.test)["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": {}}, "network.kind must be transformer for texts, got 'dense'"),
        ({"network": {"kind": "vgg"}}, "network.kind must be transformer for texts, got 'vgg'"),
        ({"data": {"flip": True}}, "data.flip.* are for images: leave them out"),
        ({"data": {"crop": 1}}, "data.crop.* are for images: leave them out"),
        ({"data": {"cutout": 1}}, "data.cutout.* are for images: leave them out"),
        ({"data": {"rotation": 5.0}}, "data.rotation.* are for images: leave them out"),
        ({"data": {"zoom": 0.1}}, "data.zoom are for images: leave them out"),
        ({"prediction": {"mirror": True}}, r"prediction.mirror is for images.* have shape \(32,\): leave it out"),
        ({"options": {"mixup": 0.2}}, "options.mixup must be 0 for token ids .*, got 0.2: leave it out"),
        (
            {"method": "backprop", "network": NETWORK | {"embedding": 256}, "options": {"mixup": 0.2}},
            "options.mixup must be 0 for token ids",
        ),
        ({"method": "faust-prototype", "options": {"mixup": 0.2}}, "options.mixup must be 0 for token ids"),
        ({"options": {"choice": "k-means"}}, "options.choice must be random for token ids .*, got 'k-means'"),
        ({"network": NETWORK | {"input_dropout": 0.1}}, r"\(network.input_dropout\) must be 0 for token ids .*, got 0.1"),
        ({"data": {"tokens": -1}}, "data.tokens must be from 1 to 4096, or 0"),
        ({"data": {"vocabulary": 100}}, "data.vocabulary must be from 256 to"),
        ({"data": {"text_column": "words"}}, "data.text_column must be a column of"),
    ],
)
def test_settings_that_do_not_suit_texts_are_refused(
    folder: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FaustnetError, match=message):
        package.train(recipe(folder, **changes), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_token_file_trains_to_the_same_model(faustnet: Command, folder: Path, run: Run, tmp_path: Path) -> None:
    answer = faustnet("tokens", folder, tmp_path / "films.npz")
    assert "80 training texts and 20 test texts of 32 tokens, 2 classes" in answer.out
    other = package.train(recipe(tmp_path / "films.npz"), tmp_path / "run", device="cpu").model()
    expected = run.model().method.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in other.method.state_dict().items())
    assert "must end in .npz" in faustnet("tokens", folder, tmp_path / "films.tsv").sentence
    assert "has texts: use 'faustnet tokens'" in faustnet("shards", folder, tmp_path / "shards").sentence


def test_a_run_is_not_continued_with_other_tokens(folder: Path, run: Run, tmp_path: Path) -> None:
    texts = shutil.copytree(folder, tmp_path / "texts")
    started = package.train(recipe(texts), tmp_path / "run", device="cpu")
    for name in ("metrics.json", MODEL):  # as if it had been interrupted before the first checkpoint
        (started.folder / name).unlink()
    assert Tokeniser.from_json((started.folder / TOKENISER).read_text()) == run.model().tokeniser
    (texts / "train.csv").write_text("text,label\n" + "a new film,good\nan old film,bad\n" * 10)
    with pytest.raises(FaustnetError, match="have other tokens than when"):
        package.train(recipe(texts), tmp_path / "run", device="cpu", resume=True)


def test_classes_are_added_from_texts_and_others_are_rejected(
    faustnet: Command, model: Model, run: Run, tmp_path: Path
) -> None:
    questions = ["is it on tonight?", "is it far?", "is it long?"]
    larger = model.add_class("question", questions)
    assert larger.predict(["is it far?"])[0].class_name == "question"
    assert larger.predict(["a great film"])[0].class_name == "good"
    words = [word for text in questions for word in ("--text", text)]
    answer = faustnet("add-class", run.folder, "question", *words, "--out", tmp_path / "larger.safetensors")
    assert answer.code == 0, answer.err
    assert "now has 3 classes: bad, good, question" in answer.out
    assert "Predictions for the 3 examples of question" in answer.out
    written = package.load(tmp_path / "larger.safetensors", device="cpu")
    assert torch.equal(written.scores(questions), larger.scores(questions))
    file = tmp_path / "larger.safetensors"
    answer = faustnet("add-images", file, "question", "--text", "is it old?")
    assert "class question now has 4 added texts" in answer.out
    whole = model.add_class("question", [*questions, "is it old?"])
    torch.testing.assert_close(package.load(file, device="cpu").scores(questions), whole.scores(questions))
    assert "This model was trained on texts" in faustnet("add-classes", file, tmp_path).sentence
    answer = faustnet("calibrate", run.folder, "--out", tmp_path / "calibrated.safetensors")
    assert answer.code == 0
    found = package.load(tmp_path / "calibrated.safetensors").predict(["a great film"], reject=True)
    assert found[0].class_name in ("good", UNKNOWN)


def test_few_shot_compares_texts_only_by_the_model(faustnet: Command, run: Run, folder: Path) -> None:
    command = (
        "few-shot",
        run.folder,
        "--dataset",
        folder,
        "--ways",
        2,
        "--shots",
        "1,5",
        "--episodes",
        20,
        "--device",
        "cpu",
    )
    assert [row["method"] for row in json.loads(faustnet(*command, "--json").out)] == [run.recipe.method] * 2
    table = faustnet(*command).out
    assert "100 texts of 2 classes" in table
    assert "5 texts of each class are classified" in table
    assert "pixels" not in table


def test_the_report_shows_texts_where_it_shows_images(faustnet: Command, run: Run, tmp_path: Path) -> None:
    answer = faustnet("report", run.folder, "--out", tmp_path / "page.html", "--images", 20)
    assert answer.code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "a fine film" in page
    assert '<ul class="portraits texts">' in page
    assert "<h2>Test texts, layer by layer</h2>" in page
    assert "µs per text" in page


@pytest.mark.usefixtures("one_operator_table")
def test_an_exported_model_of_texts_runs_as_its_card_says(
    faustnet: Command,
    run: Run,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert faustnet("export", run.folder, tmp_path / "films.onnx").code == 0
    card = (tmp_path / "films.md").read_text(encoding="utf-8")
    assert "Classifies texts of up to 32 tokens into 2 classes" in card
    program = card.split("```python\n")[1].split("```")[0].replace("a text", "a great film")
    (tmp_path / "card.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(tmp_path / "card.py"))
    assert capsys.readouterr().out == "['good']\n"


def test_the_example_classifies_texts(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    answers = capsys.readouterr().out.splitlines()
    assert float(answers[0].removeprefix("test accuracy ").removesuffix("%")) > 95
    assert [answer.split()[-1] for answer in answers[1:]] == ["person", "number"]
