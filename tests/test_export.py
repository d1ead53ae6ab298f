"""ONNX files: the same scores as PyTorch for every method, including a user's own; and the model card."""

import json
import math
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
import torch
from markdown_it import MarkdownIt
from PIL import Image
from torch import nn

import export as benchmark
import faustnet as library
from conftest import Answer, run_to_end
from faustnet import export
from faustnet.data import DataSet, Images, load_data
from faustnet.errors import FaustnetError
from faustnet.export import Exported, export_run, session_of, to_onnx
from faustnet.methods import METHODS, Faust, LocalMethod, Method
from faustnet.nn.architectures import NetworkSettings, Shape
from faustnet.nn.layers import Layer
from faustnet.nn.modules import BatchNorm
from faustnet.nn.network import Network
from faustnet.report.card import render_card, text
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.runs.session import set_up
from faustnet.version import VERSION
from processes import COMMAND, Program

pytestmark = pytest.mark.usefixtures("one_operator_table")
Command = Callable[..., Answer]
Table = dict[str, Any]
ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
DENSE = {"widths": [30, 24], "embedding": 16}
ONE_LAYER = {"widths": [30], "embedding": 16}
VGG = {"kind": "vgg", "widths": [12, 12], "pools": [1], "head": 8, "embedding": 12}
RESIDUAL = VGG | {"kind": "residual", "pools": [2]}
ONE_PASS = {"method": "forward-forward", "options": {"inference": "one-pass"}}
BAD_NAMES = ("<b>bold<", "a|b_c_ [x](y)", "`$1$`")
SETTINGS: dict[str, Table] = {  # all options of networks and predictions, shared out among the methods
    "backprop": {"network": VGG | {"head": 0}, "prediction": {"mirror": True, "weights": [0.5]}},
    "collaborative-ff": {"network": ONE_LAYER},
    "cwc": {"network": VGG},
    "deep-supervision": {"network": ONE_LAYER},
    "ffcm": {"network": DENSE | {"passes_on": "embedding", "norm": "batch"}},
    "predsim": {"network": VGG, "prediction": {"layers": "last"}},
    "mono-forward": {"network": RESIDUAL},
    "sffa": {"network": ONE_LAYER},
    "symba": {"network": {"widths": [20]}},
    "trifecta": {"network": {"kind": "vgg", "widths": [4]}},
    "faust-triplet": {"network": ONE_LAYER},
    "faust-centroid": {"network": RESIDUAL | {"embedding": 0}, "prediction": {"weights": [0.25, 1.5]}},
    "faust-prototype": {"network": VGG | {"length": "learned"}, "options": {"prototypes": 2, "final_scale": 0.5}},
    "faust-representative": {
        "network": DENSE | {"passes_on": "embedding", "length": "unit"},
        "options": {"representatives": 3},
        "prediction": {"mirror": True, "weights": [0.0, 1.0]},
    },
}
EXPORTED: list[Table] = [
    *({"method": name, **SETTINGS.get(name, {"network": DENSE})} for name in METHODS),
    ONE_PASS | {"network": DENSE, "prediction": {"mirror": True}},
]


@pytest.fixture(scope="module")
def two(digits: DataSet) -> DataSet:
    """The digits 0 and 1. Some methods take one forward pass for each class, and the exporter as much time."""

    def few(images: Images) -> Images:
        return images.take((images.labels < 2).nonzero().squeeze(1))

    return replace(digits, class_names=digits.class_names[:2], train=few(digits.train), test=few(digits.test))


def trained(table: Table, data: DataSet) -> Model:
    """For one epoch on a few images; batch norms get gains of either sign."""
    few = replace(data, train=data.train.take(torch.arange(280)))
    recipe = recipe_from({"training": {"epochs": 1, "batch_size": 64}, **table})
    model, trainer = set_up(recipe, few, CPU)
    run_to_end(trainer)
    torch.manual_seed(0)
    for norm in model.method.modules():
        if isinstance(norm, BatchNorm):
            norm.gain.data.uniform_(-1.5, 1.5)
            norm.offset.data.normal_()
    return model


def compare(model: Model, images: np.ndarray) -> int:
    """Export a model, and compare its outputs with PyTorch's. Return the number of multiplications."""
    content, multiplications = to_onnx(model, 0.5)
    compare_scores(content, model, images)
    return multiplications


