import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from faustnet.errors import FaustnetError
from faustnet.runs.recipes import (
    Recipe,
    as_table,
    differences,
    read_recipe,
    recipe_from,
    set_key,
    shipped_recipes,
    write_recipe,
)

FULL = {
    "dataset": 'a "quoted" folder\\with éverything 😀',
    "method": "faust-representative",
    "seed": 7,
    "options": {
        "representatives": 2,
        "chosen": [4, 5],
        "choice": "random",
        "scale": 1e-5,
        "final_scale": 0.1,
        "label_smoothing": 0.1,
        "contrast": 0.5,
        "temperature": 0.2,
        "matching": 0.7,
        "mixup": 0.3,
    },
    "network": {
        "widths": [30, 20],
        "embedding": 0,
        "dropout": 0.1,
        "input_dropout": 0.2,
        "passes_on": "activation",
        "length": "unit",
        "norm": "batch",
        "kind": "vgg",
        "pools": [2],
        "head": 0,
    },
    "data": {
        "flip": True,
        "crop": 2,
        "cutout": 3,
        "rotation": 12.5,
        "zoom": 0.1,
        "image_size": 16,
        "strict": True,
        "stream": "always",
    },
    "optimiser": {
        "name": "sgd",
        "learning_rate": 0.1,
        "decay": "constant",
        "warmup": 0.1,
        "weight_decay": 1.0,
        "momentum": 0.5,
    },
    "training": {
        "epochs": 3,
        "batch_size": 9,
        "schedule": "sequential",
        "precision": "float32",
        "validation": 0.1,
        "evaluate_every": 2,
        "balance": True,
    },
    "prediction": {"mirror": True, "layers": "all", "weights": [0.0, 0.5]},
}


def test_a_recipe_survives_being_written_and_read() -> None:
    recipe = recipe_from(FULL)
    assert as_table(recipe) == FULL
    assert recipe_from(tomllib.loads(write_recipe(recipe))) == recipe


def test_a_recipe_says_only_what_differs_from_the_defaults() -> None:
    assert recipe_from({}) == Recipe()
    recipe = recipe_from({"training": {"epochs": 3}}, recipe_from(FULL))
    assert differences(recipe, recipe_from(FULL)) == {}
    changed = recipe_from({"training": {"epochs": 4}, "seed": 8}, recipe)
    assert differences(changed, recipe) == {"seed": (8, 7), "training.epochs": (4, 3)}


def test_numbers_of_numpy_and_paths_will_do() -> None:
    table = {"dataset": Path("own.npz"), "seed": np.int64(3), "optimiser": {"learning_rate": np.float32(0.5)}}
    assert recipe_from(table) == recipe_from({"dataset": "own.npz", "seed": 3, "optimiser": {"learning_rate": 0.5}})


