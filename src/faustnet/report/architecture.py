"""The architecture of FAUST as a drawing, from the facts of a network. Lengths are centimetres on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from faustnet.errors import FaustnetError, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CM = 1 / 2.54  # inches
SMALL, LARGE = 7.0, 8.0  # points
INK, GREY, PALE, WHITE = "#222222", "#777777", "#f3f3f3", "#ffffff"
ANCHORS, COMPARED = "#c6dbef", "#2f6ea5"  # in grey as far apart as in colour
DASHED: dict[str, Any] = {"color": "#b2182b", "linestyle": (0, (3, 1.5)), "linewidth": 1.0}


@dataclass(frozen=True)
class Place:
    """Where a thing lies from left to right."""

    left: float
    right: float

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2

    @property
    def width(self) -> float:
        return self.right - self.left


WIDTH, TOP, ROW, GAP, BOTTOM = 16.0, 1.5, 1.9, 0.55, 1.4
FEED, FRAME, LANE, BUS = 0.3, Place(0.65, 12.9), Place(13.1, 15.9), 15.62
LINEAR, RELU, NORM = Place(0.9, 3.05), Place(3.32, 4.12), Place(4.39, 5.24)
ACTIVATION, PROJECTION, EMBEDDING, LOSS = Place(5.51, 6.91), Place(7.41, 9.43), Place(9.72, 11.07), Place(11.62, 12.68)
DISTANCE, ANSWER = Place(13.22, 15.42), Place(13.5, 14.95)
BRANCH = {"activation": ACTIVATION.right + 0.18, "embedding": EMBEDDING.right + 0.23}
FLOW, UPDATES, ANSWERS = -0.05, 0.65, -0.67  # a layer's three lines, above and below its middle
HALF = 0.4  # of a box's height


@dataclass(frozen=True)
class Variant:
    """What differs between the variants of FAUST."""

    compared: str  # what enters beside the anchors
    chosen: str  # how that is chosen
    rows: str  # how many rows that makes
    loss: str
    references: str  # what stands for a class in prediction
    count: int  # of all classes' references


def variant(facts: Mapping[str, Any]) -> Variant:
    """The variant that the facts name."""
    classes, each = facts["classes"], facts["representatives"]
    fixed = f"{each} fixed image{'s' if each > 1 else ''} of each class"
    others, drawn = "positives and negatives", "random images for each anchor"
    variants = {
        "faust-representative": Variant(
            "representatives", fixed, f"B + {classes * each}", "tuplet", "representatives", classes * each
        ),
        "faust-tuplet": Variant(others, f"{classes} {drawn}", f"{classes + 1} B", "tuplet", "centroids", classes),
        "faust-triplet": Variant(others, f"2 {drawn}", "3 B", "triplet", "centroids", classes),
    }
    if facts["method"] not in variants:
        raise FaustnetError(f"Figure 1 shows FAUST, not {facts['method']}: choose {', '.join(variants)}.")
    return variants[facts["method"]]


class Sheet:
    """A sheet of paper to draw on, from its lower left corner."""

    def __init__(self, figure: Figure):
        self.axes = figure.add_axes((0, 0, 1, 1))
        width, height = figure.get_size_inches()
        self.axes.set(xlim=(0, width / CM), ylim=(0, height / CM))
        self.axes.set_axis_off()

    def text(self, x: float, y: float, words: str, *, behind: str = "none", **style: Any) -> None:
        """Words, on a patch of a colour where they interrupt a line."""
        bbox = {"facecolor": behind, "edgecolor": "none", "pad": 1.5}
        style = {"fontsize": SMALL, "color": INK, "ha": "center", "va": "center", "zorder": 4, "linespacing": 1.1, **style}
        self.axes.text(x, y, words, bbox=bbox, **style)

    def area(self, place: Place, low: float, high: float, **style: Any) -> None:
        from matplotlib.patches import Rectangle

        style = {"facecolor": WHITE, "edgecolor": INK, "linewidth": 0.6, "zorder": 3, **style}
        self.axes.add_patch(Rectangle((place.left, low), place.width, high - low, **style))

    def box(self, place: Place, y: float, words: str, **style: Any) -> None:
        """An operation: a frame with its name."""
        self.area(place, y - HALF, y + HALF, **style)
        self.text(place.middle, y, words)

    def block(self, place: Place, y: float) -> None:
        """Rows of values: anchors above what they are compared with."""
        self.area(place, y - 0.07, y + 0.3, facecolor=ANCHORS)
        self.area(place, y - 0.25, y - 0.07, facecolor=COMPARED)

    def images(self, x: float, y: float, colour: str) -> None:
        """A stack of images."""
        for step in (0.2, 0.1, 0.0):
            self.area(Place(x + step, x + step + 0.6), y + step - 0.4, y + step + 0.2, facecolor=colour)

    def line(self, points: Sequence[tuple[float, float]], *, arrow: bool = True, **style: Any) -> None:
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path

        head = "-|>,head_length=3.5,head_width=1.5" if arrow else "-"
        style = {"color": INK, "linewidth": 0.8, "zorder": 2, "joinstyle": "miter", "capstyle": "butt", **style}
        self.axes.add_patch(FancyArrowPatch(path=Path(points), arrowstyle=head, mutation_scale=1, **style))

    def circle(self, x: float, y: float, words: str) -> None:
        from matplotlib.patches import Circle

        self.axes.add_patch(Circle((x, y), 0.22, facecolor=WHITE, edgecolor=INK, linewidth=0.8, zorder=3))
        self.text(x, y, words)

    def dot(self, x: float, y: float) -> None:
        """Where lines meet."""
        self.axes.plot([x], [y], marker="o", markersize=2.5, color=INK, zorder=3)

    def stop(self, x: float, y: float) -> None:
        """The mark of a line that no gradient follows back."""
        for side in (-0.06, 0.06):
            self.line([(x + side - 0.06, y - 0.16), (x + side + 0.06, y + 0.16)], arrow=False, linewidth=1.6)


def draw_architecture(facts: Mapping[str, Any]) -> Figure:
    """Layers from top to bottom, each in a frame of its own, and beside them how a class is predicted."""
    from matplotlib.figure import Figure

    layers = facts["layers"]
    require(bool(layers), "There is no layer to draw: give the facts of a network with one layer or more.")
    chosen = variant(facts)
    height = TOP + len(layers) * (ROW + GAP) + BOTTOM
    figure = Figure(figsize=(WIDTH * CM, height * CM))
    sheet = Sheet(figure)
    middles = [height - TOP - GAP - ROW / 2 - number * (ROW + GAP) for number in range(len(layers))]
    widest = max(max(layer["width"], layer["embedding"]) for layer in layers)
    _inputs(sheet, facts, chosen, height, middles[0])
    for number, (layer, y) in enumerate(zip(layers, middles, strict=True), start=1):
        _layer(sheet, layer, number, y, widest)
        _learning(sheet, layer, number, y, chosen)
    for layer, y in zip(layers[:-1], middles, strict=False):
        _pass_on(sheet, facts["passes_on"], y, f"{chosen.rows} rows of {layer['passes_on']} values")
    _prediction(sheet, chosen, height, middles)
    _legend(sheet, chosen)
    return figure


def _inputs(sheet: Sheet, facts: Mapping[str, Any], chosen: Variant, height: float, first: float) -> None:
    """Anchors and what they are compared with enter together."""
    y, join = height - 0.7, first + (ROW + GAP) / 2
    shape = " × ".join(str(size) for size in facts["input_shape"])
    stacks = {0.65: (ANCHORS, "anchors", f"a batch of B images, {shape}"), 6.3: (COMPARED, chosen.compared, chosen.chosen)}
    for x, (colour, name, about) in stacks.items():
        sheet.images(x, y, colour)
        sheet.text(x + 1.0, y + 0.2, name, fontsize=LARGE, ha="left", weight="bold")
        sheet.text(x + 1.0, y - 0.2, about, ha="left")
    one, other = (x + 0.3 for x in stacks)
    sheet.line([(one, y - 0.4), (one, join)], arrow=False)
    sheet.dot(one, join)
    sheet.line([(other, y - 0.4), (other, join), *_feed(join, first)])
    sheet.text((one + other) / 2, join, f"{chosen.rows} rows of {facts['inputs']} values", behind=WHITE)


def _feed(gap: float, y: float) -> list[tuple[float, float]]:
    """The way from the gap above a layer into its first box."""
    return [(FEED, gap), (FEED, y + FLOW), (LINEAR.left, y + FLOW)]


def _layer(sheet: Sheet, layer: Mapping[str, int], number: int, y: float, widest: int) -> None:
    """What a layer computes, in its frame."""
    width, embedding = layer["width"], layer["embedding"]
    sheet.area(FRAME, y - ROW / 2, y + ROW / 2, facecolor=PALE, edgecolor=GREY, zorder=0)
    sheet.text(LINEAR.left, y + UPDATES, f"Layer {number}", fontsize=LARGE, ha="left", weight="bold")
    flow = y + FLOW
    blocks = {}
    for name, place, size in (("activation", ACTIVATION, width), ("embedding", EMBEDDING, embedding or width)):
        half = place.width / 2 * (0.2 + 0.8 * size / widest)
        blocks[name] = Place(place.middle - half, place.middle + half)
        sheet.block(blocks[name], flow)
        sheet.text(place.middle, flow - 0.32, f"{name}\n{size}", va="top")
    sheet.box(LINEAR, flow, f"linear\n{layer['inputs']} → {width}")
    sheet.box(RELU, flow, "ReLU")
    sheet.box(NORM, flow, "layer\nnorm")
    way = [LINEAR, RELU, NORM, blocks["activation"], blocks["embedding"], LOSS]
    if embedding:
        sheet.box(PROJECTION, flow, f"projection\n{width} → {embedding}")
        way.insert(4, PROJECTION)
    else:
        sheet.text(PROJECTION.middle, flow, "no projection", behind=PALE)
    for one, following in pairwise(way):
        sheet.line([(one.right, flow), (following.left, flow)])


def _learning(sheet: Sheet, layer: Mapping[str, int], number: int, y: float, chosen: Variant) -> None:
    """The layer's own loss, and its update, which stays inside the frame."""
    sheet.box(LOSS, y + FLOW, f"{chosen.loss}\nloss", linewidth=1.2)
    top, back = y + FLOW + HALF, y + UPDATES
    linear = LINEAR.left + 0.75 * LINEAR.width
    sheet.line([(LOSS.middle, top), (LOSS.middle, back), (linear, back), (linear, top)], **DASHED)
    if layer["embedding"]:
        sheet.line([(PROJECTION.middle, back), (PROJECTION.middle, top)], **DASHED)
    sheet.text(NORM.right, back, f"update of layer {number} alone", behind=PALE)


