"""What users may expect of their own methods, options and optimisers."""

import ast
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from rich.console import Console

import faustnet
from conftest import run_to_end
from faustnet.data import DataSet
from faustnet.errors import FaustnetError
from faustnet.methods import METHODS, Method
from faustnet.methods.faust import FaustPrototype
from faustnet.nn.network import Network
from faustnet.reproduce.table1 import summary, tables, texts
from faustnet.runs.folder import Run
from faustnet.runs.recipes import recipe_from, write_recipe
from faustnet.training.optimisers import OptimiserSettings, settings
from user_classes import OwnLayer, OwnMethod, fails, own_trainer

# The title of a method


class TitledMethod(OwnMethod):
    name: ClassVar[str] = "titled-method"
    title: ClassVar[str] = "Method with a Title"


@pytest.mark.parametrize(("method", "title"), [(OwnMethod, "own-method"), (TitledMethod, "Method with a Title")])
def test_a_users_method_is_in_table_1_by_its_title(
    method: type[Method], title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, method.name, method)
    about = {"dataset": "digits", "network": "3x500", "family": "tuned"}
    cells = summary({**about, "method": name, "test_accuracy": 0.9} for name in ("backprop", method.name))
    console = Console(width=120)
    with console.capture() as captured:
        console.print(*tables(cells, 120))
    for text in (captured.get(), *texts(cells).values()):
        assert title in text
        assert text.index("Backpropagation") < text.index(title), "the package's methods come first"


@fails("titles are in a table elsewhere")
def test_a_title_is_an_attribute_of_the_class() -> None:
    assert METHODS["cwc"].title == "CwC"  # type: ignore[attr-defined]
    assert OwnMethod.title == OwnMethod.name  # type: ignore[attr-defined]


# An optimiser that nobody has written


@fails("make() gives AdamW for every name that it does not know")
def test_an_optimiser_that_is_listed_but_not_handled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "OPTIMISERS", (*settings.OPTIMISERS, "lion"))
    with pytest.raises(FaustnetError, match="lion"):
        OptimiserSettings("lion").make([torch.nn.Parameter(torch.zeros(2))])


@fails("the wavefront takes it for an optimiser with a momentum, and unpacks a memory that is not there")
def test_an_optimiser_that_is_listed_but_not_handled_is_refused_by_the_wavefront(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "OPTIMISERS", (*settings.OPTIMISERS, "lion"))
    with pytest.raises(FaustnetError, match="lion"):
        run_to_end(own_trainer([OwnLayer] * 2, "wavefront", optimiser=OptimiserSettings("lion")))


# Types of options


class OptionsMethod(OwnMethod):
    name: ClassVar[str] = "options-method"

    def __init__(
        self,
        network: Network,
        classes: int,
        *,
        weights: tuple[float, ...] = (1.0, 2.0),
        names: tuple[str, ...] = (),
        sizes: "tuple[int, ...]" = (1,),
        maybe: int | None = None,
        rate: float = 1,
    ):
        super().__init__(network, classes)


@pytest.fixture
def with_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, OptionsMethod.name, OptionsMethod)


REFUSED = [
    ("weights", "abc"),
    ("weights", ["a", "b"]),
    ("weights", 3.0),
    ("names", "abc"),
    ("names", [1, 2]),
    ("sizes", "abc"),
    ("sizes", [1.5]),
    ("maybe", "abc"),
    ("maybe", 1.5),
    ("rate", "abc"),
]
REFUSED_TODAY = [("names", "abc"), ("rate", "abc")]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        pytest.param(*case, marks=[] if case in REFUSED_TODAY else fails("the default says less than the annotation"))
        for case in REFUSED
    ],
)
@pytest.mark.usefixtures("with_options")
def test_an_option_of_another_type_than_its_annotation_is_refused(option: str, value: object) -> None:
    with pytest.raises(FaustnetError, match=rf"{option}.*{OptionsMethod.name}"):
        recipe_from({"method": OptionsMethod.name, "options": {option: value}})


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        pytest.param("weights", [1, 2.5], (1.0, 2.5), marks=fails("a list stays a list")),
        pytest.param("names", ["a", "b"], ("a", "b"), marks=fails("an empty tuple is taken for one of whole numbers")),
        pytest.param("sizes", [3, 4], (3, 4), marks=fails("a list stays a list")),
        pytest.param("rate", 0.5, 0.5, marks=fails("the default is a whole number")),
        pytest.param("rate", 2, 2.0, marks=fails("the default is a whole number")),
        ("maybe", 3, 3),
        ("maybe", None, None),
    ],
)
@pytest.mark.usefixtures("with_options")
def test_an_option_is_converted_to_its_annotation(option: str, value: object, expected: object) -> None:
    found = recipe_from({"method": OptionsMethod.name, "options": {option: value}}).options[option]
    assert (found, type(found)) == (expected, type(expected))
    if isinstance(found, tuple):
        assert [type(item) for item in found] == [type(item) for item in expected]  # type: ignore[attr-defined]


