"""The paper's table and figures, on small data: what is trained, what is kept, what is shown."""

import json
import shutil
import signal
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Answer
from faustnet.report.paper import TABLE_1
from faustnet.report.table1 import as_latex, as_markdown
from faustnet.reproduce.figures import curves
from faustnet.reproduce.results import is_done, read_results, summary
from faustnet.reproduce.runner import Watched
from faustnet.reproduce.wanted import Wanted
from faustnet.runs.recipes import shipped_recipes
from faustnet.training.trainer import Diverged, Trainer

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
    assert [line.split()[0] for line in answer.err.splitlines()] == ["5/6", "6/6"]
    assert "Backpropagation" in answer.out
    assert "digits" in answer.out


def test_an_interrupted_run_goes_on_to_the_same_result(
    made: Path, faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Watched, "epoch", lambda self, epoch: epoch.epoch == 3 and signal.raise_signal(signal.SIGINT))
        answer = faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--out", tmp_path)
    assert answer.code == 130
    assert "run the same command again" in answer.sentence
    assert [path.name for path in tmp_path.glob("table1/*/*")] == ["digits-2x24-backprop-0.run"]
    assert faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--out", tmp_path).code == 0
    for name, result in results(tmp_path).items():
        assert result["test_accuracy"] == results(made)[name]["test_accuracy"]
        assert [e["losses"] for e in result["history"]] == [e["losses"] for e in results(made)[name]["history"]]


