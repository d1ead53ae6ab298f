"""The page that runs a model: the same numbers as PyTorch's, and what a person does with it, in a real browser."""

import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import faustnet as library
from browser import messages, set_width
from conftest import Answer
from faustnet.data import DataSet, Images, Tokeniser, load_data
from faustnet.errors import FaustnetError
from faustnet.methods.faust import FaustRepresentative
from faustnet.play.drawing import Drawing
from faustnet.play.page import PageModel, render_play
from faustnet.runs.folder import Run
from faustnet.runs.model import Model
from faustnet.runs.recipes import recipe_from
from faustnet.system.randomness import seeded
from faustnet.training.evaluation import evaluating

Command = Callable[..., Answer]
FIXTURES = Path(__file__).parent / "fixtures" / "0.1"
NASTY = "</script><b>&\"'`${x}\u2028"
STAR = [[0.5, 0.2], [0.33, 0.8], [0.78, 0.42], [0.22, 0.42], [0.67, 0.8], [0.5, 0.2]]
VGG = {"kind": "vgg", "widths": [8, 12], "pools": [1, 2], "head": 12, "embedding": 16}
VARIANTS: dict[str, dict[str, Any]] = {
    "several representatives": {"options": {"representatives": 3}, "network": {"length": "unit"}},
    "mirror images and weights": {"network": VGG, "prediction": {"mirror": True, "weights": [0.0, 2.0]}},
    "prototypes, learned length": {
        "method": "faust-prototype", "options": {"prototypes": 2}, "network": {"length": "learned", "norm": "batch"},
    },
    "prototypes, free length": {"method": "faust-prototype", "network": {"passes_on": "embedding"}},
    "centroids, no projection": {"method": "faust-centroid", "network": {"embedding": 0}, "prediction": {"layers": "last"}},
    "vanilla, no head": {"method": "faust-tuplet", "network": {**VGG, "kind": "residual", "head": 0}},
    "odd sizes": {"network": {**VGG, "widths": [3, 5, 7], "pools": [2], "head": 2, "embedding": 1}},
}  # fmt: skip


def ready_model(data: DataSet, table: dict[str, Any]) -> Model:
    """With random weights, and references and statistics from the data."""
    table = {"dataset": data.name, **table, "network": {"widths": [24, 20], "embedding": 16, **table.get("network", {})}}
    some = data.train.take(torch.arange(min(300, len(data.train))))
    model = Model.fresh(recipe_from(table), some, data.class_names)
    source = model.source(some)
    with seeded(0):
        model.method.start(source)
    with evaluating(model.method):
        model.method.make_ready(source)
    return model


