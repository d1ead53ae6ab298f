"""The order of the packages, the public names, and the import paths of version 0.1."""

import ast
import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import faustnet
from faustnet._deprecated import MODULES, NAMES, REMOVAL
from faustnet.methods import METHODS

ROOT = Path(faustnet.__file__).parent
LEVELS = [
    {"errors", "version", "_lazy", "_deprecated"},
    {"system"},
    {"losses", "nn", "data"},
    {"methods"},
    {"training"},
    {"runs"},
    {"api", "bench", "estimator", "report", "testing"},
    {"export", "play", "reproduce"},
    {"cli"},
    {"__init__", "__main__"},
]
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}
FILES = {path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in sorted(ROOT.rglob("*.py"))}
MODULE_NAMES = {name.removesuffix(".__init__") for name in FILES.values()}


def imports(path: Path) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements of a file, also those in functions. Those for type checkers count only where they name what is
    imported later: in the `__init__` of a package."""
    is_lazy = path.name == "__init__.py" and path.parent != ROOT

    def visit(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif is_lazy or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            for child in ast.iter_child_nodes(node):
                yield from visit(child)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")))


def own_modules(path: Path) -> set[str]:
    """The modules of this package that a file imports."""
    found = set()
    for node in imports(path):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("faustnet") for alias in node.names), "write: from faustnet.x import y"
        else:
            assert node.level == 0, "write: from faustnet.x import y"
            if node.module and node.module.split(".")[0] == "faustnet":
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULE_NAMES
                names_only = len(inner) < len(node.names)
                found |= inner | ({node.module} if names_only and node.module != "faustnet" else set())
    return found


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def test_imports_point_to_packages_on_the_same_level_or_below() -> None:
    for path, name in FILES.items():
        package = package_of(name)
        assert package in LEVEL, f"{package} has no level yet"
        for other in own_modules(path):
            assert LEVEL[package_of(other)] <= LEVEL[package], f"{name} imports {other}"


def test_the_modules_import_each_other_without_cycles() -> None:
    """Also between packages of one level, and within a package. A module does not need its own package's `__init__`."""
    graph = {}
    for path, name in FILES.items():
        module = name.removesuffix(".__init__")
        graph[module] = {other for other in own_modules(path) if not module.startswith(f"{other}.")}
    TopologicalSorter(graph).prepare()  # raises CycleError


def fresh_python(program: str) -> str:
    answer = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_methods_take_data_from_anywhere_and_know_no_file_formats() -> None:
    """Methods turn arrays and data sets of torch into sources. Only the file of a method's own weights has a path."""
    for path in (ROOT / "methods").glob("*.py"):
        from_data = {name for name in own_modules(path) if package_of(name) == "data"}
        assert from_data <= {"faustnet.data.sources"}, path.name
        assert "pathlib" not in path.read_text(encoding="utf-8") or path.name == "state_file.py", path.name
    program = "import faustnet.methods, json, sys; print(json.dumps([*sys.modules]))"
    loaded = set(json.loads(fresh_python(program)))
    assert {name for name in loaded if package_of(name) == "data" and name.startswith("faustnet.")} == {
        "faustnet.data", "faustnet.data.sources",
    }  # fmt: skip
    assert not loaded & {"PIL", "sklearn", "pooch", "tokenizers"}


@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
def test_a_training_imports_no_compiler_and_no_library_that_it_does_not_use(schedule: str, tmp_path: Path) -> None:
    """Each of them takes longer than importing torch. Making an optimiser of torch imports its compiler, and a backward pass
    from a given gradient imports sympy."""
    network = {"widths": [32, 32], "embedding": 16}
    recipe = {"dataset": "digits", "network": network, "training": {"epochs": 1, "schedule": schedule}}
    program = (
        f"import faustnet, json, sys; faustnet.train({recipe}, {str(tmp_path / 'run')!r}); print(json.dumps([*sys.modules]))"
    )
    loaded = set(json.loads(fresh_python(program).splitlines()[-1]))
    assert "torch" in loaded
    assert not loaded & {"torch._dynamo", "sympy", "sklearn", "scipy", "pandas", "matplotlib", "triton"}


def test_the_report_imports_no_torch() -> None:
    modules = [name for name in MODULE_NAMES if name.startswith("faustnet.report")]
    lines = "\n".join(f"import {name}" for name in modules)
    assert fresh_python(f"{lines}\nimport sys; print('torch' in sys.modules)") == "False\n"


