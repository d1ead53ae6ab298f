"""The strongest recipes beside their twins, and with one piece changed at a time, on small data."""

import json
import shutil
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch

import faustnet as package
from conftest import Answer, started
from faustnet.data import ImageSource
from faustnet.losses import squared_distances
from faustnet.reproduce import ablation
from faustnet.reproduce.ablation import CHANGES, UNCHANGED, AblationJob, ablation_jobs, summary, with_change
from faustnet.reproduce.best import LOCAL, ROLES, BestJob, best_names, difference, role_of
from faustnet.runs.recipes import (
    Recipe,
    as_table,
    changed,
    choice_of_recipe,
    differences,
    recipe_from,
    shipped_recipes,
)

Command = Callable[..., Answer]
DIGITS = ("--names", "digits/mlp", "--seeds", "1", "--device", "cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of a recipe and its twin."""
    from faustnet.cli import main

    out = tmp_path_factory.mktemp("best")
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "best", *DIGITS, "--out", str(out)])
    assert not end.value.code
    return out


def test_a_recipe_stands_beside_its_twin(made: Path) -> None:
    names = {"digits/mlp": "digits-mlp-0.json", "digits/mlp-backprop": "digits-mlp-backprop-0.json"}
    assert sorted(path.name for path in (made / "best").iterdir()) == sorted(names.values()), "and no run is left"
    cells = {cell["name"]: cell for cell in json.loads((made / "best.json").read_text())}
    assert cells.keys() == names.keys()
    for name, cell in cells.items():
        result = json.loads((made / "best" / names[name]).read_text())
        assert cell["mean"] == pytest.approx(100 * result["test_accuracy"], abs=1e-3)
        assert cell["mean"] > 95
        assert (cell["std"], cell["seeds"], cell["dataset"]) == (None, 1, "digits")
        assert cell["role"] == role_of(name) == ("backprop" if cell["method"] == "backprop" else LOCAL)
        assert (cell["of"], cell["tuning"]) == ("digits/mlp", "learning-rate")
        assert cell["trials"] >= 1
        assert (cell["parameters"], cell["epochs"]) == (result["parameters"], len(result["history"]))
    one, twin = cells["digits/mlp"], cells["digits/mlp-backprop"]
    rows = (made / "best.md").read_text().splitlines()[2:]
    gain = f"{one['mean'] - twin['mean']:+.2f}".replace("-", "−")
    assert len(rows) == 1
    trials, sizes = f"{one['trials']} / {twin['trials']}, learning-rate", f"{one['trunk_parameters']:,}"
    first = f"| digits/mlp | {one['mean']:.2f} | {twin['mean']:.2f} | {gain} | – | – | {trials} | {sizes} |"
    assert rows[0].startswith(f"{first} {one['parameters']:,} /")


@pytest.mark.parametrize(
    ("mean", "std", "said"), [(70.0, 0.5, "+2.00 ± 1.12"), (68.5, 0.5, "+0.50 ± 1.12 ○"), (67.0, None, "−1.00")]
)
def test_a_difference_has_an_interval_and_a_mark_where_it_may_be_zero(mean: float, std: float | None, said: str) -> None:
    """Welch's interval for two groups of 5 with standard deviations 0.5 and 0.9: t(6.26) = 2.42, s = 0.46."""
    twin = {"mean": 68.0, "std": 0.9, "seeds": 5}
    assert difference({"mean": mean, "std": std, "seeds": 5}, twin) == said


@pytest.mark.parametrize(("mean", "said"), [(70.0, "+2.00"), (68.0, "+0.00")])
def test_a_difference_between_runs_that_do_not_differ_has_no_interval(mean: float, said: str) -> None:
    same = {"mean": 68.0, "std": 0.0, "seeds": 3}
    assert difference({**same, "mean": mean}, same) == said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["faustnet.training.loop.evaluate", "faustnet.reproduce.worker.write_result"])