class Page:
    """A page of play, opened in Chromium."""

    def __init__(self, driver: Any, content: str, folder: Path):
        self.driver = driver
        file = folder / "play.html"
        file.write_text(content, encoding="utf-8")
        driver.get(file.as_uri())
        self.wait_for("document.getElementById('check').textContent !== ''")

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, identifier: str) -> str:
        return self.run("return document.getElementById(arguments[0]).textContent", identifier)

    def wait_for(self, condition: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 30, poll_frequency=0.02).until(lambda _: self.run(f"return {condition}"))

    def send(self, pixels: torch.Tensor) -> None:
        """Put images, (n, …), into the page, as the list `sent`."""
        encoded = base64.b64encode(pixels.contiguous().numpy().tobytes()).decode()
        script = """const all = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0));
        const size = all.length / arguments[1];
        window.sent = Array.from({ length: arguments[1] }, (_, i) => all.subarray(i * size, (i + 1) * size));"""
        self.run(script, encoded, len(pixels))

    def predict(self) -> list[list[dict[str, Any]]]:
        """What the page says of the images sent, layer by layer."""
        return json.loads(self.run("return JSON.stringify(sent.map((pixels) => play.model.predict(pixels)))"))

    def draw(self, line: list[list[float]]) -> None:
        """By synthetic pointer events."""
        script = """const pad = document.getElementById("pad"), { left, top, width } = pad.getBoundingClientRect();
        const at = (kind, [x, y]) => pad.dispatchEvent(new PointerEvent(kind, {
          bubbles: true, pointerId: 1, button: 0, clientX: left + x * width, clientY: top + y * width }));
        at("pointerdown", arguments[0][0]);
        for (const point of arguments[0]) at("pointermove", point);
        at("pointerup", arguments[0].at(-1));"""
        self.run(script, line)

    def draw_really(self, line: list[list[float]], *, touch: bool) -> None:
        """By the browser's own mouse or finger."""
        self.run("document.getElementById('pad').scrollIntoView({ block: 'center' })")
        found = self.run("const { left, top, width } = document.getElementById('pad').getBoundingClientRect(); "
                         "return [left, top, width]")  # fmt: skip
        points = [{"x": found[0] + x * found[2], "y": found[1] + y * found[2]} for x, y in line]
        kinds = ("touchStart", "touchMove", "touchEnd") if touch else ("mousePressed", "mouseMoved", "mouseReleased")
        for kind, some in zip(kinds, (points[:1], points, points[-1:]), strict=True):
            for point in some:
                if touch:
                    event = {"type": kind, "touchPoints": [] if kind == "touchEnd" else [point]}
                    self.driver.execute_cdp_cmd("Input.dispatchTouchEvent", event)
                else:
                    event = {"type": kind, "button": "left", "buttons": 1, "clickCount": 1, **point}
                    self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def resize(self, width: int) -> None:
        set_width(self.driver, width)
        self.wait_for(f"innerWidth === {width}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    table = {"network": {"widths": [64, 64], "embedding": 32}, "training": {"epochs": 8, "batch_size": 64}}
    return library.train(table, tmp_path_factory.mktemp("runs") / "digits", device="cpu")


@pytest.fixture(scope="module")
def written(run: Run, digits: DataSet) -> str:
    return render_play(PageModel.of(run.model()), digits)


@pytest.fixture
def page(driver: Any, written: str, tmp_path: Path) -> Iterator[Page]:
    """A test that made the page complain, or load something, fails."""
    page = Page(driver, written, tmp_path)
    yield page
    assert messages(page.driver) == []
    assert page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


def check_scores(found: list[list[dict[str, Any]]], model: Model, pixels: torch.Tensor) -> None:
    """Every layer's distances and vote, and the answer of all, are PyTorch's."""
    scores = model.scores(pixels)
    distances = [[layer["distances"] for layer in image] for image in found]
    np.testing.assert_allclose(distances, -scores.transpose(0, 1).numpy(), rtol=0, atol=1e-3)
    assert [[layer["vote"] for layer in image] for image in found] == scores.argmax(dim=2).T.tolist()
    assert [image[-1]["so_far"] for image in found] == model.method.joined(scores).argmax(dim=1).tolist()


@pytest.fixture(scope="module")
def mnist(large_data: Path) -> DataSet:
    return load_data("mnist", large_data)


@pytest.mark.parametrize("kind", ["dense", "vgg", "residual"])
def test_every_layer_agrees_with_pytorch_on_1000_images_of_mnist(
    kind: str, mnist: DataSet, driver: Any, tmp_path: Path
) -> None:
    if kind == "dense":
        train = mnist.train.take(torch.arange(2560))
        table = {"network": {"widths": [500, 500, 500]}, "training": {"epochs": 1, "batch_size": 256}}
        data, test = ((part.pixels, part.labels) for part in (train, mnist.test.take(torch.arange(100))))
        model = library.train(table, tmp_path / "run", data=data, test=test, device="cpu").model()
    else:
        model = ready_model(mnist, {"network": {**VGG, "kind": kind}})
    page = Page(driver, render_play(PageModel.of(model), mnist), tmp_path)
    assert float(page.one("#check").get_attribute("data-difference")) < 1e-4
    pixels = mnist.test.pixels[:1000]
    page.send(pixels)
    check_scores(page.predict(), model, pixels)
    assert messages(page.driver) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_layer_and_method_agrees_with_pytorch(name: str, digits: DataSet, driver: Any, tmp_path: Path) -> None:
    model, pixels = ready_model(digits, VARIANTS[name]), digits.test.pixels[:30]
    page = Page(driver, render_play(PageModel.of(model), digits), tmp_path)
    page.send(pixels)
    check_scores(page.predict(), model, pixels)
    margins = [image[-2]["lead"] for image in page.predict() if image[-2]["lead"] is not None]
    margin = float(np.median(margins)) if margins else 1.0
    script = "return sent.map((pixels) => play.model.exit(play.model.predict(pixels), arguments[0]) + 1)"
    assert page.run(script, margin) == [one.layers for one in model.predict_early(pixels, margin)]
    page.run("play.model.addClass('new', sent.slice(0, 3))")
    check_scores(page.predict(), model.add_class("new", pixels[:3]), pixels)
    page.run("play.model.reset()")
    check_scores(page.predict(), model, pixels)
    assert messages(page.driver) == []


def test_the_page_fits_screens_of_any_width(page: Page) -> None:
    for width in (400, 1400):
        page.resize(width)
        page.run("play.refresh()")
        assert page.run("return document.documentElement.scrollWidth") <= width
    assert "agree with PyTorch's" in page.text("check")


def test_a_class_that_is_drawn_three_times_is_recognised(page: Page) -> None:
    page.one("#name").clear()
    assert not page.run("play.pad.clear(); play.refresh(); return document.getElementById('example').disabled === false")
    page.draw(STAR)
    page.wait_for("!document.getElementById('example').disabled")
    page.one("#example").click()
    assert page.text("taught") == "Give the new class a name first."
    page.one("#name").send_keys("7")
    page.one("#example").click()
    assert page.text("taught") == "There is already a class 7: choose another name."
    page.one("#name").clear()
    page.one("#name").send_keys("star")
    page.one("#example").click()
    page.draw_really([[x, 0.95 * y] for x, y in STAR], touch=False)
    page.wait_for("!document.getElementById('example').disabled")
    page.one("#example").click()
    assert page.text("taught") == "1 more of star."
    page.draw_really([[0.9 * x, y] for x, y in STAR], touch=True)
    page.wait_for("!document.getElementById('example').disabled")
    page.one("#example").click()
    assert "now knows star, in every layer" in page.text("taught")
    page.draw([[0.15 + 0.7 * x, 0.1 + 0.8 * y] for x, y in STAR])
    page.wait_for("document.getElementById('answer').textContent === 'star'")
    votes = "return [...document.querySelectorAll('.vote')].map((vote) => vote.textContent)"
    assert page.run(votes) == ["star", "star"]
    names = "return [...document.querySelectorAll('.layer:first-child .distances b')].map((name) => name.textContent)"
    assert page.run(names) == [*"0123456789", "star"]
    page.one("#forget").click()
    page.wait_for("document.getElementById('answer').textContent !== 'star'")
    assert page.run(names) == [*"0123456789"]


def test_a_test_image_is_answered_as_by_pytorch(page: Page, run: Run, digits: DataSet) -> None:
    model, numbers = run.model(), json.loads(page.text("facts"))["samples"]["labels"]
    assert numbers == sorted(numbers)
    margins = [line["threshold"] for line in json.loads(page.text("facts"))["exits"]]
    page.run("const slider = document.getElementById('margin'); slider.value = 3; slider.dispatchEvent(new Event('input'))")
    for number in (0, 7, 19):
        page.driver.find_elements("css selector", "#samples button")[number].click()
        page.wait_for(f"document.querySelectorAll('#samples button')[{number}].ariaPressed === 'true'")
        pixels = torch.tensor(page.run("return [...play.pad.pixels()]"), dtype=torch.uint8).view(1, 1, 8, 8)
        assert (digits.test.pixels[digits.test.labels == numbers[number]] == pixels).all(dim=(1, 2, 3)).any()
        assert page.text("answer") == model.predict(pixels)[0].class_name
        assert f"of class {numbers[number]}." in page.text("remark")
        exits = page.run("return [...document.querySelectorAll('.layer')].map((card) => card.className)")
        used = model.predict_early(pixels, margins[3])[0].layers
        assert exits == (["layer exits", "layer skipped"] if used == 1 else ["layer", "layer"])


def test_the_nearest_representative_is_shown(page: Page, run: Run) -> None:
    model = run.model()
    assert isinstance(model.method, FaustRepresentative)
    assert model.scaling is not None
    page.driver.find_elements("css selector", "#samples button")[4].click()
    page.wait_for("document.querySelectorAll('#samples button')[4].ariaPressed === 'true'")
    shown = page.run("""const canvas = document.querySelector(".layer figure canvas");
    return [...canvas.getContext("2d").getImageData(0, 0, 8, 8).data].filter((_, i) => i % 4 === 0);""")
    vote = int(page.one(".layer .vote").text)
    representative = model.method.images[vote] * model.scaling.deviation + model.scaling.mean
    assert shown == representative.round().flatten().int().tolist()


def test_drawn_digits_are_recognised(page: Page) -> None:
    turn = np.linspace(0, 2 * np.pi, 30)
    digits = {
        "0": np.stack([0.5 + 0.18 * np.cos(turn), 0.5 + 0.28 * np.sin(turn)], axis=1).tolist(),
        "1": [[0.42, 0.32], [0.52, 0.22], [0.5, 0.8]],
        "4": [[0.55, 0.2], [0.33, 0.58], [0.7, 0.58], [0.6, 0.58], [0.6, 0.4], [0.58, 0.82]],
    }
    for digit, line in digits.items():
        page.run("play.pad.clear()")
        page.draw(line)
        page.wait_for(f"document.getElementById('answer').textContent === '{digit}'")


def test_drawing_with_the_keyboard(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page.one("#clear").click()
    page.wait_for("document.getElementById('answer').textContent === '–'")
    reached = []
    for _ in range(40):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        reached.append(page.run("return document.activeElement.id"))
    assert {"pad", "clear", "undo", "file", "margin", "name"} <= set(reached)
    pad = page.one("#pad")
    pad.send_keys(Keys.ARROW_UP * 5, Keys.SPACE, Keys.ARROW_DOWN * 10, Keys.SPACE, Keys.ARROW_RIGHT * 3)
    page.wait_for("document.getElementById('answer').textContent !== '–'")
    assert np.allclose(page.run("return play.pad.lines"), [[[0.5, 0.25 + 0.05 * step] for step in range(11)]])
    pad.send_keys(Keys.DELETE)
    page.wait_for("document.getElementById('answer').textContent === '–'")


def test_an_image_file_is_read_as_by_predict(page: Page, run: Run, digits: DataSet, tmp_path: Path) -> None:
    pixels = digits.test.pixels[3, 0].numpy()
    Image.fromarray(pixels).save(tmp_path / "light.png")
    Image.fromarray(255 - pixels).save(tmp_path / "dark.png")
    (tmp_path / "notes.txt").write_text("not an image")
    for name, remark in (("light", "light.png."), ("dark", "with light and dark exchanged")):
        page.one("#file").send_keys(str(tmp_path / f"{name}.png"))
        page.wait_for(f"document.getElementById('remark').textContent.includes('{remark}')")
        assert page.run("return [...play.pad.pixels()]") == pixels.flatten().tolist()
    assert page.text("answer") == run.model().predict(tmp_path / "light.png")[0].class_name
    page.one("#file").send_keys(str(tmp_path / "notes.txt"))
    page.wait_for("document.getElementById('mistake').textContent !== ''")
    assert page.text("mistake") == "notes.txt is not an image that this browser can read: choose another file."


@pytest.mark.parametrize("background", [0, 255])
def test_a_drawing_becomes_an_image_like_those_of_the_data(background: int, page: Page) -> None:
    """Here as in MNIST: 20 pixels high, the centre of mass in the middle of 28×28 pixels."""
    style = {"side": 20, "pen": 3, "by_mass": True, "centre": [14, 14], "background": background, "ink": 255 - background}
    script = """const pad = new Pad(document.createElement("canvas"), [1, 28, 28], arguments[0], () => {});
    pad.lines = arguments[1];
    return [...pad.pixels()];"""
    seven = [[[0.1, 0.1], [0.3, 0.1], [0.2, 0.4]]]
    drawn = np.reshape(page.run(script, style, seven), (28, 28))
    ink = np.abs(drawn - background) / 255
    assert np.ptp(np.nonzero(ink.max(axis=1) > 0.25)) == 19
    places = np.indices(ink.shape) + 0.5
    assert (places * ink).sum(axis=(1, 2)) / ink.sum() == pytest.approx([14, 14], abs=0.05)
    larger = (2 * np.array(seven) + 0.1).tolist()
    assert np.abs(np.reshape(page.run(script, style, larger), (28, 28)) - drawn).max() <= 8  # size and place do not matter
    dot = np.subtract(page.run(script, style, [[[0.5, 0.5]]]), background)
    assert np.abs(dot).sum() / 255 == pytest.approx(np.pi * 1.5**2, rel=0.05)


def lines(height: int, width: float, top: int) -> np.ndarray:
    """A vertical line in each of four images of 16×16 pixels."""
    images = np.zeros((4, 16, 16), np.uint8)
    images[:, top : top + height, 6 : 6 + int(width)] = 255
    return images


def test_the_appearance_of_drawings_is_measured() -> None:
    found = Drawing.of(lines(12, 2, 2))
    assert (found.side, found.background, found.ink, found.centre) == (12, 0, 255, (8.0, 7.0))
    assert 1.5 < found.pen < 2.5
    assert Drawing.of(255 - lines(12, 2, 2)) == replace(found, background=255, ink=0)
    moved = np.concatenate([lines(12, 2, 2), lines(8, 2, 4)])
    moved[4:, 12, 0] = 70  # a faint dot moves the box, not the mass
    assert Drawing.of(moved).by_mass
    assert Drawing.of(np.zeros((3, 8, 8), np.uint8)).side == 8


def test_the_page_refers_to_nothing_outside_and_names_are_only_shown(
    run: Run, digits: DataSet, driver: Any, tmp_path: Path
) -> None:
    names = (NASTY, *digits.class_names[1:])
    page_model = PageModel.of(replace(run.model(), class_names=names))
    content = render_play(page_model, replace(digits, name=NASTY))
    assert not re.search(r"""(src|href)\s*=|https?://|@import|url\(|<link|<iframe""", content)
    page = Page(driver, content, tmp_path)
    assert page.run("return document.querySelectorAll('b').length") == 2 * 10  # those of the page itself
    assert page.run("return document.querySelector('.distances b').textContent") == NASTY
    assert messages(page.driver) == []


def test_a_model_of_one_class(digits: DataSet, driver: Any, tmp_path: Path) -> None:
    zeros = [part.take((part.labels == 0).nonzero()[:, 0]) for part in (digits.train, digits.test)]
    data = DataSet("zeros", ("0",), *(Images(part.pixels[:100], part.labels[:100]) for part in zeros))
    page = Page(driver, render_play(PageModel.of(ready_model(data, {})), data), tmp_path)
    page.run("play.pad.setImage(play.pad.pixels()); play.refresh()")
    assert (page.text("answer"), messages(page.driver)) == ("0", [])


def test_the_command_writes_the_page(faustnet: Command, run: Run, written: str, tmp_path: Path) -> None:
    answer = faustnet("play", run.folder, "--out", tmp_path / "page.html")
    assert answer.code == 0
    assert answer.out.startswith(f"written: {tmp_path / 'page.html'}, ")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == written
    shutil.copy(run.folder / "model.safetensors", tmp_path)
    assert faustnet("play", tmp_path / "model.safetensors").code == 0
    assert (tmp_path / "play.html").read_text(encoding="utf-8") == written


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("none",), "none is not a run folder"),
        (("unfinished",), "unfinished has no model yet: finish the training"),
        ((FIXTURES / "backprop",), "which backprop does not have: train with a FAUST method such as faust-representative."),
        ((FIXTURES / "forward-forward",), "which forward-forward does not have"),
        ((FIXTURES / "dense", "--out", "page.pdf"), "--out must end in .html, got page.pdf."),
        ((FIXTURES / "dense", "--out", "missing/page.html"), "missing/page.html could not be written (No such file"),
    ],
)
def test_mistakes_are_named(
    words: tuple[object, ...], sentence: str, faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unfinished").mkdir()
    shutil.copy(FIXTURES / "dense" / "recipe.toml", tmp_path / "unfinished")
    answer = faustnet("play", *words, *(() if "--out" in words else ("--out", tmp_path / "page.html")))
    assert answer.code == 2
    assert sentence in answer.sentence
    assert not [*tmp_path.glob("*.html")]


def test_models_that_a_page_cannot_run_are_refused(digits: DataSet) -> None:
    def fresh(train: Images, tokeniser: Tokeniser | None = None, **network: Any) -> Model:
        return Model.fresh(recipe_from({"network": network}), train, digits.class_names, tokeniser)

    train, transformer = digits.train, {"kind": "transformer", "widths": [8, 8], "heads": 2}
    tokens = torch.randint(1, 9, (len(train), 6), dtype=torch.int16)
    for model, sentence in (
        (fresh(train, **transformer), "cannot compute TokenMapHead in layer 1, only dense and convolutional layers"),
        (fresh(replace(train, pixels=torch.rand(len(train), 5, 1, 1))), "trained on rows of 5 numbers"),
        (fresh(replace(train, pixels=train.pixels / 255)), "takes pixels from 0 to 255, but this model was trained on"),
        (fresh(replace(train, pixels=tokens), Tokeniser.of_ids(9, 6), **transformer), "trained on texts: choose a model of"),
        (fresh(train, widths=[2500, 2000]), r"must have at most 20 MB, got 25\.3 MB: train a smaller network"),
    ):
        with pytest.raises(FaustnetError, match=sentence):
            PageModel.of(model)
