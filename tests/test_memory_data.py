"""`faustnet.train` on data in memory: arrays, frames, data sets and loaders; and what is done with such runs."""

import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import faustnet as library
from conftest import Answer
from faustnet import FaustnetError
from faustnet.data import DataSet, data_in_memory
from faustnet.runs.folder import Run
from faustnet.runs.progress import ConsoleProgress
from faustnet.runs.session import Stopped

Command = Callable[..., Answer]
Pair = tuple[np.ndarray, np.ndarray]
RECIPE = {"network": {"widths": [48, 32], "embedding": 16}, "training": {"epochs": 8, "batch_size": 32}}
RECIPE["optimiser"] = {"learning_rate": 0.003}
WORDS = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])


@pytest.fixture(scope="module")
def pairs(digits: DataSet) -> tuple[Pair, Pair]:
    """Digits as bytes, (n, 1, 8, 8), with names of their classes."""
    parts = ((part.all_pixels.numpy(), WORDS[part.labels.numpy()]) for part in (digits.train, digits.test))
    first, second = parts
    return first, second


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, pairs: tuple[Pair, Pair]) -> Run:
    return train(tmp_path_factory.mktemp("runs") / "digits", *pairs)


def train(out: Path, data: Any, test: Any = None, recipe: dict[str, Any] = RECIPE, **about: Any) -> Run:
    return library.train(recipe, out, data=data, test=test, device="cpu", **about)


class Items(Dataset):
    """A map-style data set."""

    def __init__(self, x: Any, y: Any, change: Callable[[Any], Any] = lambda x: x):
        self.x, self.y, self.change = x, y, change

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, position: int) -> Any:
        return self.change(self.x[position]), self.y[position]


class Stream(IterableDataset):
    def __init__(self, x: Any, y: Any):
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[Any]:
        return zip(self.x, self.y, strict=True)


def test_arrays_train_a_run_like_any(run: Run, pairs: tuple[Pair, Pair]) -> None:
    assert run.metrics["test_accuracy"] > 0.9
    assert run.recipe.dataset == "memory"
    assert len(run.recipe.data.digest) == 64
    model = library.load(run.folder, device="cpu")
    assert model.class_names == tuple(sorted(WORDS))
    assert model.of_bytes
    predicted = [one.class_name for one in model.predict(pairs[1][0])]
    assert np.mean(np.array(predicted) == pairs[1][1]) == pytest.approx(run.metrics["test_accuracy"])


