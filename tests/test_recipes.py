import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faustnet.cli.launch import recipe_table, stated_table
from faustnet.errors import FaustnetError
from faustnet.runs.recipes import (
    Recipe,
    as_table,
    differences,
    put,
    read_recipe,
    recipe_from,
    set_key,
    shipped_recipes,
    write_recipe,
)
from faustnet.runs.start import complete_recipe

FULL: dict[str, Any] = {
    "dataset": 'a "quoted" folder\\with éverything 😀',
    "method": "faust-representative",
    "seed": 7,
    "options": {
        "representatives": 2,
        "chosen": [4, 5],
        "choice": "random",
        "representatives_per_step": 1,
        "classes_per_step": "batch",
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
        "head": 12,
        "head_side": 3,
        "patch": 4,
        "heads": 4,
        "expansion": 2,
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
        "text_column": "words",
        "label_column": "kind",
        "tokens": 40,
        "vocabulary": 900,
        "digest": "",
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
    "start": {"model": "runs/other", "digest": "0a", "train_layers": [2]},
}


TRANSFORMER = FULL | {
    "network": FULL["network"]
    | {"kind": "transformer", "widths": [30, 30], "norm": "layer", "pools": [], "patch": 2, "heads": 5, "expansion": 3}
}


@pytest.mark.parametrize("full", [FULL, TRANSFORMER], ids=["convolutions", "transformer"])
def test_a_recipe_survives_being_written_and_read(full: dict[str, Any]) -> None:
    recipe = recipe_from(full)
    assert as_table(recipe) == full
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
        ("digits", "A recipe must be a dictionary such as {'dataset': 'digits'}, got 'digits'"),
        ({"epoch": 3}, "no recipe key 'epoch': did you mean training.epochs"),
        ({"nothing": 3}, "no recipe key 'nothing': choose dataset, method, seed"),
        ({"training": {"epoch": 3}}, "no recipe key 'training.epoch': did you mean training.epochs"),
        ({"options": {"scael": 1.0}}, "no recipe key 'options.scael': did you mean options.scale"),
        ({"method": "backprop", "options": {"scale": 1.0}}, "choose options.label_smoothing"),
        ({"method": "faust-tuple"}, "no method 'faust-tuple': did you mean faust-tuplet"),
        ({"method": "xyz"}, "choose backprop, deep-supervision"),
        ({"training": 3}, "training must be a section with keys, got 3"),
        ({"training": {"epochs": 2.5}}, "^training.epochs must be a whole number, got 2.5.$"),
        ({"training": {"epochs": True}}, "training.epochs must be a whole number, got True"),
        ({"start": {"train_layers": [1]}}, "start.digest and start.train_layers need start.model"),
        ({"training": {"epochs": 0}}, "training.epochs must be at least 1, got 0"),
        ({"network": {"widths": 500}}, "^network.widths must be a list of whole numbers, got 500.$"),
        ({"network": {"widths": [500, 0]}}, r"network.widths must be .* at least 1, got \[500, 0\]"),
        ({"data": {"flip": 1}}, "data.flip must be true or false, got 1"),
        ({"data": {"crop": -1}}, "data.crop must be 0 pixels or more, got -1"),
        ({"data": {"cutout": -1}}, "data.cutout must be 0 pixels or more, got -1"),
        ({"data": {"rotation": -1}}, "data.rotation must be from 0 to 180 degrees, got -1"),
        ({"data": {"rotation": 181.0}}, "from 0 to 180 degrees, got 181"),
        ({"data": {"zoom": 1}}, "data.zoom must be at least 0 and below 1, got 1"),
        ({"data": {"zoom": -0.1}}, "at least 0 and below 1, got -0.1"),
        ({"prediction": {"weights": 1}}, "prediction.weights must be a list of numbers, got 1"),
        ({"prediction": {"weights": [0, "1"]}}, "Item 2 of prediction.weights must be a number, got '1'"),
        ({"prediction": {"weights": [0, 0]}}, "not all 0"),
        ({"prediction": {"mirror": 1}}, "prediction.mirror must be true or false"),
        ({"prediction": {"layers": "first"}}, "prediction.layers must be all or last, got 'first'"),
        ({"prediction": {"layers": "last", "weights": [1]}}, "prediction.layers must be all if prediction.weights is set"),
        ({"data": {"stream": "often"}}, "data.stream must be one of auto, always, never, got 'often'"),
        (
            {"data": {"image_size": 100_000}},
            "data.image_size must be from 1 to 512 pixels, or 0 for automatic, got 1",
        ),
        ({"options": {"scale": float("inf")}}, "options.scale must be finite, got inf"),
        ({"optimiser": {"weight_decay": float("nan")}}, "optimiser.weight_decay must be finite, got nan"),
        ({"seed": 2**63}, "seed must be from -4294967296 to 4294967296"),
        ({"training": {"epochs": 10**400}}, "training.epochs must be from"),
        ({"options": {"scale": 10**400}}, "options.scale must be a number, got a very large number"),
        ({"network": {"widths": [10**30]}}, "Item 1 of network.widths must be from"),
        ({"dataset": "a\udcffb"}, "dataset contains invalid Unicode"),
        ({"options": {"scale": "big"}}, "options.scale must be a number, got 'big'"),
        ({"seed": -1}, "seed must be 0 or more, got -1"),
        (
            {"training": {"schedule": "sometimes"}},
            "training.schedule must be auto or sequential or wavefront or greedy, got",
        ),
        ({"training": {"precision": "half"}}, "training.precision must be tf32 or float32 or bfloat16, got"),
        ({"training": {"schedule": "greedy"}, "data": {"flip": True}}, "does not support augmentation"),
        ({"training": {"schedule": "greedy"}, "data": {"rotation": 1}}, "does not support augmentation"),
        ({"training": {"schedule": "greedy"}, "data": {"zoom": 0.1}}, "does not support augmentation"),
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


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("epochs", "set with --set KEY=VALUE, such as --set training.epochs=3, got 'epochs'"),
        ("", "got ''"),
        ("method.x=1", "no recipe key 'method.x': method is a single value"),
    ],
)
def test_an_assignment_that_sets_nothing_is_an_error(assignment: str, said: str) -> None:
    with pytest.raises(FaustnetError, match=said):
        set_key({"method": "backprop"}, assignment)


