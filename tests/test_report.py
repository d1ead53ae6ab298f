"""What is found out about finished runs, and the page that shows it, in a real browser."""

import base64
import html
import io
import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import faustnet as library
from conftest import Answer, fitting
from faustnet.data import DataSet, Images
from faustnet.errors import FaustnetError
from faustnet.methods import METHODS
from faustnet.methods.goodness import GoodnessMethod
from faustnet.methods.trifecta import Trifecta
from faustnet.nn import network as network_module
from faustnet.nn.architectures import NetworkSettings
from faustnet.report import citation
from faustnet.report.charts import draw_charts
from faustnet.report.curves import by_class, first_layers
from faustnet.report.figures import save
from faustnet.report.page import render_page
from faustnet.runs.analysis import fisher_definitions, fisher_score, inspect_run, layer_embeddings, tsne
from faustnet.runs.examples import balanced_sample, described_scores, further_examples
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from faustnet.runs.pictures import Pictures
from faustnet.runs.recipes import recipe_from
from faustnet.training.evaluation import evaluate, evaluating

CPU = torch.device("cpu")
NETWORK = {"widths": [32, 24], "embedding": 16}
NASTY = "</script><b>&\"'%{x}\u2028"
Facts = dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    networks = {"faust-representative": NETWORK, "backprop": {"widths": NETWORK["widths"]}}
    table = {"training": {"epochs": 2, "batch_size": 64}}
    return [
        library.train({**table, "method": name, "network": network}, folder / name, device="cpu")
        for name, network in networks.items()
    ]


@pytest.fixture(scope="module")
def facts(runs: list[Run]) -> list[Facts]:
    """Of all test images."""
    return [inspect_run(run, device=CPU, data_dir=None) for run in runs]


def decoded(source: str) -> np.ndarray:
    assert source.startswith("data:image/png;base64,")
    return np.array(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))


def page_data(written: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', written, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_fisher_score_is_its_formula() -> None:
    drawn = np.random.default_rng(0)
    labels = np.array([0] * 7 + [2] * 4 + [5] * 9)  # not every class need be there
    rows = drawn.normal(size=(20, 3)) + labels[:, None]
    mean = [sum(row[k] for row in rows) / 20 for k in range(3)]
    between = within = 0.0
    for label in (0, 2, 5):
        mine = [row for row, other in zip(rows, labels, strict=True) if other == label]
        centre = [sum(row[k] for row in mine) / len(mine) for k in range(3)]
        between += len(mine) * sum((centre[k] - mean[k]) ** 2 for k in range(3))
        within += sum((row[k] - centre[k]) ** 2 for row in mine for k in range(3))
    assert fisher_score(rows, labels) == pytest.approx(between / within)
    assert fisher_score((rows * 100 + 7).astype(np.float32), labels) == pytest.approx(between / within, rel=1e-4)


def test_the_definitions_of_fisher_scores_are_their_formulas() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [4, 6, 5])
    rows = rng.normal(size=(15, 3)) + labels[:, None] * [2.0, 0.5, 0.0]
    within, between = np.zeros((3, 3)), np.zeros((3, 3))
    for label in range(3):
        own = rows[labels == label]
        for row in own:
            within += np.outer(row - own.mean(axis=0), row - own.mean(axis=0))
            between += np.outer(own.mean(axis=0) - rows.mean(axis=0), own.mean(axis=0) - rows.mean(axis=0))
    expected = [
        np.trace(between) / np.trace(within),
        np.trace(np.linalg.inv(within) @ between),
        sum(between[i, i] / within[i, i] for i in range(3)) / 3,
    ]
    assert list(fisher_definitions(rows, labels).values()) == pytest.approx(expected)
    constant = np.concatenate([rows, np.ones((15, 1))], axis=1)
    assert list(fisher_definitions(constant, labels).values()) == pytest.approx(expected), "a constant dimension is left out"


def test_fisher_score_of_classes_without_width() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert fisher_score(labels[:, None] * 0.1, labels) == math.inf
    assert fisher_score(np.full((6, 2), 0.1, np.float32), labels) == 0.0