def test_several_processes_come_to_the_same_results(made: Path, faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--jobs", "2", "--out", tmp_path)
    assert answer.code == 0
    for name, result in results(tmp_path).items():
        assert result["test_accuracy"] == results(made)[name]["test_accuracy"]
    assert len(results(tmp_path)) == 2


def test_one_that_diverges_does_not_keep_the_others_from_being_trained(
    faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(trainer: Trainer) -> None:
        if trainer.method.name == "backprop":
            raise Diverged("The loss is no longer a finite number.")

    monkeypatch.setattr(Trainer, "_check_finite", broken)
    answer = faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--out", tmp_path)
    assert answer.code == 2
    assert "but not backprop on digits, 2x24, tuned, seed 0: The loss is no longer" in answer.sentence
    assert [*results(tmp_path)] == ["digits-2x24-faust-representative-0.json"]


def test_a_name_twice_is_one_run(faustnet: Command, tmp_path: Path) -> None:
    answer = faustnet(
        "reproduce", "table1", *SMALL, "--methods", "backprop,backprop", "--seeds", "1", "--jobs", "2", "--out", tmp_path
    )
    assert answer.code == 0
    assert json.loads((tmp_path / "table1.json").read_text())[0]["seeds"] == 1


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
        assert "cannot be written to" in faustnet("reproduce", command, *small, "--out", tmp_path / "file").sentence


def test_a_recipe_in_the_working_folder_is_not_taken_for_ours(
    faustnet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tuned/digits").mkdir(parents=True)
    (tmp_path / "tuned/digits/backprop").write_text("epochs = 1")
    monkeypatch.chdir(tmp_path)
    assert Wanted("tuned", "backprop", "digits", "2x24", 0).recipe.training.epochs == 30


def test_a_result_of_another_recipe_is_neither_used_nor_lost(made: Path, faustnet: Command, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "out")
    path = tmp_path / "out/table1/tuned/digits-2x24-backprop-0.json"
    text = path.read_text().replace('"epochs": 30, "batch_size": 64', '"epochs": 31, "batch_size": 64')
    path.write_text(text)
    answer = faustnet("reproduce", "table1", *SMALL, *BOTH, "--seeds", "1", "--out", tmp_path / "out")
    assert answer.code == 2
    assert "made with another training.epochs, 31 and not 30: move it away" in answer.sentence
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "backdrop"], "There is no method 'backdrop'"),
        (["--methods", ""], "There is nothing to train"),
        (["--networks", "3by500"], "like 3x500, not '3by500'"),
        (["--datasets", "imagenet"], "choose digits, mnist, fashion-mnist, cifar10"),
        (["--recipes", "best"], "choose paper, tuned"),
        (["--seeds", "0"], "from one seed to 1000, not 0"),
        (["--jobs", "0"], "one process or more, not 0"),
        (["--backend", "rey"], "There is no backend 'rey': did you mean ray?"),
        (["--backend", "dask"], "works on a cluster: give its --address, like tcp://HOST:8786"),
        (["--address", "HOST:6379"], "say of which kind with --backend dask or ray"),
        (["--backend", "ray", "--address", "HOST:6379", "--device", "gpu"], "There is no device 'gpu'"),
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
                recipe = Wanted(family, method, dataset, network, 4).recipe
                assert (recipe.method, recipe.dataset, recipe.seed) == (method, dataset, 4)
                assert recipe.network.widths == {"3x500": (500,) * 3, "4x800": (800,) * 4}[network]
                assert not recipe.training.validation, "the table is of models that have seen all training images"
                assert method == "ffcm" or not recipe.data.augmentation
    paper = Wanted("paper", "faust-representative", "cifar10", "3x500", 0).recipe
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
    markdown = as_markdown(CELLS, "tuned").splitlines()
    assert markdown[0] == "| tuned, 1 to 5 seeds | MNIST 4×800 | CIFAR-10 3×500 |"
    assert markdown[2] == "| Backpropagation | – | **57.50 ± 0.21**<br>57.30 (+0.20) |"
    assert markdown[3] == "| SymBa | – | **54.00** |"
    assert markdown[4] == "| FAUST-vanilla tuplet | **98.50 ± 0.10**<br>98.69 (−0.19) | – |"
    latex = as_latex(CELLS, "tuned")
    assert r"Backpropagation & -- & 57.50 $\pm$ 0.21 \\" in latex
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


def test_the_study_of_representatives_trains_every_kind_and_number(faustnet: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    words = ("--datasets", "digits", "--network", "2x24", "--draws", "2", "--counts", "1,3", "--device", "cpu")
    answer = faustnet("reproduce", "representatives", *words, "--jobs", "2", "--out", tmp_path)
    assert answer.code == 0, answer.err
    points = {(p["kind"], p["count"]): p for p in json.loads((tmp_path / "representatives.json").read_text())}
    assert {key: len(point["accuracies"]) for key, point in points.items()} == {
        ("random", 1): 2, ("k-means", 1): 2, ("prototype", 1): 2,
        ("random", 3): 2, ("k-means", 3): 2, ("prototype", 3): 2,
    }  # fmt: skip
    for (kind, count), point in points.items():
        assert point["mean"] == pytest.approx(statistics.mean(point["accuracies"]), abs=1e-3)
        assert point["mean"] > 85
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
        (["--network", "3by500"], "like 3x500, not '3by500'"),
        (["--counts", "1,0"], "at least one reference, not 0"),
        (["--counts", "few"], "whole numbers"),
        (["--draws", "0"], "--draws must be 1 to 1000, got 0"),
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


def test_figures_are_drawn_from_what_was_trained(faustnet: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
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
    assert is_done(Wanted("paper", "forward-forward", "digits", "2x24", 0), tmp_path)
    (tmp_path / "odd").mkdir()
    for text in ("{}", "[]", "null", '{"layers": []'):
        (tmp_path / "odd/figure2.json").write_text(text)
        answer = faustnet("reproduce", "figure2", *small[:4], "--out", tmp_path / "odd")
        assert "is damaged: delete it" in answer.sentence
    refused = faustnet("reproduce", "figure2", "--dataset", "digits", "--network", "2x25", "--out", tmp_path)
    assert "made with another recipe" in refused.sentence


def test_the_summary_of_nothing_is_nothing(tmp_path: Path) -> None:
    assert summary(read_results(tmp_path)) == []