def compare_scores(content: bytes, model: Model, images: np.ndarray) -> None:
    """Compare the outputs of an exported model with PyTorch's, for all images and for the first one alone."""
    assert b"site-packages" not in content
    assert str(ROOT).encode() not in content
    session = session_of(content)
    votes, joined, prediction = session.run(None, {"images": images})
    wanted = model.scores(images)
    together = model.method.joined(wanted)
    np.testing.assert_allclose(votes, wanted.transpose(0, 1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(joined, together, rtol=1e-4, atol=1e-4)
    margins = together.topk(2, dim=1).values
    clear = (margins[:, 0] - margins[:, 1] > 1e-3).numpy()
    assert clear.mean() > 0.9
    assert (prediction == together.argmax(dim=1).numpy())[clear].all()
    assert prediction.dtype == np.int64
    for answer, one in zip((votes, joined, prediction), session.run(None, {"images": images[:1]}), strict=True):
        assert one.shape == (1, *answer.shape[1:])
        np.testing.assert_allclose(one, answer[:1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("table", EXPORTED, ids=lambda table: json.dumps(table).translate(str.maketrans("", "", '{}" ')))
def test_every_method_gives_the_scores_of_pytorch(table: Table, two: DataSet) -> None:
    model = trained(table, two)
    multiplications = compare(model, two.test.pixels.numpy())
    if isinstance(model.method, Faust):
        assert multiplications == sum(model.method.multiplications) * (2 if model.method.prediction.mirror else 1)


def test_images_of_any_shape() -> None:
    """Heads average over 8×8 windows, which overlap along a side that is no multiple of 8; pooling drops the last row of an
    odd number."""
    torch.manual_seed(0)
    shape = (3, 17, 24)  # 8×12 in the second layer
    images = Images(torch.randint(256, (320, *shape), dtype=torch.uint8), torch.arange(320) % 4)
    model = trained({"network": VGG | {"pools": [2]}}, DataSet("noise", ("a", "b", "c", "d"), images, images))
    compare(model, np.random.default_rng(0).integers(256, size=(64, *shape), dtype=np.uint8))


def test_tables_of_numbers_of_any_size() -> None:
    """Large values are scaled as exactly as in PyTorch."""
    torch.manual_seed(0)
    numbers = torch.randn(400, 6, 1, 1) + torch.tensor([0.0, 1e4, -1e4, 1.0, 50.0, 0.0]).view(6, 1, 1)
    images = Images(numbers, (numbers[:, 0, 0, 0] > 0).long())
    model = trained({"network": ONE_LAYER}, DataSet("table", ("low", "high"), images, images))
    assert not model.of_bytes
    compare(model, numbers[320:].numpy())


def test_distances_too_large_for_an_exponential(two: DataSet) -> None:
    model = trained({"network": ONE_LAYER, "options": {"representatives": 3, "scale": 1.0}}, two)
    assert isinstance(model.method, Faust)
    for references in model.method.references:
        references.mul_(1000)
    compare(model, two.test.pixels.numpy())


class OwnHead(nn.Module):
    """A linear map with one learned temperature."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.linear = nn.Linear(width, classes)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        return self.linear(activation) * self.temperature


def own_layer(inputs: int, width: int, classes: int) -> Layer:
    """Of plain PyTorch modules."""
    return Layer(nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.GELU()), OwnHead(width, classes))


def embeddings(method: Method, x: torch.Tensor) -> torch.Tensor:
    """Of all layers: (B, …) → (layers, B, e)"""
    rows, found = x, []
    for layer in method.network:
        rows, embedding = layer(rows)
        found.append(embedding)
    return torch.stack(found)


class OwnMethod(LocalMethod):
    """A cross entropy in every layer. Its scores use `len`, which only the second way of tracing can follow."""

    name: ClassVar[str] = "own"
    summary: ClassVar[str] = "cross entropy in every layer"

    @classmethod
    def make_network(cls, shape: Shape, classes: int, settings: NetworkSettings) -> Network:
        sizes = pairwise([math.prod(shape), *settings.widths])
        return Network([own_layer(inputs, width, classes) for inputs, width in sizes], example=torch.zeros(1, *shape))

    def rows(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x

    def local_loss(self, embedding: torch.Tensor, y: torch.Tensor, layer: object) -> torch.Tensor:
        return -embedding.log_softmax(dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1).mean(dim=-1)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        return embeddings(self, x).log_softmax(dim=-1) + x.new_zeros(len(x), self.classes)


def own_model(data: DataSet, monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setitem(METHODS, OwnMethod.name, OwnMethod)
    return trained({"method": "own", "network": {"widths": [20, 20]}}, data)


def test_a_method_of_a_users_own(two: DataSet, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    model = own_model(two, monkeypatch)
    assert all(layer.head.temperature.detach() != 1 for layer in model.method.network)
    compare(model, two.test.pixels.numpy())
    assert capfd.readouterr() == ("", "")


def on_condition(method: Method, x: torch.Tensor) -> torch.Tensor:
    scores = embeddings(method, x)
    return scores if scores.sum() > 0 else -scores


def by_eigenvalues(method: Method, x: torch.Tensor) -> torch.Tensor:
    scores = embeddings(method, x)
    return scores + torch.linalg.eigvals(scores.mT @ scores).real.unsqueeze(1)


def by_batch(method: Method, x: torch.Tensor) -> torch.Tensor:
    scores = embeddings(method, x)
    return scores - scores.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        (
            on_condition,
            "^own cannot be exported: torch.export cannot trace its scores .*without conditions on tensor",
        ),
        (by_eigenvalues, "^own cannot be exported: ONNX has no operator for a part of its scores .*linalg_eig"),
        (by_batch, "check that the scores of an image do not depend on other images"),
    ],
)
def test_scores_that_cannot_be_exported(
    scores: Callable[[Method, torch.Tensor], torch.Tensor],
    sentence: str,
    two: DataSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = own_model(two, monkeypatch)
    monkeypatch.setattr(OwnMethod, "scores", scores)
    with pytest.raises(FaustnetError, match=sentence):
        export.check(to_onnx(model, 0.5)[0], model)
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    table = {"network": DENSE, "training": {"epochs": 3, "batch_size": 64}, "optimiser": {"learning_rate": 0.005}}
    return library.train(table, tmp_path_factory.mktemp("runs") / "faust", device="cpu")


@pytest.fixture(scope="module")
def made(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_run(run, tmp_path_factory.mktemp("exported") / "model.onnx")


@pytest.fixture
def converted(made: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is converted already, for tests of the files around it."""
    content = made.path.read_bytes()
    monkeypatch.setattr(export, "to_onnx", lambda model, test_accuracy: (content, 1))


def metadata_of(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_a_run_is_exported_by_one_command(run: Run, made: Exported, tmp_path: Path, digits: DataSet) -> None:
    path = tmp_path / "model.onnx"
    command = Program(COMMAND, "export", run.folder, path)
    out, err = command.communicate()
    assert (command.returncode, err) == (0, "")
    assert re.fullmatch(r"written: .*model.onnx, 0.0 MB, and .*model.md\nScores in ONNX Runtime .* at most .*\n", out)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.md", "model.onnx"]
    assert path.read_bytes() == made.path.read_bytes(), "the same model gives the same file"
    onnx.checker.check_model(path, full_check=True)
    prediction = session_of(path.read_bytes()).run(["prediction"], {"images": digits.test.pixels.numpy()})[0]
    assert (prediction == digits.test.labels.numpy()).mean() == run.metrics["test_accuracy"] > 0.5


def test_the_file_says_what_it_is(run: Run, made: Exported) -> None:
    facts = metadata_of(made.path)
    assert set(facts) == set(export.METADATA)
    assert json.loads(facts["class_names"]) == [str(number) for number in range(10)]
    assert json.loads(facts["voters"]) == ["layer 1", "layer 2"]
    assert json.loads(facts["shape"]) == [1, 8, 8]
    assert recipe_from(tomllib.loads(facts["recipe"])) == run.recipe
    assert float(facts["test_accuracy"]) == run.metrics["test_accuracy"]
    assert facts["faustnet"] == VERSION
    model = onnx.load(made.path)
    values = {value.name: value.type.tensor_type for value in (*model.graph.input, *model.graph.output)}
    shapes = {name: [size.dim_param or size.dim_value for size in value.shape.dim] for name, value in values.items()}
    assert shapes == {"images": ["n", 1, 8, 8], "votes": ["n", 2, 10], "joined": ["n", 10], "prediction": ["n"]}
    assert [value.elem_type for value in values.values()] == [onnx.TensorProto.UINT8, 1, 1, onnx.TensorProto.INT64]
    assert (model.ir_version, model.producer_name, [(opset.domain, opset.version) for opset in model.opset_import]) == (
        8, "faustnet", [("", 18)],
    )  # fmt: skip


def test_a_model_whose_classes_were_changed_is_exported_without_an_accuracy(run: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(run.folder, tmp_path / "run")
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    changed = run.model().remove_class("3").add_class("mine", images).rename_class("0", "null")
    (folder / "model.safetensors").write_bytes(changed.to_bytes())
    made = export_run(Run(folder), tmp_path / "model.onnx")
    facts = metadata_of(made.path)
    assert json.loads(facts["class_names"]) == ["null", "1", "2", "4", "5", "6", "7", "8", "9", "mine"]
    assert facts["test_accuracy"] == ""
    prediction = session_of(made.path.read_bytes()).run(["prediction"], {"images": images.numpy()})[0]
    assert [changed.class_names[number] for number in prediction] == [one.class_name for one in changed.predict(images)]
    card = made.card.read_text(encoding="utf-8")
    assert "into 10 classes. Its classes were changed after training, and the accuracy with these classes was not" in card
    assert "## Accuracy" not in card
    assert "Accuracy differs" not in card
    assert "\n\n\n" not in card


@pytest.mark.usefixtures("converted")
def test_files_that_are_there_are_kept_unless_forced(faustnet: Command, run: Run, tmp_path: Path) -> None:
    path, card = tmp_path / "model.onnx", tmp_path / "model.md"
    card.write_text("mine")
    answer = faustnet("export", run.folder, path)
    assert "model.md already exists: choose another name, or overwrite it with --force" in answer.sentence
    assert not path.exists()
    card.unlink()
    path.write_text("mine")
    assert "model.onnx already exists" in faustnet("export", run.folder, path).sentence
    assert path.read_text() == "mine"
    assert faustnet("export", run.folder, path, "--force").code == 0
    assert metadata_of(path)["faustnet"] == VERSION


@pytest.mark.usefixtures("converted")
def test_an_export_that_was_killed_between_its_files_is_made_again(faustnet: Command, run: Run, tmp_path: Path) -> None:
    (tmp_path / "model.md").write_text("the card")
    (tmp_path / ".model.onnx.abc.part").write_text("a model that was ready to be put in place")
    assert faustnet("export", run.folder, tmp_path / "model.onnx").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.md", "model.onnx"]
    assert "faustnet train" in (tmp_path / "model.md").read_text()


@pytest.mark.usefixtures("converted")
def test_scores_that_are_not_pytorchs_are_never_written(
    faustnet: Command, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").write_text("mine")
    real = Model.scores
    monkeypatch.setattr(Model, "scores", lambda self, pixels: real(self, pixels) + 0.01)
    answer = faustnet("export", run.folder, tmp_path / "model.onnx", "--force")
    assert answer.code == 2
    assert "The scores of ONNX Runtime differ from PyTorch's by up to 0.01, so no file was written" in answer.sentence
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("model.onnx", "mine")]


@pytest.mark.parametrize("package", export.PACKAGES)
def test_a_missing_package_is_named(
    package: str, faustnet: Command, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    answer = faustnet("export", run.folder, tmp_path / "model.onnx")
    assert f"needs the package {package}: install it with pip install 'faustnet[export]'" in answer.sentence
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("converted")
def test_what_cannot_be_written_is_told_in_a_sentence(faustnet: Command, run: Run, tmp_path: Path) -> None:
    assert "The name of the ONNX file must end in .onnx" in faustnet("export", run.folder, tmp_path / "model.pt").sentence
    assert "is not a run" in faustnet("export", tmp_path, tmp_path / "model.onnx").sentence
    assert "model.onnx could not be written" in faustnet("export", run.folder, tmp_path / "nowhere" / "model.onnx").sentence
    assert not list(tmp_path.iterdir())


def test_a_model_too_large_for_one_file_is_refused(two: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "LARGEST", 1000)
    with pytest.raises(FaustnetError, match="An ONNX file must be smaller than"):
        to_onnx(trained({"method": "backprop", "network": {"widths": [20]}}, two), 0.5)


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of a folder of photographs whose names are as bad as names can be."""
    folder = tmp_path_factory.mktemp("private") / "my *photos*"
    random = np.random.default_rng(0)
    for number, name in enumerate(BAD_NAMES):
        for place in range(20):
            (folder / name).mkdir(parents=True, exist_ok=True)
            pixels = random.integers(number * 80, number * 80 + 80, (10, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{place}.png")
    table = {"dataset": str(folder), "network": DENSE, "training": {"epochs": 2, "batch_size": 16}}
    return library.train(table, tmp_path_factory.mktemp("runs") / "own", device="cpu")


@pytest.fixture(scope="module")
def own_made(own_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_run(own_run, tmp_path_factory.mktemp("exported") / "own.onnx")


def test_where_own_images_lie_is_not_told(own_made: Exported) -> None:
    for content in (own_made.path.read_bytes(), own_made.card.read_bytes()):
        assert b"private" not in content
        assert b"my *photos*" in content or b"my \\*photos\\*" in content


class Cells(HTMLParser):
    """The text of all table cells, row by row, and which elements there are."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.inside = False

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def rendered(card: str) -> Cells:
    cells = Cells()
    cells.feed(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(card))
    return cells


def test_names_in_the_card_are_only_names(own_made: Exported) -> None:
    names = ["<script>alert(1)</script>", "a|b", "[x](http://y)", "**b** _i_ `c` ~~s~~", "![i](p)", "&amp; \\| \\", "#1"]
    found = rendered(own_made.card.read_text())
    assert [row[0] for row in found.rows if len(row) == 5][1:] == sorted(BAD_NAMES)
    about = {"class_names": names, "measured": True, "metrics": metrics_of(np.eye(len(names), dtype=int) * 5)}
    found = rendered(render_card(BLANK | about))
    assert [row[0] for row in found.rows if len(row) == 5][1:] == names
    assert not found.tags & {"script", "a", "img", "s", "em", "b"}
    assert text("two\nlines\udc80") == "two lines?"


BLANK: Table = {
    "file": "m.onnx", "dataset": "d", "shape": [1, 8, 8], "of_bytes": True, "vocabulary": 0, "network": "n", "summary": "s",
    "size": 5,
    "recipe": {
        "dataset": "d", "method": "m", "seed": 0, "prediction": {"weights": [], "mirror": False},
        "training": {"batch_size": 1}, "optimiser": {"name": "adam", "learning_rate": 0.1},
    },
    "recipe_file": "\n", "environment": {}, "multiplications": 1, "difference": 0.0, "onnx_seconds": 1.0,
    "onnx_processor": "p",
}  # fmt: skip


def metrics_of(confusion: np.ndarray) -> Table:
    return {
        "test_accuracy": 0.5, "layer_accuracy": [0.5], "first_layers_accuracy": [0.5], "voters": ["output"], "epochs": 1,
        "confusion": confusion.tolist(), "forward_passes": 1, "parameters": 1, "seconds_per_image": 1.0,
        "train_seconds": 1.0, "schedule": "sequential",
    }  # fmt: skip


def test_the_card_counts_by_class_and_by_pair() -> None:
    confusion = np.array([[8, 2, 0], [0, 0, 0], [5, 1, 4]])
    card = render_card(BLANK | {"class_names": ["a", "b", "c"], "measured": True, "metrics": metrics_of(confusion)})
    rows = rendered(card).rows
    assert [row for row in rows if len(row) == 5][1:] == [
        ["a", "0", "10", "80.0%", "61.5%"], ["b", "1", "0", "–", "0.0%"], ["c", "2", "10", "40.0%", "100.0%"],
    ]  # fmt: skip
    pairs = rows[rows.index(["true class", "predicted class", "test images", "share of the class"]) + 1 :][:3]
    assert pairs == [["c", "a", "5", "50.0%"], ["a", "b", "2", "20.0%"], ["c", "b", "1", "10.0%"]]
    assert "from 40.0% to" in card
    assert "No test image is misclassified" in render_card(
        BLANK | {"class_names": ["a", "b"], "measured": True, "metrics": metrics_of(np.eye(2, dtype=int))}
    )


def test_the_card_has_the_runs_figures(run: Run, made: Exported) -> None:
    card, metrics, environment = made.card.read_text(), run.metrics, run.read("environment.json")
    rows = rendered(card).rows
    facts = {row[0]: row[1] for row in rows if len(row) == 2}
    assert f"**{metrics['test_accuracy']:.2%}** of 360 test images of" in card
    for number, alone in enumerate(metrics["layer_accuracy"]):
        assert [f"layer {number + 1}", f"{alone:.2%}", f"{metrics['first_layers_accuracy'][number]:.2%}"] in rows
    assert facts["parameters"] == f"{metrics['parameters']:,}"
    assert facts["network"] == "30–24, embedding 16"
    assert environment["torch"] in facts["versions"]
    assert environment["commit"] is None or environment["commit"].rstrip("+") in facts["commit"]
    assert facts["seed"] == "0"
    (recipe,) = re.findall(r"```toml\n(.*?)```", card, re.DOTALL)
    assert recipe_from(tomllib.loads(recipe)) == run.recipe


def test_the_cards_program_runs(made: Exported) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", made.card.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=made.path.parent, capture_output=True, text=True, check=True)
    names = json.loads(metadata_of(made.path)["class_names"])
    black = session_of(made.path.read_bytes()).run(["prediction"], {"images": np.zeros((1, 1, 8, 8), np.uint8)})[0]
    assert done.stdout.strip() == str([names[black[0]]])


def test_the_example_names_what_faustnet_names_without_it(
    faustnet: Command, run: Run, made: Exported, tmp_path: Path, digits: DataSet
) -> None:
    files = []
    for number, digit in enumerate(digits.test.pixels[:6, 0].numpy()):
        picture = Image.fromarray(digit)
        if number % 3 == 1:
            picture = picture.resize((50, 40)).convert("RGB")
        if number % 3 == 2:
            picture = Image.fromarray(digit.astype(np.uint16) * 256)
        files.append(tmp_path / f"{number}.png")
        picture.save(files[-1])
    words = [str(ROOT / "examples" / "predict_onnx.py"), str(made.path), *map(str, files)]
    block = "import runpy, sys; sys.modules.update(torch=None, faustnet=None); sys.argv = sys.argv[1:]; "
    done = subprocess.run(
        [sys.executable, "-c", block + "runpy.run_path(sys.argv[0], run_name='__main__')", *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    wanted = json.loads(faustnet("predict", run.folder, *files, "--json", "--device", "cpu").out)
    pattern = r"(.*): (\S+) \(score (\S+); layer 1: (\S+), layer 2: (\S+)\)"
    for line, answer in zip(done.stdout.splitlines(), wanted, strict=True):
        found = re.fullmatch(pattern, line)
        assert found is not None, line
        assert [found[1], found[2], found[4], found[5]] == [answer["file"], answer["class_name"], *answer["votes"]]
        assert float(found[3]) == pytest.approx(answer["score"], abs=2e-3)


def test_both_ways_to_predict_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "SECONDS", 0.0)
    monkeypatch.setattr(benchmark, "METHODS", ("faust-representative",))
    monkeypatch.setattr(benchmark, "NETWORKS", {"tiny": {"widths": [8]}})
    pixels = torch.randint(256, (3, 1, 28, 28), dtype=torch.uint8)
    for predict in benchmark.predictors("backprop", {"widths": [8]}).values():
        assert np.asarray(predict(pixels)).reshape(-1).shape == (3,), "both return class numbers"
    benchmark.main(tmp_path / "export.json")
    lines = json.loads((tmp_path / "export.json").read_text())["lines"]
    assert [(line["method"], line["images"]) for line in lines] == [
        ("faust-representative", count) for count in benchmark.AT_ONCE
    ]
    assert all(line["torch_us"] > 0 < line["onnx_us"] for line in lines)


def test_mnist_is_predicted_alike(large_data: Path) -> None:
    data = load_data("mnist", large_data)
    model = trained({"dataset": "mnist", "network": {"widths": [60, 60], "embedding": 32}}, data)
    compare(model, data.test.pixels.numpy())
