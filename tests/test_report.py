"""What is found out about finished runs, and the page that shows it, in a real browser."""

import base64
import io
import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from faustnet.nn.architectures import NetworkSettings
from faustnet.report.page import render_page
from faustnet.runs.analysis import Pictures, balanced_sample, fisher_score, inspect_run, layer_embeddings, tsne
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.training import evaluation
from faustnet.training.evaluation import evaluating

CPU = torch.device("cpu")
NETWORK = {"widths": [32, 24], "embedding": 16}
NASTY = "</script><b>&\"'%{x}\u2028"
Facts = dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    table = {"network": NETWORK, "training": {"epochs": 2, "batch_size": 64}}
    return [
        library.train({**table, "method": name}, folder / name, device="cpu")
        for name in ("faust-representative", "backprop")
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


@pytest.mark.parametrize("name", METHODS)
def test_layer_embeddings_of_every_method(name: str, digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "CPU_CHUNK", 100)
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
    assert (len(about["labels"]), about["sheet"], about["representatives"]) == (7, None, [])
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
    assert len(ours) < 150_000


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


def test_a_report_of_no_run_says_so(faustnet: Callable[..., Answer], tmp_path: Path) -> None:
    answer = faustnet("report", tmp_path / "none")
    assert answer.code == 2
    assert f"{tmp_path / 'none'} is not a run folder" in answer.sentence


class Browser:
    """The page, opened in Chromium."""

    def __init__(self, driver: Any, file: Path):
        self.driver = driver
        driver.get(file.as_uri())
        self.wait_for(lambda: self.run("return document.getElementById('true').textContent !== ''"))

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def wait_for(self, condition: Callable[[], object]) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 30).until(lambda _: condition())

    def visible(self, plot: str) -> list[bool]:
        """Which curves Plotly draws."""
        return self.run("return document.getElementById(arguments[0])._fullData.map((trace) => trace.visible)", plot)

    def shown_image(self) -> list[list[int]]:
        """The red of the enlarged picture."""
        rows = self.run(
            """const canvas = document.getElementById("picture");
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return [canvas.width, Array.from(pixels).filter((_, i) => i % 4 === 0)];"""
        )
        width, values = rows
        return np.reshape(values, (-1, width)).tolist()

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not chromedriver:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = "headless=new no-sandbox disable-gpu no-first-run disable-background-networking disable-component-update"
    for flag in (*flags.split(), "disable-sync", f"user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(f"--{flag}")
    options.add_argument("--window-size=1300,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver: Any, facts: list[Facts], tmp_path: Path) -> Iterator[Browser]:
    """Both runs in one page; a test that made it complain fails."""
    (tmp_path / "report.html").write_text(render_page(facts), encoding="utf-8")
    browser = Browser(driver, tmp_path / "report.html")
    yield browser
    assert browser.complaints() == []
    assert browser.run("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


def test_curves_are_switched_on_and_off(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    names = browser.run("return document.getElementById('accuracy')._fullData.map((trace) => trace.name)")
    assert names == [f"faust-representative, {name}" for name in ("all layers", "layer 1", "layer 2")] + ["backprop, output"]
    assert browser.visible("accuracy") == browser.visible("loss") == [True] * 4
    browser.one("[data-curve='1']").click()
    browser.wait_for(lambda: browser.visible("accuracy") == browser.visible("loss") == [True, False, True, True])
    every = browser.one("#all-curves")
    assert every.get_property("indeterminate")
    every.send_keys(Keys.SPACE)  # without a mouse
    browser.wait_for(lambda: browser.visible("accuracy") == browser.visible("loss") == [True] * 4)
    every.send_keys(Keys.SPACE)
    browser.wait_for(lambda: browser.visible("accuracy") == browser.visible("loss") == [False] * 4)
    browser.one("[data-run='0']").click()
    browser.wait_for(lambda: browser.visible("accuracy") == browser.visible("loss") == [True, True, True, False])


def test_another_layer_and_another_run_have_another_map(browser: Browser, facts: list[Facts]) -> None:
    from selenium.webdriver.support.ui import Select

    def is_shown(layer: Facts) -> bool:
        first = [position for position, label in zip(layer["map"], facts[0]["labels"], strict=True) if label == 0]
        drawn = browser.run("const { x, y } = document.getElementById('map').data[0]; return x.map((v, i) => [v, y[i]])")
        return drawn == first and browser.one("#fisher").text == f"{layer['fisher']:#.3g}"

    assert is_shown(facts[0]["layers"][0])
    Select(browser.one("#layer")).select_by_visible_text("layer 2")
    browser.wait_for(lambda: is_shown(facts[0]["layers"][1]))
    Select(browser.one("#run")).select_by_visible_text("backprop")
    browser.wait_for(lambda: is_shown(facts[1]["layers"][1]))


def test_the_image_under_the_pointer_is_shown(browser: Browser, facts: list[Facts], digits: DataSet) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    about = facts[0]
    places = np.array(about["layers"][0]["map"])
    distances = np.linalg.norm(places[:, None] - places, axis=2) + np.diag([math.inf] * len(places))
    image = int(distances.min(axis=1)[1:].argmax()) + 1  # the loneliest but the first, which is shown at the beginning

    def is_shown(image: int) -> bool:
        classes = (about["labels"][image], about["predicted"][image])
        words = (browser.one("#true").text, browser.one("#predicted").text)
        same_picture = browser.shown_image() == digits.test.pixels[image, 0].tolist()
        return words == tuple(about["class_names"][number] for number in classes) and same_picture

    browser.wait_for(lambda: is_shown(0))
    label = about["labels"][image]
    traces = browser.driver.find_elements("css selector", "#map .scatterlayer .trace")
    points = traces[label].find_elements("css selector", ".points path")
    point = points[sum(1 for other in about["labels"][:image] if other == label)]
    ActionChains(browser.driver).scroll_to_element(browser.one("#facts")).move_to_element(point).perform()
    browser.wait_for(lambda: is_shown(image))
    mark, under = browser.one("#mark").rect, point.rect
    for corner, size in (("x", "width"), ("y", "height")):
        assert mark[corner] + mark[size] / 2 == pytest.approx(under[corner] + under[size] / 2, abs=2)
    browser.one("#map").send_keys(Keys.ARROW_RIGHT)
    browser.wait_for(lambda: is_shown((image + 1) % len(places)))


def test_nothing_is_wider_than_a_telephone(browser: Browser) -> None:
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        fits = "const page = document.documentElement; return innerWidth === 400 && page.scrollWidth <= page.clientWidth"
        browser.wait_for(lambda: browser.run(fits))
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_harmful_names_are_only_shown(driver: Any, facts: list[Facts], tmp_path: Path) -> None:
    (tmp_path / "nasty.html").write_text(render_page([nasty(facts[0])]), encoding="utf-8")
    browser = Browser(driver, tmp_path / "nasty.html")
    assert browser.run("return document.querySelectorAll('b').length") == 0
    assert browser.run("return document.querySelector('#map .legendtext').textContent") == NASTY
    assert browser.run("return document.querySelector('.confusion tbody th').textContent") == NASTY
    assert browser.complaints() == []