def test_an_assignment_gets_the_same_errors_as_a_table() -> None:
    table: dict[str, object] = {}
    set_key(table, "network.widths=500")
    with pytest.raises(FaustnetError, match=r"^network\.widths must be a list of whole numbers, got 500\.$"):
        recipe_from(table)


def test_unreadable_recipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FaustnetError,
        match="There is no recipe 'nowhere': choose cifar10, digits, mnist, "
        "best/DATASET/NAME, few-shot/DATASET/METHOD, paper/METHOD, tuned/DATASET/METHOD or a file",
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


@pytest.mark.parametrize(
    ("method", "section", "said"),
    [
        ("forward-forward", {"network": {"norm": "batch"}}, "network.norm has no effect on forward-forward"),
        ("symba", {"network": {"length": "unit"}}, "network.length has no effect on symba"),
        ("sffa", {"network": {"embedding": 8}}, "network.embedding has no effect on sffa"),
        (
            "backprop",
            {"network": {"embedding": 8}},
            "network.embedding has no effect on backprop with network.kind=dense, got 8",
        ),
        ("predsim", {"network": {"norm": "batch"}}, "network.norm has no effect on predsim"),
        (
            "mono-forward",
            {"network": {"kind": "vgg", "norm": "batch"}},
            "network.norm has no effect on mono-forward with .*vgg",
        ),
        ("cwc", {"network": {"passes_on": "embedding"}}, "network.passes_on has no effect on cwc"),
        (
            "faust-tuplet",
            {"network": {"head": 8}},
            "network.head has no effect on faust-tuplet with network.kind=dense, got 8",
        ),
        (
            "faust-tuplet",
            {"optimiser": {"momentum": 0.5}},
            "optimiser.momentum has no effect with optimiser.name=adam, got 0.5",
        ),
        ("faust-centroid", {"options": {"temperature": 0.2}}, "options.temperature has no effect with options.contrast=0"),
        ("faust-representative", {"options": {"choice": "k-means", "chosen": [1]}}, "options.choice has no effect with"),
    ],
)
def test_keys_without_effect_are_refused_in_a_new_training_only(method: str, section: dict[str, Any], said: str) -> None:
    table = {"method": method, **section}
    with pytest.raises(FaustnetError, match=f"^{said}.*leave .*out"):
        complete_recipe(table)
    stored = recipe_from(table)
    assert (
        complete_recipe(table, begun=stored)
        == stored
        == complete_recipe(as_table(stored))
        == complete_recipe(table, stated={})
    )


def test_keys_with_an_effect_and_default_values_are_accepted() -> None:
    for table in (
        {"method": "mono-forward", "network": {"norm": "batch", "embedding": 256}},
        {"method": "cwc", "network": {"norm": "batch", "widths": [50, 30]}},
        {"method": "predsim", "network": {"kind": "vgg", "widths": [16, 16, 16], "pools": [1, 3]}},
        {"method": "backprop", "network": {"kind": "vgg", "widths": [8, 8], "head": 16, "head_side": 4}},
        {"method": "deep-supervision", "network": {"kind": "transformer", "widths": [30, 30], "heads": 5, "patch": 3}},
        {"method": "faust-prototype", "options": {"contrast": 0.5, "temperature": 0.2}},
        {"method": "ffcm", "options": {"temperature": 0.2}, "network": {"passes_on": "embedding"}},
        {"optimiser": {"name": "muon", "momentum": 0.5}},
    ):
        assert complete_recipe(table) == recipe_from(table)


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_is_trained_although_baselines_state_keys_of_the_other_method(name: str) -> None:
    table = recipe_table(name, {"seed": 3}, [])
    assert complete_recipe(table, stated=stated_table(name, {"seed": 3}, [])) == recipe_from(table)


def test_an_option_beside_a_shipped_recipe_and_a_recipe_file_are_checked(tmp_path: Path) -> None:
    for given in (
        ("best/digits/mlp-backprop", {"network.embedding": 32}, []),
        (None, {}, ["network.embedding=32", "method=backprop"]),
    ):
        with pytest.raises(FaustnetError, match=r"^network\.embedding has no effect on backprop .* got 32: leave it out\.$"):
            complete_recipe(recipe_table(*given), stated=stated_table(*given))
    (tmp_path / "own.toml").write_text("[optimiser]\nmomentum = 0.5")
    assert stated_table(str(tmp_path / "own.toml"), {}, []) == {"optimiser": {"momentum": 0.5}}
    (tmp_path / "recipe.toml").write_text(write_recipe(recipe_from({"optimiser": {"momentum": 0.5}})))
    assert stated_table(str(tmp_path / "recipe.toml"), {"seed": 3}, []) == {"seed": 3}


def test_the_recipe_of_a_run_of_an_earlier_version_may_state_keys_without_effect() -> None:
    table = read_recipe(Path(__file__).parent / "fixtures/0.1/backprop/recipe.toml")
    put(table, "network.embedding", 8)
    assert complete_recipe(table) == recipe_from(table)