def test_the_public_names_are_listed_before_anything_slow_is_imported() -> None:
    program = (
        "import faustnet, json, sys; print(json.dumps([dir(faustnet), 'torch' in sys.modules, 'numpy' in sys.modules]))"
    )
    assert json.loads(fresh_python(program)) == [sorted(faustnet.__all__), False, False]


def test_every_public_name_is_found_after_a_plain_import() -> None:
    program = f"import faustnet\nfor name in {faustnet.__all__}: getattr(faustnet, name)\nfaustnet.losses.tuplet_loss"
    fresh_python(program)
    public = [getattr(faustnet, name) for name in faustnet.__all__]
    assert sum(one in METHODS.values() for one in public if isinstance(one, type)) >= 12
    with pytest.raises(AttributeError, match="module 'faustnet' has no attribute 'trian'"):
        faustnet.trian  # noqa: B018


@pytest.fixture
def unimported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old modules are imported anew, as in a new process."""
    for name in [*sys.modules]:
        if any(f"{name}.".startswith(f"{old}.") for old in MODULES):
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("unimported")
@pytest.mark.parametrize(("old", "new"), [item for item in MODULES.items() if item[0] not in MODULE_NAMES])
def test_an_old_module_path_leads_to_the_new_one_with_a_warning(old: str, new: str) -> None:
    if new == "faustnet.nn.kernels":
        pytest.importorskip("triton")
    with pytest.warns(DeprecationWarning, match=rf"{old} has moved to {new}; .* removed in version {REMOVAL}") as warned:
        module = importlib.import_module(old)
    assert warned[0].filename == importlib.__file__, "the line that imports the module is named"
    for name in dir(importlib.import_module(new)):
        assert getattr(module, name) is getattr(importlib.import_module(new), name) or name.startswith("__")
    with pytest.raises(AttributeError, match=f"module '{old}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


DOCUMENTED = {  # in version 0.1
    "faustnet": ["FaustClassifier", "FaustnetError", "load", "train"],
    "faustnet.data": ["DataSet", "Images"],
    "faustnet.errors": ["require"],
    "faustnet.estimator": ["FaustClassifier"],
    "faustnet.evaluation": ["EarlyExit", "Evaluation"],
    "faustnet.history": ["Epoch"],
    "faustnet.losses": [
        "competitive_loss", "exact", "goodness", "goodness_by_group", "goodness_loss", "marginal_contrastive_loss", "mixed",
        "paired_squared_distances", "reference_tuplet_loss", "similarity_matching_loss", "soft_minimum", "squared_distances",
        "symmetric_loss", "triplet_loss", "tuplet_loss",
    ],
    "faustnet.methods": ["METHODS", "LocalMethod", "Method", "Source"],
    "faustnet.methods.base": ["LocalMethod"],
    "faustnet.model": ["EarlyPrediction", "Model", "Prediction"],
    "faustnet.network": ["Network", "NetworkSettings", "Shape", "embedding_network"],
    "faustnet.recipes": ["Recipe", "recipe_from"],
    "faustnet.references": ["References", "reference_scores"],
    "faustnet.runs": ["Run"],
    "faustnet.training": ["Trainer", "TrainingSettings"],
}  # fmt: skip
PICKLED = {  # by version 0.1
    "faustnet.layers": ["DenseLayer", "Linear"],
    "faustnet.methods.base": ["MixUp", "PredictionSettings"],
    "faustnet.methods.objective": ["Objective"],
    "faustnet.model": ["Model"],
    "faustnet.network": ["Network", "NetworkSettings"],
    "faustnet.optimisers.settings": ["OptimiserSettings"],
    "faustnet.recipes": ["DataSettings", "Recipe"],
    "faustnet.references": ["References"],
    "faustnet.training": ["TrainingSettings"],
}


@pytest.mark.usefixtures("unimported")
@pytest.mark.filterwarnings("ignore:faustnet:DeprecationWarning")
@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for table in (DOCUMENTED, PICKLED) for module, names in table.items() for name in names],
)
def test_the_names_of_the_last_version_are_found(module: str, name: str) -> None:
    found = pickle.loads(f"c{module}\n{name}\n.".encode())
    assert getattr(importlib.import_module(module), name) is found


@pytest.mark.parametrize(
    ("old", "name"), [(old, name) for old, names in NAMES.items() if old not in MODULES for name in names]
)
def test_a_name_that_moved_by_itself_is_found_with_a_warning(old: str, name: str) -> None:
    new = NAMES[old][name]
    with pytest.warns(DeprecationWarning, match=rf"{old}\.{name} has moved to {new}\.{name}; .* version {REMOVAL}"):
        found = getattr(importlib.import_module(old), name)
    assert found is getattr(importlib.import_module(new), name)
