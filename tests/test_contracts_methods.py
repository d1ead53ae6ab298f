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
from faustnet.data import DataSet
from faustnet.errors import FaustnetError
from faustnet.methods import METHODS, Faust, Method
from faustnet.methods.prototype import FaustPrototype
from faustnet.nn.network import Network
from faustnet.reproduce.table1 import summary, tables, texts
from faustnet.runs.folder import Run
from faustnet.runs.recipes import recipe_from, write_recipe
from faustnet.training.optimisers import OPTIMISERS, Optimiser, OptimiserSettings, base
from faustnet.training.optimisers.standard import SGD, Adam
from user_classes import OwnLayer, OwnMethod, assert_same_state, trained

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


def test_a_title_is_an_attribute_of_the_class() -> None:
    assert METHODS["cwc"].title == "CwC"  # type: ignore[attr-defined]
    assert OwnMethod.title == OwnMethod.name  # type: ignore[attr-defined]


# Optimisers


@pytest.mark.parametrize("name", ["lion", "AdamW", ""])
def test_an_optimiser_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(FaustnetError, match=f"optimiser.name must be adam or adamw or sgd or muon, got '{name}'"):
        OptimiserSettings(name)


class SignSGD(SGD):
    """A user's optimiser: moves every weight by the learning rate, in the direction of its gradient's sign."""

    name: ClassVar[str] = "sign-sgd"
    step = Optimiser.step

    def slots(self, dimensions: int) -> tuple[str, ...]:
        return ()

    def _change(
        self, gradient: torch.Tensor, active: torch.Tensor, root: torch.Tensor, *state: torch.Tensor
    ) -> torch.Tensor:
        return gradient.sign()


def test_a_users_optimiser_is_one_class_for_all_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMISERS, SignSGD.name, SignSGD)
    settings = OptimiserSettings(SignSGD.name, learning_rate=0.001)
    one, other = (trained([OwnLayer] * 3, schedule, optimiser=settings) for schedule in ("wavefront", "sequential"))
    assert_same_state(one, other)


def test_an_optimiser_with_a_change_of_its_own_does_not_use_the_kernel_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "has_triton", lambda device: True)  # the kernels need Triton and a GPU
    monkeypatch.setitem(OPTIMISERS, SignSGD.name, SignSGD)
    optimiser, weight = OptimiserSettings(SignSGD.name).create(), torch.ones(1, 2)
    factors = optimiser.factors(torch.tensor([0.5]), torch.ones(1), torch.ones(1))
    optimiser.update(weight, torch.tensor([[3.0, -2.0]]), [], factors, weight)
    assert weight.tolist() == [[0.5, 1.5]]


@pytest.mark.parametrize("name", ["factors", "_bias_corrections", "_update_layer", "update"])
def test_an_optimiser_that_changes_only_one_of_two_forms_is_refused(name: str) -> None:
    with pytest.raises(FaustnetError, match=f"Other must define step, .* does not use its {name}: write step"):
        type("Other", (Adam,), {name: lambda self: None})
    assert issubclass(type("Other", (Adam,), {name: lambda self: None, "step": Optimiser.step}), Adam)
    with pytest.raises(FaustnetError, match="Other must define step in place of _torch_optimiser"):
        type("Other", (Adam,), {"_torch_optimiser": lambda self: None})


def test_an_optimiser_that_inherits_a_step_without_its_own_change_is_refused() -> None:
    with pytest.raises(
        FaustnetError, match=r"Halved must define step, .* does not use its _change: write step = Optimiser\.step"
    ):

        class Halved(SGD):
            def _change(
                self, gradient: torch.Tensor, active: torch.Tensor, root: torch.Tensor, *state: torch.Tensor
            ) -> torch.Tensor:
                return gradient / 2


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


@pytest.mark.parametrize(("option", "value"), REFUSED)
@pytest.mark.usefixtures("with_options")
def test_an_option_of_another_type_than_its_annotation_is_refused(option: str, value: object) -> None:
    with pytest.raises(FaustnetError, match=rf"options\.{option} must be .*, got "):
        recipe_from({"method": OptionsMethod.name, "options": {option: value}})


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("weights", [1, 2.5], (1.0, 2.5)),
        ("names", ["a", "b"], ("a", "b")),
        ("sizes", [3, 4], (3, 4)),
        ("rate", 0.5, 0.5),
        ("rate", 2, 2.0),
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


ABOUT_CERTAIN_METHODS = {"methods", "bench", "report", "reproduce", "estimator"}


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
    network = {"widths": [12, 12], "length": length} | ({"embedding": 12} if issubclass(METHODS[method], Faust) else {})
    training = {"epochs": 1, "batch_size": 64, "schedule": schedule}
    return faustnet.train({"method": method, "options": options, "network": network, "training": training}, folder)


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


def test_the_greedy_schedule_refuses_the_mixup_of_images_by_any_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(METHODS, BlendingMethod.name, BlendingMethod)
    with pytest.raises(FaustnetError, match="greedy"):
        train(tmp_path / "run", BlendingMethod.name, schedule="greedy")


class OwnPrototypes(FaustPrototype):
    name: ClassVar[str] = "own-prototypes"


@pytest.mark.parametrize("name", ["faust-prototype", "own-prototypes"])
def test_prototypes_of_free_length_by_any_name_refuse_to_be_calibrated(
    name: str, digits: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, OwnPrototypes.name, OwnPrototypes)
    pixels = digits.test.pixels[:50]
    free, unit = (faustnet.load(train(tmp_path / length, name, length=length).folder) for length in ("free", "unit"))
    with pytest.raises(FaustnetError, match="length"):
        free.calibrate(pixels)
    assert unit.calibrate(pixels).threshold is not None