def _pass_on(sheet: Sheet, what: str, y: float, words: str) -> None:
    """What goes on to the next layer; its gradient does not come back."""
    branch, gap = BRANCH[what], y - (ROW + GAP) / 2
    sheet.dot(branch, y + (FLOW if what == "activation" else ANSWERS))
    sheet.line([(branch, y + FLOW), (branch, gap), *_feed(gap, y - ROW - GAP)])
    sheet.text(2.7, gap, words, behind=WHITE)
    sheet.stop(4.9, gap)
    sheet.text(6.0, gap, "stop gradient", behind=WHITE)


def _prediction(sheet: Sheet, chosen: Variant, height: float, middles: Sequence[float]) -> None:
    """Every layer's distances to the classes' references are summed."""
    sheet.area(LANE, 0.1, height - 0.1, facecolor=WHITE, edgecolor=GREY, linestyle=(0, (1, 1.5)), zorder=0)
    sheet.text(LANE.middle, height - 0.45, "Prediction", fontsize=LARGE, weight="bold")
    sheet.text(LANE.middle, height - 0.75, f"class references:\n{chosen.references}", va="top")
    answer = 0.6
    for y in middles:
        leave, low = BRANCH["embedding"], y + ANSWERS
        sheet.dot(leave, y + FLOW)
        sheet.line([(leave, y + FLOW), (leave, low), (DISTANCE.left, low)])
        sheet.box(DISTANCE, low, f"distances to\n{chosen.count} references")
        sheet.line([(DISTANCE.right, low), (BUS, low)], arrow=False)
    for y in middles[1:]:
        sheet.dot(BUS, y + ANSWERS)
    sheet.line([(BUS, middles[0] + ANSWERS), (BUS, answer), (ANSWER.right, answer)])
    sheet.circle(BUS, answer, "Σ")
    sheet.box(ANSWER, answer, "nearest\nclass", linewidth=1.2)


def _legend(sheet: Sheet, chosen: Variant) -> None:
    y = 0.6
    sheet.block(Place(0.65, 1.45), y)
    sheet.text(1.6, y, f"rows of values: anchors above,\n{chosen.compared} below", ha="left")
    sheet.line([(6.3, y), (7.2, y)])
    sheet.text(7.35, y, "forward", ha="left")
    sheet.line([(9.0, y), (9.9, y)], **DASHED)
    sheet.text(10.05, y, "update, in training only", ha="left")