@pytest.mark.parametrize("shape", [(1, 4), (2, 4), (3, 4), (9, 1), (60, 5)])
def test_a_map_of_any_number_of_images(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = tsne(rows)
    assert found.shape == (shape[0], 2)
    assert np.isfinite(found).all()
    assert (found == tsne(rows)).all()


def test_a_map_of_images_that_are_all_the_same() -> None:
    assert (tsne(np.full((40, 3), 0.1)) == np.zeros((40, 2))).all()


def test_as_many_images_of_one_class_as_of_another() -> None:
    labels = np.array([0, 0, 0, 0, 1, 2, 0, 2, 1, 2])
    assert balanced_sample(labels, 6).tolist() == [0, 1, 4, 5, 7, 8]
    assert balanced_sample(labels, 9).tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert balanced_sample(labels, 50).tolist() == list(range(10))


def test_a_map_stays_close_to_the_one_that_it_starts_from() -> None:
    rows = np.random.default_rng(0).normal(size=(400, 6)) + 6 * np.eye(6)[np.arange(400) % 5]
    first = tsne(rows, iterations=300)
    for start in (first, first[:, ::-1], -first):
        assert np.corrcoef(start.ravel(), tsne(rows, start=start, iterations=300).ravel())[0, 1] > 0.8


def test_further_images_are_wrong_ones_and_some_of_every_class() -> None:
    drawn = np.random.default_rng(0)
    labels = drawn.integers(0, 4, 2000)
    predicted = np.where(drawn.random(2000) < 0.9, labels, drawn.integers(0, 4, 2000))
    shown = balanced_sample(labels, 8)
    found = further_examples(labels, predicted, shown)
    wrong = set((labels != predicted).nonzero()[0])
    assert wrong <= {*found, *shown}
    assert not {*found} & {*shown}
    correct = np.array(sorted({*found, *shown} - wrong))
    assert np.bincount(labels[correct]).min() >= 12
    few = further_examples(labels, predicted, shown, 30)
    cells = [(labels[i], predicted[i]) for i in (*few, *shown)]
    counts = [cells.count((row, column)) for row in range(4) for column in range(4)]
    assert len(few) == 30
    assert max(counts) - min(counts) <= 1


def unpacked(text: str, kind: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind).reshape(shape)


def test_scores_of_many_classes_are_those_of_the_best_ones() -> None:
    method = Answering(weights=[1.0, 0.5, 2.0])
    scores, labels = torch.randn(3, 40, 25), torch.arange(40) % 25
    about = described_scores(method, scores, labels)  # type: ignore[arg-type]
    values, classes = unpacked(about["values"], "<f4", 3, 40, 10), unpacked(about["classes"], "<u2", 40, 10)
    assert (about["distances"], about["count"]) == (False, 10)
    for image in range(40):
        sums = [sum(weight * float(scores[v, image, c]) for v, weight in enumerate(method.weights)) for c in range(25)]
        own = classes[image].tolist()
        assert own == sorted(own, key=lambda c: -sums[c])
        needed = {int(labels[image]), *(int(scores[v, image].argmax()) for v in range(3))}
        best = [c for c in sorted(range(25), key=lambda c: -sums[c]) if c not in needed]
        assert set(own) == needed | set(best[: 10 - len(needed)])
        for v in range(3):
            assert values[v, image].tolist() == [float(scores[v, image, c]) for c in own]


@dataclass
class Answering:
    """The part of a method that adds scores."""

    weights: list[float]

    def joined(self, scores: torch.Tensor) -> torch.Tensor:
        return (scores * torch.tensor(self.weights)[:, None, None]).sum(dim=0)


@pytest.mark.parametrize("name", METHODS)
def test_layer_embeddings_of_every_method(name: str, digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "CPU_ROWS", 100)
    network = asdict(fitting(name, NetworkSettings(**NETWORK)))
    model = Model.fresh(recipe_from({"method": name, "network": network}), digits.train, digits.class_names)
    found = layer_embeddings(model, digits.test)
    assert [layer.shape for layer in found] == [(360, size) for size in model.method.network.embedding_sizes]
    with evaluating(model.method):
        rows = model.scaling(digits.test.pixels[350:])
        if isinstance(model.method, GoodnessMethod):  # a tenth of every label
            rows.view(10, -1)[:, :10] = model.method.label_value / 10
        if isinstance(model.method, Trifecta):
            rows = torch.cat([rows, model.method.label.weight.mean(dim=0).view(1, 1, 8, 8).expand(10, -1, -1, -1)], dim=1)
        directly = list(model.method.network.embeddings(rows))
    for layer, rows in zip(found, directly, strict=True):
        np.testing.assert_allclose(layer[350:], rows.numpy(), rtol=1e-4, atol=1e-5)


def run_exits(run: Run, data: DataSet) -> list[dict[str, Any]]:
    return run.model().measure(data.test, early_exit=True)["early_exit"]


def test_facts_are_those_of_the_run(runs: list[Run], facts: list[Facts], digits: DataSet) -> None:
    for run, about in zip(runs, facts, strict=True):
        assert json.loads(json.dumps(about, allow_nan=False)) == about
        assert about["name"] == run.folder.name
        assert about["metrics"] == run.metrics
        assert about["history"] == run.history
        assert about["labels"] == digits.test.labels.tolist()
        right = np.mean(np.equal(about["labels"], about["predicted"]))
        assert right == pytest.approx(run.metrics["test_accuracy"])
        embeddings = layer_embeddings(run.model(), digits.test)
        for layer, embedding in zip(about["layers"], embeddings, strict=True):
            assert layer["fisher"] == fisher_score(embedding, digits.test.labels.numpy())
            assert np.shape(layer["map"]) == (360, 2)
        found = evaluate(run.model().method, run.model().source(digits.test))
        assert about["evaluation"] == {"images": 360, **asdict(found)}
        scores = run.model().scores(digits.test.pixels)
        values = unpacked(about["scores"]["values"], "<f4", len(scores), 360, 10)
        sign = -1 if about["is_faust"] else 1
        np.testing.assert_allclose(values, sign * scores.numpy(), rtol=1e-5, atol=1e-5)
        assert (about["scores"]["distances"], about["scores"]["classes"]) == (about["is_faust"], None)
        assert about["votes"] == scores.argmax(dim=2).tolist()
        assert about["first_votes"] == scores.cumsum(dim=0).argmax(dim=2).tolist()
    assert facts[0]["early_exit"] == run_exits(runs[0], digits)
    assert facts[1]["early_exit"] is None
    assert facts[0]["changed"] == {"network.widths": [32, 24], "network.embedding": 16} | {
        "training.epochs": 2,
        "training.batch_size": 64,
    }
    assert facts[1]["changed"]["method"] == "backprop"
    assert [about["network"] for about in facts] == ["32–24, embedding 16", "32–24"]


def test_pictures_are_the_images(facts: list[Facts], digits: DataSet) -> None:
    sheet = facts[0]["sheet"]
    whole, columns = decoded(sheet["source"]), sheet["columns"]
    for number in (0, 1, columns, 359):
        row, column = divmod(number, columns)
        tile = whole[row * 8 : row * 8 + 8, column * 8 : column * 8 + 8]
        assert (tile == digits.test.pixels[number, 0].numpy()).all()
    assert len(facts[0]["representatives"]) == 10
    for number, pictures in enumerate(facts[0]["representatives"]):
        of_class = digits.train.pixels[digits.train.labels == number, 0].numpy()
        assert any((decoded(pictures[0]) == image).all() for image in of_class)
    assert facts[1]["representatives"] == []


def test_pictures_of_photographs_fractions_and_tables() -> None:
    labels = torch.zeros(5, dtype=torch.long)
    photographs = Images(torch.randint(256, (5, 3, 40, 80), dtype=torch.uint8), labels)
    sheet = Pictures(photographs).sheet(photographs.pixels)
    assert sheet
    assert (sheet["width"], sheet["height"], sheet["columns"]) == (32, 16, 3)
    assert decoded(sheet["source"]).shape == (32, 96, 3)
    fractions = Images(torch.linspace(-1, 3, 20).view(5, 1, 2, 2), labels)
    sheet = Pictures(fractions).sheet(fractions.pixels)
    assert sheet
    assert decoded(sheet["source"])[:2, :2].tolist() == [[0, 13], [27, 40]]
    table = Images(torch.randn(5, 3, 1, 1), labels)
    assert Pictures(table).sheet(table.pixels) is None


def test_a_run_is_inspected_with_the_data_it_was_trained_on(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(FaustnetError, match="must be at least 1, got 0"):
        inspect_run(runs[0], device=CPU, data_dir=None, points=0)
    shutil.copytree(runs[0].folder, tmp_path / "half")
    (tmp_path / "half" / "model.safetensors").unlink()
    with pytest.raises(FaustnetError, match="--resume"):
        inspect_run(Run.open(tmp_path / "half"), device=CPU, data_dir=None)


def test_a_run_whose_classes_have_changed(tmp_path: Path) -> None:
    file, drawn = tmp_path / "own.npz", np.random.default_rng(0)
    arrays = {"x_train": drawn.normal(size=(64, 5)), "x_test": drawn.normal(size=(12, 5))}
    np.savez(file, y_train=np.arange(64) % 2, y_test=np.arange(12) % 2, **arrays)
    table = {"dataset": str(file), "network": NETWORK, "training": {"epochs": 1, "batch_size": 16}}
    run = library.train(table, tmp_path / "run", device="cpu")
    about = inspect_run(run, device=CPU, data_dir=None, points=7)
    assert (about["mapped"], about["sheet"], about["representatives"]) == (7, None, [])
    assert [len(layer["map"]) for layer in about["layers"]] == [7, 7]
    assert len(about["labels"]) == 12  # with those that are not in the map
    assert page_data(render_page([about]))["runs"][0]["sheet"] is None
    np.savez(file, y_train=np.arange(64) % 2 + 1, y_test=np.arange(12) % 2 + 1, **arrays)
    with pytest.raises(FaustnetError, match="must have only classes of the model"):
        inspect_run(run, device=CPU, data_dir=None)


def test_the_page_refers_to_nothing_outside(facts: list[Facts]) -> None:
    from plotly.offline import get_plotlyjs

    written = render_page(facts)
    assert written.count(get_plotlyjs()) == 1
    ours = written.replace(get_plotlyjs(), "")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\(|<link|<iframe""", ours)
    assert len(ours) < 350_000


def test_runs_on_one_data_set_share_their_pictures(facts: list[Facts]) -> None:
    data = page_data(render_page(facts))
    assert len(data["sheets"]) == 1
    assert [run["sheet"] for run in data["runs"]] == [0, 0]
    assert [run["name"] for run in page_data(render_page([facts[0], facts[0]]))["runs"]] == [
        "faust-representative",
        "faust-representative (2)",
    ]


def nasty(about: Facts) -> Facts:
    """With a name that does harm wherever it is not escaped."""
    about = deepcopy(about)
    about["class_names"][0] = about["name"] = about["dataset"] = NASTY
    about["recipe"]["dataset"] = about["changed"]["dataset"] = NASTY
    about["environment"]["processor"] = NASTY
    return about


def test_names_are_escaped(facts: list[Facts]) -> None:
    written = render_page([nasty(facts[0]), facts[1]])
    assert "</script><b>" not in written
    assert written.count("</script>") == 3
    assert "&lt;/script&gt;&lt;b&gt;&amp;&#34;&#39;%{x}" in written
    data = page_data(written)
    assert data["runs"][0]["name"] == data["runs"][0]["classes"][0] == NASTY
    undecodable = {**facts[0], "name": "run-\udcff"}
    assert "run-?" in render_page([undecodable]).encode().decode()


def test_curves_of_what_was_not_measured(facts: list[Facts]) -> None:
    about = deepcopy(facts[0])
    first, second = about["history"]
    first |= {"losses": [0.5, None], "layer_accuracy": [0.25, None], "accuracy": 0.25}
    second |= {"losses": [None, 0.125], "layer_accuracy": None, "accuracy": None}
    del second["first_layers_accuracy"]
    curves = page_data(render_page([about]))["curves"]
    assert [(curve["name"], curve["accuracy"], curve["loss"]) for curve in curves] == [
        ("all layers", [25.0, None], [None, None]),
        ("layer 1", [25.0, None], [0.5, None]),
        ("layer 2", [None, None], [None, 0.125]),
    ]


def test_curves_of_a_method_with_a_read_out(facts: list[Facts]) -> None:
    about = deepcopy(facts[0])
    about["metrics"]["voters"] = ["read-out"]
    for epoch in about["history"]:
        epoch |= {"losses": [0.5, 0.25], "layer_accuracy": [0.75]}
    curves = page_data(render_page([about]))["curves"]
    assert [(curve["name"], curve["accuracy"], curve["loss"]) for curve in curves] == [
        ("layer 1", [None, None], [0.5, 0.5]),
        ("layer 2", [None, None], [0.25, 0.25]),
        ("read-out", [75.0, 75.0], [None, None]),
    ]


def test_a_page_needs_runs_and_plotly(facts: list[Facts], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FaustnetError, match="A report needs at least one folder"):
        render_page([])
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(FaustnetError, match=re.escape("pip install 'faustnet[report]'")):
        render_page(facts)


def cells(written: str, section: str) -> list[list[str]]:
    """The texts of the tables in a section, row by row."""
    inside = re.search(rf'<section id="{section}">(.*?)</section>', written, re.DOTALL)
    assert inside
    rows = [row for table in inside[1].split("<tbody>")[1:] for row in table.partition("</table>")[0].split("<tr>")[1:]]
    return [[html.unescape(re.sub("<.*?>", "", cell)).strip() for cell in re.split("<t[hd][^>]*>", row)[1:]] for row in rows]


def test_the_page_has_the_accuracy_of_layers_and_classes(facts: list[Facts]) -> None:
    written = render_page(facts[:1])
    found = facts[0]["evaluation"]
    alone, together = (
        [f"{100 * value:.2f}%" for value in found[key]] for key in ("layer_accuracy", "first_layers_accuracy")
    )
    assert cells(written, "layers")[:2] == [
        ["layer 1", alone[0], "{1}", together[0]],
        ["layer 2", alone[1], "{1, 2}", together[1]],
    ]
    for line, row in zip(facts[0]["early_exit"], cells(written, "layers")[2:], strict=True):
        margin = "never" if line["threshold"] is None else f"{line['threshold']:.2f}"
        leaving = " ".join(f"{100 * share:.2f}" for share in line["leaving"])
        assert row == [margin, f"{100 * line['accuracy']:.2f}%", f"{100 * line['saved']:.2f}%", leaving]
    for number, row in enumerate(cells(written, "classes")):
        counts = found["confusion"][number]
        wrong = [0 if other == number else count for other, count in enumerate(counts)]
        error = f"{wrong.index(max(wrong))} ({max(wrong)})" if max(wrong) else ""
        assert row == [str(number), str(sum(counts)), f"{100 * counts[number] / sum(counts):.2f}%", "", error]


def test_the_page_leaves_out_what_a_method_does_not_have(facts: list[Facts]) -> None:
    written = render_page(facts[1:])
    for name in ("faust", "layers"):
        assert f'<section id="{name}">' in render_page(facts)
        assert f'<section id="{name}">' not in written
    assert "FAUST" not in re.sub("<(script|style).*?</(script|style)>", "", written, flags=re.DOTALL)
    assert 'id="early-exit"' not in written


def test_the_page_says_what_faust_is_in_two_sentences_and_a_figure(facts: list[Facts]) -> None:
    section = re.search('<section id="faust">(.*?)</section>', render_page(facts), re.DOTALL)
    assert section
    paragraph = re.search("<p>(.*?)</p>", section[1], re.DOTALL)
    assert paragraph
    assert len(re.findall(r"[.!?](\s|$)", paragraph[1])) == 2
    assert re.findall("<b>(.*?)</b>", section[1]) == ["image", "layer 1", "layer 2", "answer"]
    deep = deepcopy(facts[0])
    deep["layers"] = deep["layers"][:1] * 5
    assert re.findall("<b>(.*?)</b>", render_page([deep])) == ["image", "layer 1", "layer 2", "layer 5", "answer"]


def test_how_to_cite_is_the_citation_file(facts: list[Facts]) -> None:
    file = (Path(__file__).parents[1] / "CITATION.cff").read_text(encoding="utf-8")
    names = re.findall(r"given-names: (.*)\n\s+family-names: (.*)", file)
    assert tuple(" ".join(name) for name in names) == citation.PAPER_AUTHORS
    assert f'title: "{citation.TITLE}"' in file
    assert f"title: {citation.PAPER}\n" in file
    assert f"name: {citation.AUTHORS}\n" in file
    page = html.unescape(render_page(facts))
    assert "@article{faust," in page
    assert "  author = {James Gong and Raymond Luo and" in page
    alone = html.unescape(render_page(facts[1:]))
    assert "@software{faustnet," in alone
    assert "@article" not in alone


def test_a_report_on_other_images_is_about_them(runs: list[Run], digits: DataSet, tmp_path: Path) -> None:
    half = digits.test.take(torch.arange(150))
    arrays = {"x_train": half.pixels.numpy(), "y_train": half.labels.numpy()}
    np.savez(tmp_path / "half.npz", **arrays, x_test=half.pixels.numpy(), y_test=half.labels.numpy())
    about = inspect_run(runs[0], device=CPU, data_dir=None, points=5, dataset=str(tmp_path / "half.npz"))
    found = asdict(evaluate(runs[0].model().method, runs[0].model().source(half)))
    assert about["evaluation"] == {"images": 150, **found}
    assert about["metrics"]["test_accuracy"] == found["accuracy"] != runs[0].metrics["test_accuracy"]
    assert about["metrics"]["confusion"] == found["confusion"]
    assert "after training was" not in render_page([about])


def test_the_page_says_if_the_test_images_have_changed(facts: list[Facts]) -> None:
    about = deepcopy(facts[0])
    assert "after training was" not in render_page([about])
    about["metrics"]["test_accuracy"] = 0.5
    written = " ".join(render_page([about]).split())
    assert "The test accuracy of faust-representative after training was 50.00%." in written
    assert f"accuracy on them is {100 * about['evaluation']['accuracy']:.2f}%." in written


def test_a_class_without_test_images_and_one_without_errors() -> None:
    found = by_class([[3, 0, 1], [0, 0, 0], [0, 0, 5]], ["a", "b", "c"])
    assert [(one.name, one.images, one.accuracy, one.confused_with) for one in found] == [
        ("a", 4, 0.75, "c"), ("b", 0, None, None), ("c", 5, 1.0, None),
    ]  # fmt: skip
    assert first_layers(5) == ["{1}", "{1, 2}", "{1, 2, 3}", "{1–4}", "{1–5}"]


def test_every_chart_is_written_as_svg_and_pdf(facts: list[Facts], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    some = [nasty(facts[0]), facts[1]]
    some[0]["layers"][0]["fisher"] = None
    names = []
    for name, figure in draw_charts(some):
        names.append(name)
        svg, pdf = save(figure, tmp_path, name, ("svg", "pdf"))
        assert pdf.read_bytes().startswith(b"%PDF")
        drawn = {element.text for element in ElementTree.parse(svg).iter() if element.tag.endswith("text")}
        found = some[int(name[0]) - 1]["evaluation"] if name[0] in "12" else None
        if "-confusion" in name and found:
            assert {str(count) for row in found["confusion"] for count in row if count} <= drawn
        if "-classes" in name and found:
            assert {f"{100 * row[i] / sum(row):.2f}" for i, row in enumerate(found["confusion"])} <= drawn
        if "-layers" in name and found:
            assert {f"{100 * value:.2f}" for value in found["first_layers_accuracy"]} <= drawn
        if name == "accuracy":
            assert {"backprop, output", f"{NASTY}, layer 1"} <= drawn
    both = ["embeddings", "confusion", "classes"]
    expected = [
        "accuracy",
        "loss",
        "1-layers",
        "1-early-exit",
        *(f"1-{name}" for name in both),
        *(f"2-{name}" for name in both),
    ]
    assert names == expected


def test_a_report_says_what_it_does(faustnet: Callable[..., Answer], runs: list[Run], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    folder, page = runs[1].folder, tmp_path / "page.html"
    answer = faustnet("report", folder, "--out", page, "--images", 20, "--charts", tmp_path / "charts")
    assert answer.code == 0
    assert [line for line in answer.err.splitlines() if line.startswith(str(folder))] == [
        f"{folder}: reading the model and the data",
        f"{folder}: predicting 360 test images",
        f"{folder}: drawing the map of layer 1 of 2",
        f"{folder}: drawing the map of layer 2 of 2",
    ]
    files = {
        f"{name}.{kind}" for name in ("accuracy", "loss", "embeddings", "confusion", "classes") for kind in ("svg", "pdf")
    }
    assert {path.name for path in (tmp_path / "charts").iterdir()} == files
    refused = faustnet("report", folder, "--out", page, "--charts", page)
    assert refused.code == 2
    assert f"--charts must be a folder, got the file {page}." in refused.sentence


def test_a_report_of_no_run_says_so(faustnet: Callable[..., Answer], tmp_path: Path) -> None:
    answer = faustnet("report", tmp_path / "none")
    assert answer.code == 2
    assert f"{tmp_path / 'none'} is not a run folder" in answer.sentence