@fails("None is written as null, which TOML does not have")
@pytest.mark.usefixtures("with_options")
def test_a_recipe_with_an_option_that_is_none_can_be_read_again() -> None:
    recipe = recipe_from({"method": OptionsMethod.name})
    assert recipe_from(tomllib.loads(write_recipe(recipe))) == recipe


# No method and no option is known by its name outside its class


def recognised(tree: ast.AST, methods: set[str], options: set[str]) -> list[str]:
    """Comparisons with the name of a method, and looks at one of the options of a recipe."""
    found = []
    for node in ast.walk(tree):
        looked_up: Sequence[ast.expr] = []
        known = options
        if isinstance(node, ast.Compare):
            looked_up, known = [node.left, *node.comparators], methods
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("options"):
            looked_up = [node.slice]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("options.get"):
            looked_up = node.args[:1]
        if any(isinstance(one, ast.Constant) and one.value in known for one in looked_up):
            found.append(ast.unparse(node))
    return found


ABOUT_CERTAIN_METHODS = {"methods", "bench", "report", "reproduce", "estimator.py"}


@fails("model.py compares with faust-prototype, and recipes look for mixup")
def test_what_trains_and_uses_any_method_knows_none_by_its_name_or_options() -> None:
    package = Path(faustnet.__file__).parent
    options = {option for method in METHODS.values() for option in method.options()}
    files = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ABOUT_CERTAIN_METHODS]
    found = {
        str(path.relative_to(package)): recognised(ast.parse(path.read_text()), set(METHODS), options) for path in files
    }
    assert {path: what for path, what in found.items() if what} == {}


class MixingMethod(OwnMethod):
    """Its `mixup` has nothing to do with images: it names how scores are combined."""

    name: ClassVar[str] = "mixing-method"

    def __init__(self, network: Network, classes: int, *, mixup: str = "sum"):
        super().__init__(network, classes)
        self.mixup = mixup


def train(folder: Path, method: str, *, schedule: str = "sequential", length: str = "free", **options: object) -> Run:
    """One epoch of digits."""
    network = {"widths": [12, 12], "embedding": 12, "length": length}
    training = {"epochs": 1, "batch_size": 64, "schedule": schedule}
    return faustnet.train({"method": method, "options": options, "network": network, "training": training}, folder)


@fails("any option called mixup is taken for the blending of images")
def test_an_option_called_mixup_may_mean_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, MixingMethod.name, MixingMethod)
    assert train(tmp_path / "run", MixingMethod.name, schedule="greedy").metrics["schedule"] == "greedy"


@pytest.mark.parametrize("name", ["faust-representative", "faust-prototype"])
def test_the_greedy_schedule_refuses_the_mixup_of_images(name: str, tmp_path: Path) -> None:
    with pytest.raises(FaustnetError, match="greedy"):
        train(tmp_path / "run", name, schedule="greedy", mixup=0.2)


class BlendingMethod(FaustPrototype):
    """Blends images under another name."""

    name: ClassVar[str] = "blending-method"

    def __init__(self, network: Network, classes: int, *, blend: float = 0.2):
        super().__init__(network, classes, mixup=blend)


@fails("only an option that is called mixup is known to blend images")
def test_the_greedy_schedule_refuses_the_mixup_of_images_by_any_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(METHODS, BlendingMethod.name, BlendingMethod)
    with pytest.raises(FaustnetError, match="greedy"):
        train(tmp_path / "run", BlendingMethod.name, schedule="greedy")


class OwnPrototypes(FaustPrototype):
    name: ClassVar[str] = "own-prototypes"


@pytest.mark.parametrize("name", ["faust-prototype", pytest.param("own-prototypes", marks=fails("it goes by the name"))])
def test_prototypes_of_free_length_by_any_name_refuse_to_be_calibrated(
    name: str, digits: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, OwnPrototypes.name, OwnPrototypes)
    pixels = digits.test.pixels[:50]
    free, unit = (faustnet.load(train(tmp_path / length, name, length=length).folder) for length in ("free", "unit"))
    with pytest.raises(FaustnetError, match="length"):
        free.calibrate(pixels)
    assert unit.calibrate(pixels).threshold is not None