def test_another_method_does_not_inherit_the_options_of_the_first() -> None:
    assert recipe_from({"method": "backprop"}, recipe_from(FULL)).options == {"label_smoothing": 0.0, "mixup": 0.0}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("digits", "A recipe is a table, such as {'dataset': 'digits'}, not 'digits'"),
        ({"epoch": 3}, "no key in a recipe called 'epoch'"),
        ({"training": {"epoch": 3}}, r"no key in \[training\] called 'epoch': did you mean epochs"),
        ({"options": {"scael": 1.0}}, "no key in the method faust-representative called 'scael': did you mean scale"),
        ({"method": "backprop", "options": {"scale": 1.0}}, "choose label_smoothing"),
        ({"method": "faust-tuple"}, "no method 'faust-tuple': did you mean faust-tuplet"),
        ({"method": "xyz"}, "choose backprop, forward-forward"),
        ({"training": 3}, "'training' is a section"),
        ({"training": {"epochs": 2.5}}, "'epochs' in .* is a whole number, not 2.5"),
        ({"training": {"epochs": True}}, "is a whole number, not True"),
        ({"training": {"epochs": 0}}, "training.epochs must be at least 1, got 0"),
        ({"network": {"widths": 500}}, "must be a list of whole numbers"),
        ({"network": {"widths": [500, 0]}}, r"at least one unit, but the widths are \[500, 0\]"),
        ({"data": {"flip": 1}}, "is true or false"),
        ({"data": {"crop": -1}}, "number of pixels"),
        ({"data": {"cutout": -1}}, "cut-out is a number of pixels"),
        ({"data": {"rotation": -1}}, "from 0 to 180, not -1"),
        ({"data": {"rotation": 181.0}}, "from 0 to 180, not 181"),
        ({"data": {"zoom": 1}}, "from 0 to below 1, not 1"),
        ({"data": {"zoom": -0.1}}, "from 0 to below 1, not -0.1"),
        ({"prediction": {"weights": 1}}, "'weights' in .* must be a list of numbers, got 1"),
        ({"prediction": {"weights": ["1"]}}, "each of 'weights' in .* is a number, not '1'"),
        ({"prediction": {"weights": [0, 0]}}, "not all 0"),
        ({"prediction": {"mirror": 1}}, "is true or false"),
        ({"data": {"image_size": 100_000}}, "pixels up to 512"),
        ({"options": {"scale": float("inf")}}, "is a finite number"),
        ({"optimiser": {"weight_decay": float("nan")}}, "is a finite number"),
        ({"seed": 2**63}, "far too large"),
        ({"training": {"epochs": 10**400}}, "far too large"),
        ({"options": {"scale": 10**400}}, "is a number, not such a large number"),
        ({"network": {"widths": [10**30]}}, "far too large"),
        ({"dataset": "a\udcffb"}, "cannot be written as text"),
        ({"options": {"scale": "big"}}, "is a number, not 'big'"),
        ({"seed": -1}, "The seed is 0 or more"),
        ({"training": {"schedule": "sometimes"}}, "choose auto, sequential, wavefront, greedy"),
        ({"training": {"precision": "half"}}, "choose tf32, float32, bfloat16"),
        ({"training": {"schedule": "greedy"}, "data": {"flip": True}}, "cannot augment images"),
        ({"training": {"schedule": "greedy"}, "data": {"rotation": 1}}, "cannot augment images"),
        ({"training": {"schedule": "greedy"}, "data": {"zoom": 0.1}}, "cannot augment images"),
    ],
)
def test_what_a_recipe_cannot_mean_is_an_error(table: dict[str, object], said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        recipe_from(table)


def test_keys_can_be_set_one_by_one() -> None:
    table: dict[str, object] = {"training": {"epochs": 3}}
    for assignment in ("training.batch_size=32", "method=faust-tuplet", "options.scale = 0.5", "network.widths=[3,4]"):
        set_key(table, assignment)
    assert table == {
        "training": {"epochs": 3, "batch_size": 32},
        "method": "faust-tuplet",
        "options": {"scale": 0.5},
        "network": {"widths": [3, 4]},
    }


@pytest.mark.parametrize("assignment", ["epochs", "method.x=1", ""])
def test_an_assignment_that_sets_nothing_is_an_error(assignment: str) -> None:
    with pytest.raises(FaustnetError, match="sets nothing"):
        set_key({"method": "backprop"}, assignment)


def test_unreadable_recipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FaustnetError,
        match="There is no recipe 'nowhere': choose cifar10, digits, mnist, "
        "best/DATASET/NAME, paper/METHOD, tuned/DATASET/METHOD or a file",
    ):
        read_recipe("nowhere")
    for text in ("epochs = = 3", f"seed = {'1' * 5000}", f"seed = {'[' * 5000}", "\udcff"):
        (tmp_path / "odd.toml").write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(FaustnetError, match="cannot be read"):
            read_recipe(tmp_path / "odd.toml")


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_are_good_and_open_with_their_command(name: str) -> None:
    recipe_from(read_recipe(name))
    text = (files("faustnet.runs.recipes") / f"{name}.toml").read_text(encoding="utf-8")
    assert text.startswith(f"# faustnet train --recipe {name}")