def test_a_request_to_end_is_heard_however_late_in_a_run_it_comes(
    where: str, number: signal.Signals, faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its last evaluation, or when it is done: the next run does not begin, and the same command goes on."""
    module, name = where.rsplit(".", 1)
    does = getattr(import_module(module), name)
    short = changed(BestJob("digits/mlp", 0).recipe, {"training.epochs": 1})
    monkeypatch.setattr(BestJob, "recipe", property(lambda self: changed(short, {"seed": self.seed})))

    def asked(*arguments: object) -> object:
        found = does(*arguments)
        signal.raise_signal(number)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(where, asked)
        assert faustnet("reproduce", "best", *DIGITS, "--no-twins", "--seeds", "2", "--out", tmp_path).code == 130
    assert [path.name for path in (tmp_path / "best").glob("*.json")] == ["digits-mlp-0.json"]
    assert [cell["seeds"] for cell in json.loads((tmp_path / "best.json").read_text())] == [1]
    assert faustnet("reproduce", "best", *DIGITS, "--no-twins", "--seeds", "2", "--out", tmp_path).code == 0
    assert len(list((tmp_path / "best").glob("*.json"))) == 2


def test_the_table_is_written_with_each_result(
    made: Path, faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_only(job: BestJob, out: Path, *others: object) -> None:
        if role_of(job.name) != LOCAL:
            raise KeyboardInterrupt
        job.file(out).parent.mkdir()
        shutil.copy(job.file(made), job.file(out))

    monkeypatch.setattr("faustnet.reproduce.worker.train_job", first_only)
    assert faustnet("reproduce", "best", *DIGITS, "--out", tmp_path).code == 130
    assert [cell["name"] for cell in json.loads((tmp_path / "best.json").read_text())] == ["digits/mlp"]
    assert "| – | – |" in (tmp_path / "best.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["best", "--names", "digits/mpl"],
            "There is no recipe 'digits/mpl': did you mean digits/mlp?",
        ),
        (["best", "--names", "digits/mlp-backprop"], "did you mean digits/mlp?"),
        (["best", "--names", ","], "--names must contain at least one recipe"),
        (["best", "--names", "digits/mlp", "--seeds", "0"], "--seeds must be from 1 to 1000, got 0"),
        (["best", "--names", "digits/mlp", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["ablation", "--base", "digits/mpl"], "did you mean digits/mlp?"),
        (["ablation", "--base", "digits/mlp-backprop"], "did you mean digits/mlp?"),
        (["ablation", "--base", "digits/mlp", "--seeds", "0"], "--seeds must be from 1 to 1000, got 0"),
        (
            ["ablation", "--base", "cifar10/cwc"],
            "--base must be a recipe of a FAUST method, got cifar10/cwc, a recipe of cwc",
        ),
        (
            ["table1", "--methods", "cwc", "--datasets", "digits"],
            "There is no paper recipe for cwc (paper/cwc): use --recipes",
        ),
    ],
)
def test_what_cannot_be_made_is_said_in_a_sentence(words: list[str], said: str, faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet("reproduce", *words, "--out", tmp_path / "out")
    assert answer.code == 2
    assert said in answer.sentence
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_result_of_ours_is_said_to_be_one(made: Path, faustnet: Command, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "out")
    path = tmp_path / "out/best/digits-mlp-0.json"
    whole = json.loads(path.read_text())
    for wrong in ({"name": "digits/other"}, {"name": 3}, {"test_accuracy": None}):
        path.write_text(json.dumps(whole | wrong))
        answer = faustnet("reproduce", "best", *DIGITS, "--out", tmp_path / "out")
        assert answer.code == 2
        assert "is not a result of" in answer.sentence
    whole["recipe"]["training"]["epochs"] = 3
    path.write_text(json.dumps(whole))
    assert "was made with training.epochs = " in faustnet("reproduce", "best", *DIGITS, "--out", tmp_path / "out").sentence


@pytest.mark.parametrize("name", best_names())
def test_a_twin_differs_in_its_method_and_in_what_was_tuned(name: str) -> None:
    """Other methods than FAUST's have none."""
    recipe = BestJob(name, 0).recipe
    assert recipe.dataset == name.split("/")[0]
    assert not recipe.training.validation, "it is trained on all training images"
    endings = [ending for ending in ROLES if f"best/{name}{ending}" in shipped_recipes()]
    assert ("-backprop" in endings) == recipe.method.startswith("faust-")
    for ending in endings:
        check_twin(recipe, name, ending)


def check_twin(recipe: Recipe, name: str, ending: str) -> None:
    twin, tuning = BestJob(name + ending, 0).recipe, choice_of_recipe(name + ending)
    assert tuning is not None
    assert twin.method == ROLES[ending]
    tuned = {"optimiser.learning_rate"}
    if tuning["tuning"] == "equal":
        tuned |= {"optimiser.weight_decay", "network.dropout", "options.label_smoothing", "options.mixup", "data.cutout"}
        assert tuning == choice_of_recipe(name), "the same number of trials"
    elif recipe.network.kind == "transformer":  # the twin had the same trials
        tuned |= {"optimiser.name", "network.dropout", "network.length"}
    other = set(differences(recipe, twin)) - tuned
    assert {key for key in other if not key.startswith("options.")} <= {"method", "prediction.weights"}, "one voter"
    for option in twin.options.keys() & recipe.options.keys() - {key.removeprefix("options.") for key in tuned}:
        assert twin.options[option] == recipe.options[option], option


FULL = changed(
    BestJob("digits/mlp", 0).recipe,
    {
        "options.contrast": 0.3, "options.temperature": 0.2, "options.mixup": 0.4, "network.input_dropout": 0.1,
        "network.length": "unit", "options.scale": 4.0, "data.cutout": 2, "data.crop": 1, "data.flip": True,
        "options.matching": 0.5, "network.norm": "batch", "data.rotation": 5.0, "data.zoom": 0.1, "prediction.mirror": True,
    },
)  # fmt: skip


def changes_of(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> dict[str, Recipe]:
    monkeypatch.setattr(BestJob, "recipe", property(lambda self: recipe))
    return {one.change: one.recipe for one in ablation_jobs("digits/mlp", 1)}


def test_every_piece_is_changed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found = changes_of(FULL, monkeypatch)
    assert found.keys() == dict(CHANGES).keys() - {
        "representatives by k-means (one: the medoid)", "contrast of 0.5", "MixUp of 0.2", "embeddings of unit length",
        "similarity matching of 1", "batch norm instead of layer norm",
    }  # fmt: skip
    base = found.pop(UNCHANGED)
    assert base.training.validation == 0.2
    assert differences(base, FULL).keys() == {"training.validation", "training.evaluate_every"}
    for words, recipe in found.items():
        keys = differences(recipe, base).keys() - {"training.evaluate_every"}
        if "method" not in dict(CHANGES)[words]:
            same = {"options.scale"} if words == "embeddings of learned length" else set()
            assert keys == dict(CHANGES)[words].keys() - same
    prototypes = found["learned prototypes"]
    own = ("representatives", "choice", "chosen", "representatives_per_step", "classes_per_step")
    kept = {key: value for key, value in FULL.options.items() if key not in own}
    assert prototypes.options == {"prototypes": FULL.options["representatives"], **kept}
    assert found["half the epochs"].training.epochs == FULL.training.epochs // 2
    assert found["half the contrast's temperature"].options["temperature"] == 0.1
    assert found["AdamW instead of Muon"].optimiser.name == "adamw"


def test_what_is_off_is_not_turned_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = recipe_from({"training": {"epochs": 1}, "options": {"contrast": 0.0}})
    assert changes_of(plain, monkeypatch).keys() == {
        UNCHANGED, "representatives by k-means (one: the medoid)", "learned prototypes", "contrast of 0.5",
        "half the scale of distances", "twice the scale of distances", "embeddings of unit length",
        "embeddings of learned length", "MixUp of 0.2", "a constant learning rate", "centroids that are running means",
        "similarity matching of 1", "a scale that grows fivefold", "batch norm instead of layer norm",
        "the last layer's vote alone",
    }  # fmt: skip


def test_other_methods_are_not_given_options_that_they_have_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = changes_of(changed(FULL, {"method": "faust-prototype", "options.prototypes": 4}), monkeypatch)
    assert not found.keys() & {"learned prototypes", "representatives at random", "one representative of each class"}
    assert found.keys() >= {"no contrast", "no label smoothing"}


def test_the_scale_goes_with_the_length(source: ImageSource) -> None:
    """An embedding of another length has other distances, so the scale is such that they count as much at first."""
    recipe = recipe_from({"network": {"widths": [256, 256], "embedding": 48}, "options": {"scale": 0.03}})
    weights = []
    for words in (UNCHANGED, "embeddings of unit length", "embeddings of learned length"):
        one = with_change(recipe, dict(CHANGES)[words])
        method = started("faust-representative", source, one.network, scale=one.options["scale"])
        with torch.no_grad():
            embedding = next(method.network.embeddings(source.plain(torch.arange(100))))
        weights.append(float(one.options["scale"] * squared_distances(embedding, embedding).mean()))
    assert weights[1] == pytest.approx(weights[0], rel=0.1)
    assert weights[2] == pytest.approx(weights[1], rel=1e-5)
    unit = with_change(recipe, dict(CHANGES)["embeddings of unit length"])
    assert with_change(unit, dict(CHANGES)["embeddings of free length"]).options["scale"] == pytest.approx(0.03)


def test_the_difference_of_a_change_has_an_interval() -> None:
    found = [
        {"base": "digits/mlp", "base_epochs": 6, "change": change, "validation_accuracy": mean + spread}
        for change, mean in ((UNCHANGED, 0.7), ("no MixUp", 0.69))
        for spread in (-0.001, 0.0, 0.001)
    ]
    whole, other = summary(found)
    assert (whole["difference"], whole["difference_interval"]) == (0.0, None)
    half = 2.776 * 0.1 * (2 / 3) ** 0.5  # t(4) of 95 %
    assert (other["difference"], other["difference_interval"]) == (-1.0, pytest.approx(half, abs=1e-3))
    assert ablation.rows([whole, other]) == [
        [UNCHANGED, "70.00 ± 0.10", "+0.00"],
        ["no MixUp", "69.00 ± 0.10", "−1.00 ± 0.23"],
    ]
    assert [cell["difference_interval"] for cell in summary(found[2:4])] == [None, None], "one run each"


def test_ablation_measures_validation_images(faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = (UNCHANGED, "embeddings of unit length", "no MixUp", "half the epochs")
    monkeypatch.setattr(ablation, "CHANGES", tuple((words, changes) for words, changes in CHANGES if words in few))
    out = tmp_path / "out"
    words = ("reproduce", "ablation", "--base", "digits/mlp", "--seeds", "1", "--device", "cpu", "--out", out, "--epochs")
    answer = faustnet(*words, 6)
    assert answer.code == 0, answer.err
    cells = {cell["change"]: cell for cell in json.loads((out / "ablation.json").read_text())}
    assert list(cells) == [UNCHANGED, few[1], "half the epochs"], "there is no MixUp to be left out"
    run = package.train(as_table(AblationJob("digits/mlp", 6, UNCHANGED, 0).recipe), tmp_path / "run")
    assert cells[UNCHANGED]["mean"] == pytest.approx(100 * run.metrics["validation_accuracy"], abs=1e-3)
    assert run.metrics["validation_accuracy"] != run.metrics["test_accuracy"]
    gap = cells["half the epochs"]["mean"] - cells[UNCHANGED]["mean"]
    assert cells["half the epochs"]["difference"] == pytest.approx(gap, abs=2e-3)
    row = f"| half the epochs | {cells['half the epochs']['mean']:.2f} | {gap:+.2f} |".replace("-", "−")
    assert row in (out / "ablation.md").read_text()
    halved = out / "ablation/digits-mlp-6-epochs-half-the-epochs-0.json"
    result = json.loads(halved.read_text())
    assert result["recipe"]["training"]["epochs"] == len(result["history"]) == 3
    assert "seed 0: " not in faustnet(*words, 6).err, "what was trained is not trained again"
    results = ablation.TABLE.read(out)
    assert summary([{**one, "test_accuracy": 0.0} for one in results]) == list(cells.values())
    shorter = faustnet(*words, 2)
    assert shorter.code == 0, shorter.err
    cells = json.loads((out / "ablation.json").read_text())
    assert {(cell["epochs"], cell["seeds"]) for cell in cells} == {(2, 1), (6, 1)}
    assert "6 epochs:" in (out / "ablation.md").read_text()
    halved.write_text(json.dumps({**result, "validation_accuracy": None}))
    assert "is not a result of a run" in faustnet(*words, 6).sentence
