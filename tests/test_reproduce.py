"""The paper's table and figures, on small data: what is trained, what is kept, what is shown."""

import json
import shutil
import signal
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conftest import Answer
from faustnet.errors import FaustnetError
from faustnet.methods import METHODS
from faustnet.methods.backprop import Backprop
from faustnet.report.paper import TABLE_1
from faustnet.report.table1 import as_latex, as_markdown
from faustnet.reproduce import jobs
from faustnet.reproduce.figures import curves
from faustnet.reproduce.jobs import Job, Table1Job, table1_jobs
from faustnet.reproduce.representatives import RepresentativesJob
from faustnet.reproduce.results import is_done, method_titles
from faustnet.reproduce.table1 import TABLE, summary
from faustnet.reproduce.worker import StoppableProgress
from faustnet.runs.recipes import changed, recipe_from, shipped_recipes
from faustnet.training.history import Epoch
from faustnet.training.loop import Diverged, TrainingLoop

Command = Callable[..., Answer]
SMALL = ("--datasets", "digits", "--networks", "2x24", "--recipes", "tuned", "--device", "cpu")
BOTH = ("--methods", "backprop,faust-representative")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of two methods and two seeds."""
    from faustnet.cli import main

    out = tmp_path_factory.mktemp("results")
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "table1", *SMALL, *BOTH, "--seeds", "2", "--out", str(out)])
    assert not end.value.code
    return out


def interrupt_in_epoch_3(progress: StoppableProgress, epoch: Epoch) -> None:
    if epoch.epoch == 3:
        signal.raise_signal(signal.SIGINT)


def shorten(monkeypatch: pytest.MonkeyPatch, job: type[Job]) -> None:
    """Train the jobs of a class for five epochs."""
    full = vars(job)["recipe"].fget
    short = {"training.epochs": 5, "training.evaluate_every": 5}
    monkeypatch.setattr(job, "recipe", property(lambda self: changed(full(self), short)))


def results(out: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in sorted(out.glob("table1/*/*.json"))}


def test_the_table_is_the_mean_and_the_deviation_of_the_results(made: Path) -> None:
    cells = json.loads((made / "table1.json").read_text())
    assert [cell["method"] for cell in cells] == ["backprop", "faust-representative"]
    for cell in cells:
        found = [100 * one["test_accuracy"] for one in results(made).values() if one["method"] == cell["method"]]
        assert cell["mean"] == pytest.approx(statistics.mean(found), abs=1e-3)
        assert cell["std"] == pytest.approx(statistics.stdev(found), abs=1e-3)
        assert (cell["dataset"], cell["network"], cell["recipe"], cell["seeds"]) == ("digits", "2x24", "tuned", 2)
        assert cell["mean"] > 85
    assert not list(made.glob("table1/*/*.run")), "a run that is done leaves its result only"


def test_a_result_says_what_it_was_made_with(made: Path) -> None:
    result = results(made)["digits-2x24-backprop-1.json"]
    assert result["recipe"]["network"]["widths"] == [24, 24]
    assert result["recipe"]["seed"] == result["seed"] == result["environment"]["seed"] == 1
    assert len(result["history"]) == result["epochs"] == result["recipe"]["training"]["epochs"]
    assert result["history"][-1]["accuracy"] == result["test_accuracy"]
    assert result["environment"]["torch"]
    assert result["seconds"] >= result["train_seconds"] > 0


def test_what_is_done_is_not_done_again_and_more_seeds_are_added(made: Path, faustnet: Command, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "out")
    before = results(tmp_path / "out")
    answer = faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "3", "--out", tmp_path / "out")
    assert answer.code == 0
    after = results(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert len(after) == 6
    assert [line.split()[0] for line in answer.err.splitlines()] == ["4/6", "5/6", "5/6", "6/6"]
    assert "Backpropagation" in answer.out
    assert "digits" in answer.out


def test_an_interrupted_run_goes_on_to_the_same_result(
    made: Path, faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            StoppableProgress, "epoch", lambda self, epoch: epoch.epoch == 3 and signal.raise_signal(signal.SIGINT)
        )
        answer = faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--out", tmp_path)
    assert answer.code == 130
    assert "run the same command again" in answer.sentence
    assert [path.name for path in tmp_path.glob("table1/*/*")] == ["digits-2x24-backprop-0.run"]
    assert faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--out", tmp_path).code == 0
    for name, result in results(tmp_path).items():
        assert result["test_accuracy"] == results(made)[name]["test_accuracy"]
        assert [e["losses"] for e in result["history"]] == [e["losses"] for e in results(made)[name]["history"]]


def test_one_that_diverges_does_not_keep_the_others_from_being_trained(
    faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(trainer: TrainingLoop) -> None:
        if trainer.method.name == "backprop":
            raise Diverged("The loss is no longer a finite number.")

    monkeypatch.setattr(TrainingLoop, "_check_finite", broken)
    answer = faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--out", tmp_path)
    assert answer.code == 2
    failed = "backprop on digits, 2x24, tuned, seed 0 could not be trained, but all other runs are finished: "
    assert f"{failed}The loss is no longer" in answer.sentence
    assert [*results(tmp_path)] == ["digits-2x24-faust-representative-0.json"]


def test_a_name_twice_is_one_job() -> None:
    assert len(table1_jobs(["tuned"], ["backprop", "backprop"], ["digits"], ["2x24"], 1)) == 1


def test_the_tables_methods_and_data_sets_are_those_with_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["paper/backprop", *(f"tuned/{dataset}/backprop" for dataset in ("mnist", "fashion-mnist", "cifar10", "digits"))]
    monkeypatch.setattr(jobs, "shipped_recipes", lambda: [*names, "tuned/cifar100/backprop", "tuned/cifar100/predsim"])
    found = table1_jobs(["paper", "tuned"], None, None, ["3x500"], 1)
    paper = ["mnist", "fashion-mnist", "cifar10"]
    assert [(job.family, job.dataset, job.method) for job in found] == [
        *(("paper", dataset, "backprop") for dataset in paper),
        *(("tuned", dataset, "backprop") for dataset in paper),
        ("tuned", "cifar100", "backprop"),
        ("tuned", "cifar100", "predsim"),
    ]
    monkeypatch.setattr(jobs, "shipped_recipes", lambda: names)
    assert {job.dataset for job in table1_jobs(["tuned"], None, None, ["3x500"], 1)} == set(paper)
    with pytest.raises(FaustnetError, match="There are no tuned recipes for cifar100: use --recipes default"):
        table1_jobs(["tuned"], None, ["cifar100"], ["3x500"], 1)


class OwnMethod(Backprop):
    """A method that a user has registered, without recipes of its own."""

    name: ClassVar[str] = "own_method"


def test_a_users_method_without_recipes_is_in_the_table(
    faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, OwnMethod.name, OwnMethod)
    words = ("reproduce", "table1", *SMALL, "--methods", f"backprop,{OwnMethod.name}", "--seeds", "1", "--out", tmp_path)
    refused = faustnet(*words)
    assert refused.code == 2
    assert "There is no tuned recipe for own_method (tuned/digits/own_method): use --recipes default" in refused.sentence
    assert not list(tmp_path.iterdir()), "before any training"
    short = recipe_from({"training": {"epochs": 1}, "network": {"widths": [8]}})
    monkeypatch.setattr(Table1Job, "recipe", property(lambda job: changed(short, {"method": job.method})))
    answer = faustnet(*words, "--recipes", "default")
    assert answer.code == 0, answer.err
    assert OwnMethod.name in answer.out
    assert f"| {OwnMethod.name} | **" in (tmp_path / "table1.md").read_text()
    assert r"own\_method & " in (tmp_path / "table1.tex").read_text()
    monkeypatch.delitem(METHODS, OwnMethod.name)
    later = faustnet("reproduce", "table1", *SMALL, *BOTH, "--out", tmp_path)
    assert "is a result of 'own_method', which is not in METHODS: register it, or move the file" in later.sentence


def test_default_recipes_are_the_default_settings() -> None:
    recipe = Table1Job("default", "forward-forward", "mnist", "3x500", 2).recipe
    expected = {"method": "forward-forward", "dataset": "mnist", "network": {"widths": [500] * 3}, "seed": 2}
    assert recipe == recipe_from(expected)
    named = {job.method for job in table1_jobs(["default"], None, ["digits"], ["2x24"], 1)}
    assert named == METHODS.keys() - {"cwc", "trifecta"}, "these need convolutions, or other widths"
    with pytest.raises(FaustnetError, match="trifecta cannot be trained with default settings and --networks 2x24"):
        table1_jobs(["default"], ["backprop", "trifecta"], ["digits"], ["2x24"], 1)


def test_a_file_that_was_put_aside_is_not_counted(made: Path, faustnet: Command, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "out")
    path = tmp_path / "out/table1/tuned/digits-2x24-backprop-0.json"
    shutil.copy(path, path.with_name("old.json"))
    path.with_suffix(".run").mkdir()
    assert faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "2", "--out", tmp_path / "out").code == 0
    assert (tmp_path / "out/table1.json").read_text() == (made / "table1.json").read_text()
    assert not path.with_suffix(".run").exists(), "what is left of a run that is done goes"


def test_a_folder_that_takes_nothing_is_said_to_be_one(faustnet: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in ("table1", "figure2", "figure3"):
        small = SMALL if command == "table1" else ("--dataset", "digits", "--network", "2x24")
        assert "could not be written to" in faustnet("reproduce", command, *small, "--out", tmp_path / "file").sentence


def test_a_recipe_in_the_working_folder_is_not_taken_for_ours(
    faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tuned/digits").mkdir(parents=True)
    (tmp_path / "tuned/digits/backprop").write_text("epochs = 1")
    monkeypatch.chdir(tmp_path)
    assert Table1Job("tuned", "backprop", "digits", "2x24", 0).recipe.training.epochs == 30


def test_a_result_of_another_recipe_is_neither_used_nor_lost(made: Path, faustnet: Command, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "out")
    path = tmp_path / "out/table1/tuned/digits-2x24-backprop-0.json"
    text = path.read_text().replace('"epochs": 30, "batch_size": 64', '"epochs": 31, "batch_size": 64')
    path.write_text(text)
    answer = faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--out", tmp_path / "out")
    assert answer.code == 2
    assert "made with training.epochs = 31 instead of 30: move or delete it" in answer.sentence
    assert path.read_text() == text


def test_all_results_of_another_recipe_are_named_at_once(made: Path, faustnet: Command, tmp_path: Path) -> None:
    folder = tmp_path / "table1/tuned"
    text = (made / "table1/tuned/digits-2x24-backprop-0.json").read_text()
    stale = text.replace('"epochs": 30, "batch_size": 64', '"epochs": 31, "batch_size": 64')
    folder.mkdir(parents=True)
    paths = [folder / f"digits-2x24-backprop-{seed}.json" for seed in range(13)]
    for seed, path in enumerate(paths):
        own = stale if seed else text
        path.write_text(own.replace('"seed": 0', f'"seed": {seed}'))
    words = ("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--out", tmp_path)
    named = sorted(paths[1:])[:10]
    assert faustnet(*words).sentence == (
        f"faustnet: {', '.join(map(str, named))} and 2 others were made with other settings than the recipes have now: move "
        "or delete them, or choose another --out."
    )
    for path in paths[3:]:
        path.unlink()
    assert f"{paths[1]} and {paths[2]} were made with other settings" in faustnet(*words).sentence


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "backdrop"], "There is no method 'backdrop'"),
        (["--methods", ""], "--networks and --recipes must each contain at least one name"),
        (["--networks", "3by500"], "such as 3x500, got '3by500'"),
        (["--datasets", "imagenet"], "choose digits, mnist, fashion-mnist, cifar10"),
        (["--recipes", "best"], "choose paper, tuned, default"),
        (["--seeds", "0"], "--seeds must be from 1 to 1000, got 0"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--backend", "rey"], "There is no backend 'rey': did you mean ray?"),
        (["--backend", "dask"], "--backend dask needs --address, such as tcp://HOST:8786"),
        (["--address", "HOST:6379"], "add --backend dask or --backend ray"),
        (
            ["--backend", "ray", "--address", "HOST:6379", "--device", "gpu"],
            "--device must be auto or cpu or cuda or mps, got 'gpu'",
        ),
    ],
)
def test_what_cannot_be_reproduced_is_said_in_a_sentence(
    words: list[str], said: str, faustnet: Command, tmp_path: Path
) -> None:
    answer = faustnet("reproduce", "table1", *SMALL, *words, "--out", tmp_path / "out")
    assert answer.code == 2
    assert said in answer.sentence
    assert not (tmp_path / "out").exists()


def test_a_damaged_result_is_said_to_be_one(made: Path, faustnet: Command, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "out")
    for text in ('{"test_accuracy": 0.9', "[]", "null", '{"test_accuracy": 0.9}', '{"method": 1, "recipe": 3}'):
        (tmp_path / "out/table1/tuned/digits-2x24-backprop-0.json").write_text(text)
        answer = faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--out", tmp_path / "out")
        assert answer.code == 2
        assert "is not a result of" in answer.sentence


def test_every_cell_of_the_papers_table_can_be_made() -> None:
    for method, cells in TABLE_1.items():
        for dataset, network in cells:
            for family in ("paper", "tuned"):
                recipe = Table1Job(family, method, dataset, network, 4).recipe
                assert (recipe.method, recipe.dataset, recipe.seed) == (method, dataset, 4)
                assert recipe.network.widths == {"3x500": (500,) * 3, "4x800": (800,) * 4}[network]
                assert not recipe.training.validation, "the table is of models that have seen all training images"
                assert method == "ffcm" or not recipe.data.augmentation
    paper = Table1Job("paper", "faust-representative", "cifar10", "3x500", 0).recipe
    assert (paper.optimiser.name, paper.optimiser.learning_rate, paper.optimiser.decay) == ("adam", 1e-3, "constant")
    assert (paper.training.batch_size, paper.network.embedding, paper.options["scale"]) == (256, 256, 1.0)
    assert {name for name in shipped_recipes() if name.startswith("tuned/digits/")}


CELLS = [
    {"method": "backprop", "dataset": "cifar10", "network": "3x500", "recipe": "tuned", "mean": 57.5, "std": 0.21,
     "seeds": 5, "paper": 57.3},
    {"method": "symba", "dataset": "cifar10", "network": "3x500", "recipe": "tuned", "mean": 54.0, "std": None,
     "seeds": 1, "paper": None},
    {"method": "faust-tuplet", "dataset": "mnist", "network": "4x800", "recipe": "tuned", "mean": 98.5, "std": 0.1,
     "seeds": 5, "paper": 98.69},
]  # fmt: skip


def test_markdown_and_latex_show_the_papers_figure_and_the_difference() -> None:
    markdown = as_markdown(CELLS, "tuned", method_titles()).splitlines()
    assert markdown[0] == "| tuned, 1 to 5 seeds (in brackets) | MNIST 4×800 | CIFAR-10 3×500 |"
    assert markdown[2] == "| Backpropagation | – | **57.50 ± 0.21 (5)**<br>57.30 (+0.20) |"
    assert markdown[3] == "| SymBa | – | **54.00 (1)** |"
    assert markdown[4] == "| FAUST-vanilla tuplet | **98.50 ± 0.10 (5)**<br>98.69 (−0.19) | – |"
    same = as_markdown([CELLS[0], CELLS[2]], "tuned", method_titles()).splitlines()
    assert same[0] == "| tuned, 5 seeds | MNIST 4×800 | CIFAR-10 3×500 |"
    assert same[2] == "| Backpropagation | – | **57.50 ± 0.21**<br>57.30 (+0.20) |"
    latex = as_latex(CELLS, "tuned", method_titles())
    assert r"Backpropagation & -- & 57.50 $\pm$ 0.21 (5) \\" in latex
    assert r"\quad paper & -- & 57.30 ($+0.20$) \\" in latex
    assert latex.count("{") == latex.count("}")


def test_curves_are_means_over_the_seeds_epoch_by_epoch(made: Path) -> None:
    runs = [one for one in results(made).values() if one["method"] == "faust-representative"]
    last = len(runs[0]["history"]) - 1
    found = {curve["label"]: curve for curve in curves(runs)}
    assert list(found) == ["{1}", "{2}", "{1,2}"]
    for label, value in (
        ("{2}", lambda epoch: epoch["layer_accuracy"][1]),
        ("{1,2}", lambda epoch: epoch["accuracy"]),
    ):
        both = [100 * value(run["history"][last]) for run in runs]
        assert found[label]["mean"][last] == pytest.approx(statistics.mean(both), abs=1e-3)
        assert found[label]["std"][last] == pytest.approx(statistics.stdev(both), abs=1e-3)
        assert found[label]["mean"][0] is None, "it was not measured then"


def test_the_study_of_representatives_trains_every_kind_and_number(
    faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    shorten(monkeypatch, RepresentativesJob)
    words = ("--datasets", "digits", "--network", "2x24", "--draws", "2", "--counts", "3", "--device", "cpu")
    answer = faustnet("reproduce", "representatives", *words, "--out", tmp_path)
    assert answer.code == 0, answer.err
    points = {(p["kind"], p["count"]): p for p in json.loads((tmp_path / "representatives.json").read_text())}
    assert {key: len(point["accuracies"]) for key, point in points.items()} == {
        ("random", 1): 2, ("random", 3): 2, ("k-means", 3): 2, ("prototype", 3): 2,
    }  # fmt: skip
    for (kind, count), point in points.items():
        assert point["mean"] == pytest.approx(statistics.mean(point["accuracies"]), abs=1e-3)
        assert point["mean"] > 70
        result = json.loads((tmp_path / f"representatives/digits-2x24-{kind}-{count}-0.json").read_text())
        options = result["recipe"]["options"]
        assert options["prototypes" if kind == "prototype" else "representatives"] == count
        assert kind == "prototype" or options["choice"] == kind
    assert (tmp_path / "figures/representatives.svg").exists()
    assert "training" not in faustnet("reproduce", "representatives", *words, "--out", tmp_path).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--datasets", "imagenet"], "There is no data set"),
        (["--network", "3by500"], "such as 3x500, got '3by500'"),
        (["--counts", "1,0"], "--counts must be at least 1, got 0"),
        (["--counts", "few"], "whole numbers"),
        (["--draws", "0"], "--draws must be from 1 to 1000, got 0"),
    ],
)
def test_a_study_that_cannot_be_is_said_in_a_sentence(
    words: list[str], said: str, faustnet: Command, tmp_path: Path
) -> None:
    small = ("--datasets", "digits", "--network", "2x24", "--out", tmp_path / "out")
    answer = faustnet("reproduce", "representatives", *small, *words)
    assert answer.code == 2
    assert said in answer.sentence
    assert not (tmp_path / "out").exists()


def test_figures_are_drawn_from_what_was_trained(faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    shorten(monkeypatch, Table1Job)
    small = ("--dataset", "digits", "--network", "2x24", "--out", tmp_path)
    assert faustnet("reproduce", "figure1", *small).code == 0
    answer = faustnet("reproduce", "figure2", *small, "--device", "cpu")
    assert answer.code == 0, answer.err
    facts = json.loads((tmp_path / "figure2.json").read_text())
    assert len(facts["layers"]) == 2
    assert len(facts["layers"][0]["points"]) == len(facts["labels"]) == 360
    assert all(layer["fisher"] > 0.5 for layer in facts["layers"])
    again = faustnet("reproduce", "figure2", *small, "--device", "cpu")
    assert "epoch" not in again.err, "what was trained is not trained again"
    assert faustnet("reproduce", "figure3", *small, "--seeds", "1", "--device", "cpu").code == 0
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == [f"figure{number}.{kind}" for number in (1, 2, 3) for kind in ("png", "svg")]
    assert is_done(Table1Job("paper", "forward-forward", "digits", "2x24", 0), tmp_path)
    (tmp_path / "odd").mkdir()
    for text in ("{}", "[]", "null", '{"layers": []'):
        (tmp_path / "odd/figure2.json").write_text(text)
        answer = faustnet("reproduce", "figure2", *small[:4], "--out", tmp_path / "odd")
        assert "is damaged: delete it" in answer.sentence
    refused = faustnet("reproduce", "figure2", "--dataset", "digits", "--network", "2x25", "--out", tmp_path)
    assert "made with another recipe" in refused.sentence


def test_the_summary_of_nothing_is_nothing(tmp_path: Path) -> None:
    assert summary(TABLE.read(tmp_path)) == []
