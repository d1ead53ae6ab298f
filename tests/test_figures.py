# ruff: noqa: E402 (nothing of matplotlib is imported before it is known to be there)
import itertools
import random
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

matplotlib = pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install 'faustnet[figures]'")

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from faustnet.errors import FaustnetError
from faustnet.report.figures import CLASS_COLOURS, figure1, figure2, figure3, save


def architecture(widths: Iterable[int], embedding: int = 256, **facts: Any) -> dict[str, Any]:
    facts = {"inputs": 784, "input_shape": [1, 28, 28], "references": 10, **facts}
    before, layers = facts["inputs"], []
    for width in widths:
        layers.append({"inputs": before, "width": width, "embedding": embedding})
        before = width
    return {**facts, "layers": layers}


ARCHITECTURES = {
    "the paper's": architecture([500, 500, 500]),
    "one layer": architecture([500]),
    "six layers": architecture([1000, 800, 600, 400, 200, 100], 64, inputs=3072, input_shape=[3, 32, 32]),
    "no projection": architecture([500, 300], 0),
    "large numbers": architecture([10_000] * 2, 10_000, inputs=150_528, input_shape=[3, 224, 224], references=50_000),
}


def scatter(classes: int, layers: int = 2, points: int = 20) -> dict[str, Any]:
    generator = random.Random(0)
    labels = [number % classes for number in range(classes * points)]
    return {
        "class_names": [f"class {number}" for number in range(classes)],
        "labels": labels,
        "layers": [
            {"points": [[generator.gauss(5 * label), generator.gauss()] for label in labels], "fisher": 2.974 + number}
            for number in range(layers)
        ],
    }


def curves(*panels: dict[str, list[float | None]], std: float | None = 0.5) -> dict[str, Any]:
    return {
        "panels": [
            {
                "title": f"method {number}",
                "curves": [
                    {"label": label, "epochs": list(range(1, len(mean) + 1)), "mean": mean, "std": [std] * len(mean)}
                    for label, mean in lines.items()
                ],
            }
            for number, lines in enumerate(panels)
        ]
    }


DRAWN = [
    pytest.param(figure1, ARCHITECTURES["the paper's"], id="figure 1"),
    pytest.param(figure2, scatter(10), id="figure 2"),
    pytest.param(figure2, scatter(10, points=300), id="figure 2, many points"),
    pytest.param(figure3, curves({"{1}": [30.0, 40.0], "{1,2}": [35.0, 45.0]}, {"{1,2}": [50.0, 55.0]}), id="figure 3"),
]


def drawn_texts(figure: Figure) -> list[Text]:
    """All words but the numbers of the axes, which are there beyond the axes' ends as well."""
    FigureCanvasAgg(figure).draw()
    numbers = {text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in axis.get_ticklabels()}
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in numbers]


def words_in(svg: Path) -> set[str]:
    return {"".join(text.itertext()) for text in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")}


def assert_legible(figure: Figure) -> None:
    """No words lie on others or outside, and none are too small to read on paper."""
    texts = drawn_texts(figure)
    boxes = {text: text.get_window_extent() for text in texts}
    for one, other in itertools.combinations(texts, 2):
        assert not boxes[one].overlaps(boxes[other]), (one.get_text(), other.get_text())
    width, height = figure.get_size_inches() * figure.dpi
    assert width / figure.dpi * 2.54 == pytest.approx(16)
    for text, box in boxes.items():
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) >= 0, text.get_text()
        assert text.get_fontsize() >= 7


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_architecture_shows_every_size_and_is_legible(name: str) -> None:
    facts = ARCHITECTURES[name]
    layers = facts["layers"]
    figure = figure1(facts)
    assert_legible(figure)
    texts = drawn_texts(figure)
    words = [text.get_text() for text in texts]

    def after(start: str) -> list[str]:
        return [text.removeprefix(start) for text in words if text.startswith(start)]

    assert after("linear, ReLU, layer norm\n") == [f"{layer['inputs']} → {layer['width']}" for layer in layers]
    assert after("projection\n") == [f"{layer['width']} → {layer['embedding']}" for layer in layers if layer["embedding"]]
    assert after("embedding\n") == [str(layer["embedding"] or layer["width"]) for layer in layers]
    assert after("distances to\n") == [f"{facts['references']} references"] * len(layers)
    passed_on = [text for text in words if text.endswith("values, stop gradient")]
    assert [int(text.split()[0]) for text in passed_on] == [layer["inputs"] for layer in layers[1:]]
    frames = [rectangle.get_window_extent() for rectangle in figure.axes[0].findobj(Rectangle) if rectangle.get_linewidth()]
    boxed = 0
    for text in texts:
        box = text.get_window_extent()
        x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        around = [frame for frame in frames if frame.contains(x, y) and frame.width < 2 * figure.dpi]  # boxes, not layers
        for frame in around:
            assert frame.contains(box.x0, box.y0), text.get_text()
            assert frame.contains(box.x1, box.y1), text.get_text()
        boxed += bool(around)
    assert boxed == sum(4 if layer["embedding"] else 3 for layer in layers) + 1