def test_every_form_of_the_same_data_is_the_same_training(run: Run, pairs: tuple[Pair, Pair], tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    (x, y), (x_test, y_test) = pairs
    forms = {
        "grey": ((x[:, 0], y.tolist()), (x_test[:, 0], y_test.tolist())),
        "channels last": ((x.transpose(0, 2, 3, 1), y), (x_test.transpose(0, 2, 3, 1), y_test)),
        "tensors": ((torch.from_numpy(x), y), (torch.from_numpy(x_test), y_test)),
        "series": ((x, pandas.Series(y)), (x_test, pandas.Series(y_test).astype(object))),
        "items": (Items(x, y), Items(x_test, y_test)),
        "pictures": (Items(x[:, 0], y, Image.fromarray), Items(x_test[:, 0], y_test, Image.fromarray)),
        "stream": (Stream(x, y), Stream(x_test, y_test)),
        "loader": (DataLoader(Items(x, y), 100), DataLoader(Stream(x_test, y_test), 70)),
    }
    for name, (data, test) in forms.items():
        found = data_in_memory(data, test)
        assert found.class_names == tuple(sorted(WORDS)), name
        assert torch.equal(found.train.all_pixels, torch.from_numpy(x)), name
        assert torch.equal(found.test.all_pixels, torch.from_numpy(x_test)), name
    again = train(tmp_path / "loader", *forms["loader"])
    assert (again.folder / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()


def test_numbers_are_class_names_too(digits: DataSet) -> None:
    x, y = digits.test.all_pixels, digits.test.labels
    for labels, first in ((y, "0"), (y.double(), "0"), (y > 4, "False"), (y.short() - 3, "-3")):
        found = data_in_memory(TensorDataset(x, labels))
        assert found.class_names[0] == first
        assert len(found.train) + len(found.test) == len(x)
        assert abs(len(found.test) / len(x) - 0.2) < 0.01
        assert set(found.test.labels.tolist()) == set(range(len(found.class_names)))


def test_tables_train_and_predict_as_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    wine = load_wine(as_frame=True)
    names = pandas.Series(wine.target_names[wine.target])
    run = train(tmp_path / "run", (wine.data, names), recipe={**RECIPE, "training": {"epochs": 20, "batch_size": 16}})
    assert run.metrics["test_accuracy"] > 0.85
    model = run.model()
    rows = [one.class_name for one in model.predict(wine.data)]
    assert rows == [one.class_name for one in model.predict(wine.data.to_numpy()[:, :, None, None])]
    assert np.mean(np.array(rows) == names) > 0.9


def test_tables_with_other_columns_or_another_order_are_refused(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    wine = load_wine(as_frame=True)
    x, y = wine.data, wine.target
    reversed_, renamed = x[x.columns[::-1]], x.rename(columns={"ash": "dust"})
    sentence = (
        r"test must have the columns of data in the same order, got {} in place of {} as column {}: select the columns"
    )
    cases = [
        (reversed_, "'proline'", "'alcohol'", 1),
        (renamed, "'dust'", "'ash'", 3),
        (x.iloc[:, :12], "no column", "'pr", 13),
    ]
    for table, got, expected, number in cases:
        with pytest.raises(FaustnetError, match=sentence.replace("{} as", "{}.* as").format(got, expected, number)):
            data_in_memory((x, y), (table, y))
    assert data_in_memory((x, y), (x.to_numpy(), y)).columns == tuple(x.columns)
    run = train(tmp_path / "run", (x, y), recipe={**RECIPE, "training": {"epochs": 1, "batch_size": 16}})
    model = pickle.loads(pickle.dumps(library.load(run.folder, device="cpu").rename_class("0", "first")))
    with pytest.raises(
        FaustnetError, match="pixels must have the columns of the training data in the same order, got 'proline'"
    ):
        model.predict(reversed_)
    assert model.predict(x) == model.predict(x.to_numpy())
    assert pandas.Series(model.columns).equals(pandas.Series(x.columns))


def test_pillow_images_of_16_bits_keep_their_greys_and_fractions_are_refused() -> None:
    deep = np.arange(20 * 16, dtype=np.uint16).reshape(20, 4, 4) * 200
    labels = np.arange(20) % 2
    found = data_in_memory(Items(deep, labels, Image.fromarray), Items(deep, labels, Image.fromarray))
    assert torch.equal(found.train.all_pixels[:, 0], torch.from_numpy((deep // 256).astype(np.uint8)))
    with pytest.raises(FaustnetError, match=r"Item 0 of data cannot be used \(its pixels are floating-point numbers"):
        data_in_memory(Items(deep / np.float32(65_535), labels, Image.fromarray))


def test_token_ids_train_a_transformer(tmp_path: Path, faustnet: Command) -> None:
    """A class is the larger of two kinds of token."""
    random = np.random.default_rng(0)
    ids = random.integers(1, 30, (600, 12))
    ids[random.random(ids.shape) < 0.2] = 0
    ids[:, 0] = 1 + ids[:, 0].clip(0, 27)
    labels = np.where((ids > 15).sum(1) > ((ids > 0) & (ids <= 15)).sum(1), "high", "low")
    network = {"kind": "transformer", "widths": [32, 32], "embedding": 16, "head": 0}
    recipe = {"network": network, "training": {"epochs": 10, "batch_size": 32}, "optimiser": {"learning_rate": 0.003}}
    run = train(tmp_path / "run", (ids[:500], labels[:500]), (ids[500:], labels[500:]), recipe)
    assert run.metrics["test_accuracy"] > 0.85
    model = run.model()
    assert (model.shape, model.vocabulary) == ((12,), 30)
    predicted = [one.class_name for one in model.predict(ids[500:])]
    assert np.mean(np.array(predicted) == labels[500:]) == pytest.approx(run.metrics["test_accuracy"])
    assert model.tokeniser is not None
    assert model.tokeniser.decode(torch.tensor([[17, 4, 0]])) == ["17 4"]
    with pytest.raises(FaustnetError, match="tokens must have ids from 0 to 29, got 30 to 30"):
        model.predict(np.full((1, 12), 30))
    pytest.importorskip("tokenizers")
    texts = [" ".join(str(one) for one in row if one) for row in ids[500:]]
    packed = np.stack([np.pad(row[row > 0], (0, (row == 0).sum())) for row in ids[500:]])
    assert model.predict(texts) == model.predict(packed)
    answer = faustnet("predict", run.folder, "--text", texts[0], "--csv", "--device", "cpu")
    assert answer.code == 0, answer.err
    with pytest.raises(FaustnetError, match="Text 1 cannot be encoded"):
        model.predict(["word"])
    with pytest.raises(FaustnetError, match="The token ids of test must have ids from 0 to 29, got"):
        data_in_memory((ids, labels), (ids + 1, labels), tokens=True)


def test_a_resume_goes_on_with_the_same_data_only(pairs: tuple[Pair, Pair], tmp_path: Path, run: Run) -> None:
    folder, show = tmp_path / "run", ConsoleProgress.epoch
    with pytest.MonkeyPatch.context() as patched:

        def stop(self: ConsoleProgress, epoch: Any) -> None:
            show(self, epoch)
            signal.raise_signal(signal.SIGINT)

        patched.setattr(ConsoleProgress, "epoch", stop)
        with pytest.raises(Stopped):
            train(folder, *pairs)
    (x, y), test = pairs
    other = x.copy()
    other[700, 0, 3, 3] += 1
    with pytest.raises(FaustnetError, match="data and test must be those that the run began with, in the same order"):
        train(folder, (other, y), test, resume=True)
    with pytest.raises(FaustnetError, match="data and test must be those that the run began with"):
        train(folder, (x[::-1], y[::-1]), test, resume=True)
    with pytest.raises(FaustnetError, match="The data of this run were in memory, and are not stored in the run folder"):
        library.train(
            {**RECIPE, "dataset": "memory", "data": {"digest": Run.open(folder).recipe.data.digest}}, folder, resume=True
        )
    again = train(folder, *pairs, resume=True)
    assert (again.folder / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()


def test_commands_use_such_a_run(run: Run, pairs: tuple[Pair, Pair], tmp_path: Path, faustnet: Command) -> None:
    (x, y), (x_test, y_test) = pairs
    Image.fromarray(x_test[0, 0]).resize((16, 16)).save(tmp_path / "one.png")
    answer = faustnet("predict", run.folder, tmp_path / "one.png", "--csv", "--device", "cpu")
    assert (answer.code, y_test[0] in answer.out) == (0, True), answer.err
    assert faustnet("export", run.folder, tmp_path / "model.onnx").code == 0
    assert "memory" in (tmp_path / "model.md").read_text()
    for command in (["evaluate", run.folder], ["report", run.folder, "--out", tmp_path / "page.html"]):
        answer = faustnet(*command, "--device", "cpu")
        assert answer.code != 0
        assert (
            "The data of this run were in memory, and are not stored in the run folder: give a data set" in answer.sentence
        )
    np.savez(tmp_path / "digits.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    named = ("--dataset", tmp_path / "digits.npz", "--device", "cpu")
    answer = faustnet("evaluate", run.folder, *named)
    assert f"{run.metrics['test_accuracy']:.2%}" in answer.out, answer.err
    answer = faustnet("report", run.folder, *named, "--images", 30, "--out", tmp_path / "page.html")
    assert answer.code == 0, answer.err
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert faustnet("votes", run.folder, *named).code == 0


def test_a_run_in_memory_starts_from_another(run: Run, pairs: tuple[Pair, Pair], tmp_path: Path) -> None:
    recipe = {"training": {"epochs": 1, "batch_size": 32}, "start": {"model": str(run.folder), "train_layers": [2]}}
    further = train(tmp_path / "run", *pairs, recipe)
    before, after = (one.model().method.state_dict() for one in (run, further))
    assert torch.equal(before["network.layers.0.body.linear.weight"], after["network.layers.0.body.linear.weight"])
    assert not torch.equal(before["network.layers.1.body.linear.weight"], after["network.layers.1.body.linear.weight"])


def test_a_folder_may_be_named_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: tuple[Pair, Pair]) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.chdir(tmp_path)
    run = train(tmp_path / "run", *pairs, {**RECIPE, "training": {"epochs": 1, "batch_size": 256}})
    assert run.recipe.dataset == "memory"


X, Y = np.zeros((20, 1, 4, 4), np.uint8), np.arange(20) % 2


@pytest.mark.parametrize(
    ("data", "test", "sentence"),
    [
        ((X, Y + 0.5), None, r"The labels of data must be whole numbers or names of classes, got \[0\.5\]"),
        ((X, Y.astype(float) * np.nan), None, "must be whole numbers or names of classes"),
        ((X, np.zeros(20)), None, "data must have samples of at least two classes, got 1"),
        ((X, Y[:9]), None, "data must have one label per sample, got 20 samples and 9 labels"),
        ((X, Y[:, None]), None, r"The labels of data must have shape \(n,\), got \(20, 1\)"),
        ((X, ["a", 1] * 10), (X, [1, "b"] * 10), r"test must have only labels that data has|of one type"),
        ((X, Y), (X, Y + 1), r"test must have only labels that data has, got \[2\]"),
        ((X, Y), (X[:, :, :3], Y), r"data and test must have samples of one shape, got \(1, 4, 4\) and \(1, 3, 4\)"),
        ((X, Y), (X.astype(float), Y), r"must have the same type, got torch\.uint8 and torch\.float32"),
        (
            (X[:3], np.array(["b", "a", "b"])),
            None,
            "data must have at least 2 samples of each class if test is not given, got 1 of 'a': add samples, leave out",
        ),
        ((X[:8], [*range(7), 0]), None, "got 1 of '1', '2', '3', '4', '5' and 1 more: add"),
        ((X, np.arange(20) % 10), None, "data must have at least 46 samples for 10 classes if test is not given, got 20"),
        ((X.astype(float) * np.nan, Y), None, "data must contain finite values only"),
        ((X[0, 0, 0], Y[:4]), None, r"data must be images .*, got shape \(4,\)"),
        ((X[:0], Y[:0]), None, "data must have at least one sample, got none"),
        (X, None, "Item 0 of data must be a pair|must be a pair"),
        (3, None, "data must be a pair of arrays .*, got int"),
        (
            DataLoader(torch.zeros(4, 3)),
            None,
            r"Batch 1 of data must be a pair \(x, label\), got Tensor: training needs labels",
        ),
        (Items([np.zeros((2, 2)), np.zeros((3, 3))], [0, 1]), None, r"item 0 has \(2, 2\) and item 1 \(3, 3\): resize them"),
    ],
)
def test_mistakes_are_sentences(data: Any, test: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(FaustnetError, match=sentence):
        train(tmp_path / "run", data, test)
    assert not (tmp_path / "run").exists()


def test_mistakes_of_the_call_are_sentences(tmp_path: Path, pairs: tuple[Pair, Pair]) -> None:
    with pytest.raises(FaustnetError, match="dataset must be left out of the recipe if data is given, got 'digits'"):
        train(tmp_path / "run", (X, Y), recipe={"dataset": "digits"})
    with pytest.raises(FaustnetError, match="test needs data, the training data in memory"):
        library.train({}, tmp_path / "run", test=(X, Y))
    with pytest.raises(FaustnetError, match=r"data\.digest is for data in memory, got the data set digits"):
        library.train({"data": {"digest": "1"}}, tmp_path / "run")
    folder = library.train({**RECIPE, "training": {"epochs": 1}}, tmp_path / "digits", device="cpu").folder
    with pytest.raises(FaustnetError, match="data must be left out, because the run to resume was not started with data in"):
        train(folder, *pairs, {**RECIPE, "training": {"epochs": 1}}, resume=True)
