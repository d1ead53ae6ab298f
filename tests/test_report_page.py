"""The page of a report in a real browser: what is shown, and what a click and the arrow keys do."""

import html
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import faustnet as library
from browser import messages, set_width
from faustnet.data import DataSet
from faustnet.report.page import render_page
from faustnet.runs.analysis import inspect_run
from faustnet.runs.folder import Run

CPU = torch.device("cpu")
NASTY = "</script><b>&\"'%{x}\u2028"
MAPPED = 150  # of 360 test images
Facts = dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    networks = {"faust-representative": {"widths": [32, 24], "embedding": 16}, "backprop": {"widths": [32, 24]}}
    table = {"training": {"epochs": 2, "batch_size": 64}}
    return [
        library.train({**table, "method": name, "network": network}, folder / name, device="cpu")
        for name, network in networks.items()
    ]


@pytest.fixture(scope="module")
def facts(runs: list[Run]) -> list[Facts]:
    return [inspect_run(run, device=CPU, data_dir=None, points=MAPPED) for run in runs]


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

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def wait_for(self, condition: Callable[[], object]) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 30, poll_frequency=0.02).until(lambda _: condition())

    def press(self, key: str) -> None:
        """A key, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        ActionChains(self.driver, duration=0).send_keys(getattr(Keys, key)).perform()

    def visible(self, plot: str) -> list[bool]:
        """Which curves Plotly draws."""
        return self.run("return document.getElementById(arguments[0])._fullData.map((trace) => trace.visible)", plot)

    def pixels(self, canvas: Any) -> list[list[int]]:
        """The red of a picture."""
        width, values = self.run(
            """const [{ width, height }] = arguments;
            const context = Object.assign(document.createElement("canvas"), { width, height })
              .getContext("2d", { willReadFrequently: true });
            context.drawImage(arguments[0], 0, 0);
            return [width, Array.from(context.getImageData(0, 0, width, height).data).filter((_, i) => i % 4 === 0)];""",
            canvas,
        )
        return np.reshape(values, (-1, width)).tolist()

    def selected(self) -> int:
        """The position of the selected image in the test set."""
        return int(self.text("#which").split()[-1].replace(",", "")) - 1

    def gallery(self) -> list[int]:
        return self.run("return [...document.querySelectorAll('#gallery button')].map((one) => Number(one.dataset.image))")

    def cell(self, run: int, row: int, column: int) -> Any:
        return self.run(
            "return document.querySelectorAll('.confusion')[arguments[0]].tBodies[0].rows[arguments[1]].cells[arguments[2]]",
            run, row, column + 1,
        )  # fmt: skip

    def scores(self) -> list[list[str]]:
        rows = "[...document.querySelectorAll('#scores tr')]"
        return self.run(f"return {rows}.map((row) => [...row.cells].map((cell) => cell.textContent))")

    def resize(self, width: int) -> None:
        set_width(self.driver, width)
        self.wait_for(lambda: self.run("return innerWidth") == width)


@pytest.fixture
def browser(driver: Any, facts: list[Facts], tmp_path: Path) -> Iterator[Browser]:
    """Both runs in one page; a test fails if the page writes a message or loads anything."""
    (tmp_path / "report.html").write_text(render_page(facts), encoding="utf-8")
    browser = Browser(driver, tmp_path / "report.html")
    yield browser
    assert messages(browser.driver) == []
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


def test_accuracy_by_layer_and_early_exit_are_drawn(browser: Browser, facts: list[Facts]) -> None:
    drawn = browser.run("return document.getElementById('by-layer').data.map(({ name, y }) => [name, y])")
    found = facts[0]["evaluation"]
    assert [name for name, _ in drawn] == ["faust-representative, first layers together", "faust-representative, alone"]
    assert drawn[0][1] == pytest.approx([100 * value for value in found["first_layers_accuracy"]])
    assert drawn[1][1] == pytest.approx([100 * value for value in found["layer_accuracy"]])
    (exits,) = browser.run("return document.getElementById('early-exit').data.map(({ x, y }) => [x, y])")
    assert exits[0] == pytest.approx([100 * line["saved"] for line in facts[0]["early_exit"]])
    assert exits[1] == pytest.approx([100 * line["accuracy"] for line in facts[0]["early_exit"]])
    plots = "return [...document.querySelectorAll('.js-plotly-plot')].map((one) => one._context.toImageButtonOptions.format)"
    assert browser.run(plots) == ["svg"] * 5


def test_another_layer_and_another_run_have_another_map(browser: Browser, facts: list[Facts]) -> None:
    from selenium.webdriver.support.ui import Select

    def is_shown(layer: Facts) -> bool:
        first = [place for place, label in zip(layer["map"], facts[0]["labels"], strict=False) if label == 0]
        drawn = browser.run("const { x, y } = document.getElementById('map').data[0]; return x.map((v, i) => [v, y[i]])")
        return drawn == first and browser.one("#fisher").text == f"{layer['fisher']:.2f}"

    assert is_shown(facts[0]["layers"][0])
    assert f"The map shows {MAPPED} of 360" in browser.text("#map-note")
    Select(browser.one("#layer")).select_by_visible_text("layer 2")
    browser.wait_for(lambda: is_shown(facts[0]["layers"][1]))
    Select(browser.one("#run")).select_by_visible_text("backprop")
    browser.wait_for(lambda: is_shown(facts[1]["layers"][1]))


def test_the_image_under_the_pointer_is_shown_and_a_click_keeps_it(
    browser: Browser, facts: list[Facts], digits: DataSet
) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    about = facts[0]
    places = np.array(about["layers"][0]["map"])
    distances = np.linalg.norm(places[:, None] - places, axis=2) + np.diag([math.inf] * len(places))
    lonely = distances.min(axis=1)[1:].argsort()[::-1] + 1  # not the first image, which is shown at the beginning
    image, other = (int(number) for number in lonely[:2])

    def is_shown(image: int) -> bool:
        classes = (about["labels"][image], about["predicted"][image])
        words = (browser.one("#true").text, browser.one("#predicted").text)
        same_picture = browser.pixels(browser.one("#picture")) == digits.test.pixels[about["positions"][image], 0].tolist()
        return words == tuple(about["class_names"][number] for number in classes) and same_picture

    def point_of(image: int) -> Any:
        label = about["labels"][image]
        traces = browser.driver.find_elements("css selector", "#map .scatterlayer .trace")
        points = traces[label].find_elements("css selector", ".points path")
        return points[sum(1 for before in about["labels"][:image] if before == label)]

    browser.wait_for(lambda: is_shown(0))
    browser.run("document.getElementById('map').scrollIntoView({ block: 'center' })")
    ActionChains(browser.driver).move_to_element(point_of(image)).perform()
    browser.wait_for(lambda: is_shown(image))
    mark, under = browser.one("#mark").rect, point_of(image).rect
    for corner, size in (("x", "width"), ("y", "height")):
        assert mark[corner] + mark[size] / 2 == pytest.approx(under[corner] + under[size] / 2, abs=2)
    ActionChains(browser.driver).click().perform()
    browser.press("ARROW_RIGHT")  # after the click, without anything else
    browser.wait_for(lambda: is_shown((image + 1) % MAPPED))
    ActionChains(browser.driver).move_to_element(point_of(other)).perform()
    assert is_shown((image + 1) % MAPPED)
    browser.press("ARROW_LEFT")
    browser.wait_for(lambda: is_shown(image))
    browser.press("ESCAPE")
    ActionChains(browser.driver).move_to_element(point_of(image)).move_to_element(point_of(other)).perform()
    browser.wait_for(lambda: is_shown(other))


def test_distances_and_votes_are_those_of_the_model(browser: Browser, runs: list[Run], digits: DataSet) -> None:
    from selenium.webdriver.support.ui import Select

    for run in runs:
        Select(browser.one("#run")).select_by_visible_text(run.folder.name)
        browser.wait_for(lambda: len(browser.scores()[0]) == (2 if run is runs[1] else 4))  # noqa: B023
        model, sign = run.model(), -1 if run is runs[0] else 1
        scores = model.scores(digits.test.pixels)
        several = len(scores) > 1
        wrong = browser.gallery()[:2]
        for image in (0, MAPPED - 1, *wrong):
            browser.run("showImage(arguments[0])", image)
            position = browser.selected()
            own = scores[:, position]
            table = torch.cat([own, own.sum(dim=0, keepdim=True)]) if several else own
            head, *rows = browser.scores()
            assert head == (["class", "layer 1", "layer 2", "sum"] if several else ["class", "output"])
            for number, row in enumerate(rows[:10]):
                assert row[0] == str(number)
                assert [float(cell) for cell in row[1:]] == pytest.approx((sign * table[:, number]).tolist(), abs=0.00501)
            assert [int(vote) for vote in rows[10][1:]] == table.argmax(dim=1).tolist()
            best = "return [...document.querySelectorAll('#scores .best')].map((cell) => cell.parentElement.rowIndex - 1)"
            assert sorted(browser.run(best)) == sorted(table.argmax(dim=1).tolist())
            assert browser.text("#scores .truth") == str(digits.test.labels[position].item())
            if several:
                assert rows[11] == ["first layers", "{1}", "{1, 2}"]
                assert [int(vote) for vote in rows[12][1:]] == own.cumsum(dim=0).argmax(dim=1).tolist()
        note = browser.text("#scores-note")
        assert ("Distance to the reference" in note) == several
        assert ("larger is better" in note) != several


def test_a_click_on_a_cell_of_the_confusion_shows_its_images(
    browser: Browser, facts: list[Facts], runs: list[Run], digits: DataSet
) -> None:
    predicted = runs[0].model().method.predict(runs[0].model().source(digits.test).plain(torch.arange(360)))
    confusion = torch.zeros(10, 10, dtype=torch.long)
    for truth, answer in zip(digits.test.labels, predicted, strict=True):
        confusion[truth, answer] += 1
    errors = confusion.clone().fill_diagonal_(0)
    row, column = divmod(int(errors.argmax()), 10)
    assert int(browser.cell(0, row, column).text) == errors.max()
    browser.cell(0, row, column).click()
    expected = ((digits.test.labels == row) & (predicted == column)).nonzero().flatten().tolist()
    positions = facts[0]["positions"]
    assert sorted(positions[image] for image in browser.gallery()) == expected
    assert browser.text("#gallery-title") == f"True class {row}, predicted {column} of faust-representative"
    assert browser.text("#gallery-note") == f"{len(expected)} images."
    for image, canvas in zip(
        browser.gallery(), browser.driver.find_elements("css selector", "#gallery canvas"), strict=True
    ):
        drawn = digits.test.pixels[positions[image], 0].tolist()
        browser.wait_for(lambda: browser.pixels(canvas) == drawn)  # noqa: B023
    assert browser.selected() == positions[browser.gallery()[0]]

    step, neighbour = ("ARROW_RIGHT", column + 1) if column < 9 else ("ARROW_LEFT", column - 1)
    browser.press(step)
    title = f"True class {row}, predicted {neighbour} of faust-representative"
    browser.wait_for(lambda: browser.text("#gallery-title") == title)
    shown, count = len(browser.gallery()), int(confusion[row, neighbour])
    assert shown == count or (row == neighbour and 0 < shown < count)
    browser.cell(1, 3, 3).click()
    browser.wait_for(lambda: browser.text("#gallery-title") == "True class 3, predicted 3 of backprop")
    assert browser.one("#run").get_property("value") == "1"
    assert {(facts[1]["labels"][i], facts[1]["predicted"][i]) for i in browser.gallery()} == {(3, 3)}
    browser.one("#all-wrong").click()
    assert browser.text("#gallery-title") == "Wrong answers of backprop"


def test_the_gallery_has_all_wrong_answers_and_arrow_keys(browser: Browser, facts: list[Facts], runs: list[Run]) -> None:
    about = facts[0]
    wrong = [i for i, (truth, answer) in enumerate(zip(about["labels"], about["predicted"], strict=True)) if truth != answer]
    total = round(360 * (1 - runs[0].metrics["test_accuracy"]))
    assert len(wrong) == total > 60
    assert browser.text("#gallery-note").startswith(f"{total} images, ")
    assert len(browser.gallery()) == 60
    browser.one("#more").click()
    assert sorted(browser.gallery()) == wrong
    first, second = browser.gallery()[:2]
    browser.one("#gallery button").click()
    assert browser.selected() == about["positions"][first]
    browser.press("ARROW_RIGHT")
    assert browser.selected() == about["positions"][second]
    browser.press("ARROW_DOWN")
    browser.press("ARROW_UP")
    assert browser.selected() == about["positions"][second]
    assert browser.run("return document.activeElement.dataset.image") == str(second)
    names = [about["class_names"][about[key][second]] for key in ("labels", "predicted")]
    assert browser.text(f"#gallery [data-image='{second}'] .names") == " → ".join(names)


def test_nothing_is_wider_than_the_window(browser: Browser) -> None:
    fits = "const page = document.documentElement; return page.scrollWidth <= page.clientWidth"
    before = "return document.getElementById('selected').previousElementSibling.className || 'a view'"
    try:
        for width, place in ((1400, "views"), (400, "a view")):  # beside the views, or below what was clicked
            browser.resize(width)
            browser.wait_for(lambda: browser.run(fits))
            browser.run("arguments[0].click()", browser.cell(0, 1, 1))
            assert browser.run(fits)
            assert browser.run(before) == place
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_texts_tables_and_methods_without_references(driver: Any, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="texts need tokenizers")
    words = [f"{'good' if number % 2 else 'bad'} film {number % 7}\t{'yes' if number % 2 else 'no'}" for number in range(60)]
    (tmp_path / "texts.tsv").write_text("text\tlabel\n" + "\n".join(words) + "\n", encoding="utf-8")
    rows = np.random.default_rng(0).normal(size=(64, 5))
    parts = {"x_train": rows, "y_train": np.arange(64) % 2, "x_test": rows[:12], "y_test": np.arange(12) % 2}
    np.savez(tmp_path / "table.npz", **parts)
    dense = {"widths": [16, 12], "embedding": 8}
    tables: list[dict[str, Any]] = [
        {"dataset": str(tmp_path / "texts.tsv"), "network": {**dense, "kind": "transformer", "widths": [8, 8], "heads": 2}},
        {"dataset": str(tmp_path / "table.npz"), "method": "faust-prototype", "network": dense},
        {"dataset": "digits", "method": "forward-forward", "network": {"widths": [16, 12]}},
    ]
    found = []
    for number, table in enumerate(tables):
        run = library.train({**table, "training": {"epochs": 1, "batch_size": 16}}, tmp_path / str(number), device="cpu")
        found.append(inspect_run(run, device=CPU, data_dir=None, points=40))
    (tmp_path / "report.html").write_text(render_page(found), encoding="utf-8")
    browser = Browser(driver, tmp_path / "report.html")
    kinds = (("text", True), ("row", True), ("image", False))
    for number, (about, (kind, distances)) in enumerate(zip(found, kinds, strict=True)):
        truth, answer = about["labels"][0], about["predicted"][0]
        browser.run("arguments[0].click()", browser.cell(number, truth, answer))
        browser.wait_for(lambda: browser.one("#run").get_property("value") == str(number))  # noqa: B023
        (shown, *_), title = browser.gallery(), f"Test {kind} {about['positions'][0] + 1}"
        assert (shown, browser.text("#which")) == (0, title)
        assert browser.text("#text") == (about["texts"][0] if kind == "text" else "")
        assert browser.one("#picture").is_displayed() == (kind == "image")
        assert ("Distance" in browser.text("#scores-note")) == distances
        assert browser.scores()[0] == ["class", "layer 1", "layer 2", "sum"]
        label = browser.text("#gallery button")
        assert label.startswith(about["texts"][0] if kind == "text" else "row 1" if kind == "row" else "")
    assert len(browser.run("return document.getElementById('early-exit').data")) == 2  # not forward-forward
    assert messages(browser.driver) == []


def test_harmful_names_are_only_shown(driver: Any, facts: list[Facts], tmp_path: Path) -> None:
    about = deepcopy(facts[0])
    about["class_names"][0] = about["name"] = about["dataset"] = NASTY
    written = render_page([about])
    (tmp_path / "nasty.html").write_text(written, encoding="utf-8")
    browser = Browser(driver, tmp_path / "nasty.html")
    bold = ["image", "layer 1", "layer 2", "answer"]
    assert browser.run("return [...document.querySelectorAll('b')].map((one) => one.textContent)") == bold
    assert html.escape("</script><b>") in written
    for selector in ("#map .legendtext", ".confusion tbody th", "#scores tbody th", ".by-class tbody th"):
        assert browser.text(selector).strip() == NASTY.strip()
    assert messages(browser.driver) == []