@pytest.mark.parametrize("classes", [2, 10, 14])
def test_every_point_has_the_colour_of_its_class_and_classes_differ(classes: int) -> None:
    facts = scatter(classes)
    figure = figure2(facts)
    for panel, layer in zip(figure.axes, facts["layers"], strict=True):
        found = {
            tuple(point): to_rgb(collection.get_facecolor()[0])
            for collection in panel.collections
            for point in collection.get_offsets().tolist()
        }
        assert len(found) == len(facts["labels"])
        for point, label in zip(layer["points"], facts["labels"], strict=True):
            assert found[tuple(point)] == pytest.approx(to_rgb(CLASS_COLOURS[label % 10]))
        looks = {(to_rgb(c.get_facecolor()[0]), c.get_paths()[0].vertices.tobytes()) for c in panel.collections}
        assert len(looks) == classes


@pytest.mark.parametrize(("classes", "layers"), [(2, 1), (10, 3), (10, 4), (14, 5)])
def test_the_scatter_is_legible_and_says_each_layers_score(classes: int, layers: int) -> None:
    figure = figure2(scatter(classes, layers))
    assert_legible(figure)
    words = [text.get_text() for text in drawn_texts(figure)]
    for number in range(layers):
        assert f"Layer {number + 1}" in words
        assert f"F = {2.974 + number:.2f}" in words
    for number in range(classes):
        assert words.count(f"class {number}") == 1


def test_any_class_name_is_shown_as_it_is(tmp_path: Path) -> None:
    names = ["_hidden", "$5 and $6", "a class whose name is a good deal longer than others"]
    figure = figure2({**scatter(3), "class_names": names})
    assert_legible(figure)
    _, svg = save(figure, tmp_path, "figure")
    assert set(names) <= words_in(svg)


def test_curves_hold_the_means_that_are_known() -> None:
    figure = figure3(
        curves({"{1}": [30.0, None, 42.0], "{1,2}": [None, 44.0, 45.0], "{3}": [None, None, None]}, {"{1,2}": [50.0]})
    )
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["{1}", "{1,2}"]
    assert [line.get_xydata().tolist() for line in left.lines] == [[[1, 30], [3, 42]], [[2, 44], [3, 45]]]
    assert left.lines[1].get_color() == right.lines[0].get_color() != left.lines[0].get_color()
    assert left.lines[1].get_linestyle() == right.lines[0].get_linestyle()
    assert left.get_ylim() == right.get_ylim()
    assert_legible(figure)


def test_a_band_is_drawn_where_seeds_differ() -> None:
    lines: dict[str, list[float | None]] = {"{1}": [30.0, 40.0]}
    (band,) = figure3(curves(lines, std=2.0)).axes[0].collections
    assert band.get_paths()[0].get_extents().intervaly.tolist() == [28, 42]
    for std in (None, 0.0):
        assert not figure3(curves(lines, std=std)).axes[0].collections


@pytest.mark.parametrize(("draw", "facts"), DRAWN)
def test_the_same_facts_make_the_same_files_whatever_the_users_style(
    draw: Any, facts: dict[str, Any], tmp_path: Path
) -> None:
    first = save(draw(facts), tmp_path / "first", "figure")
    with matplotlib.rc_context({"font.size": 20, "svg.fonttype": "path", "lines.linewidth": 9, "axes.facecolor": "red"}):
        second = save(draw(facts), tmp_path / "second", "figure")
    assert [path.name for path in first] == ["figure.png", "figure.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize(("draw", "facts"), DRAWN)
def test_files_are_whole_and_their_words_are_text(draw: Any, facts: dict[str, Any], tmp_path: Path) -> None:
    figure = draw(facts)
    png, svg = save(figure, tmp_path, "figure")
    with Image.open(png) as image:
        image.load()
        assert image.width == pytest.approx(16 / 2.54 * 200, abs=1)
    assert {line for text in drawn_texts(figure) for line in text.get_text().split("\n")} <= words_in(svg)


def test_facts_that_show_nothing_and_folders_that_take_nothing_are_refused(tmp_path: Path) -> None:
    for draw, facts in (
        (figure1, architecture([])),
        (figure2, scatter(2, layers=0)),
        (figure3, curves()),
        (figure3, curves({"{1}": [None]})),
    ):
        with pytest.raises(FaustnetError, match="at least one"):
            draw(facts)
    (tmp_path / "file").touch()
    with pytest.raises(FaustnetError, match="choose another folder"):
        save(figure1(ARCHITECTURES["one layer"]), tmp_path / "file", "figure")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FaustnetError, match=r"pip install 'faustnet\[figures\]'"):
        figure1(ARCHITECTURES["one layer"])
