"""How often each recipe was measured on test images, and the page about the number of classes."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import beyond
import class_counts
import measurements
from faustnet.runs.recipes import read_recipe

ROOT = Path(__file__).parents[1]


def write(path: Path, **result: object) -> None:
    about = {"seed": 0, "epochs": 3, "test_accuracy": 0.9, "environment": {"started": str(path)}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about | result))


def best_run(path: Path, name: str, seed: int, accuracy: float, started: str) -> None:
    about = {"name": name, "seed": seed, "epochs": 3, "test_accuracy": accuracy}
    write(path, **about, environment={"started": started})


def test_runs_are_counted_by_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "shipped_recipe", lambda name: {"method": "another one"})
    assert measurements.section(tmp_path) == ""
    for seed in range(2):
        best_run(tmp_path / f"best/mnist-mlp-{seed}.json", "mnist/mlp", seed, 0.99, "now")
        about = {"method": "faust-representative", "dataset": "mnist", "network": "3x500", "seed": seed}
        write(tmp_path / f"table1/tuned/mnist-{seed}.json", family="tuned", **about)
        write(tmp_path / f"rejection/mnist-{seed}.json", **about)
        write(tmp_path / f"rejection/cifar10-{seed}.json", method="backprop", dataset="cifar10", seed=seed)
    write(tmp_path / "table1/paper/mnist.json", family="paper", method="backprop", dataset="mnist")
    write(tmp_path / "ablation/mnist-mlp.json", base="mnist/mlp", seed=0)
    write(tmp_path / "class-counts/cifar100.json", name="cifar100/cnn-backprop", seed=0, count=10)
    write(tmp_path / "time-to-accuracy-x.json", runs=[{"arm": "cnn"}, {"arm": "cnn"}])
    (tmp_path / "predsim.json").write_text(json.dumps([{"code": code} for code in ("package", "plain")]))
    replaced = [{"recipe": "best/mnist/mlp"}] * 3 + [{"recipe": "best/mnist/mlp", "study": "incremental"}] * 4
    (tmp_path / "replaced-runs.json").write_text(json.dumps(replaced))
    copy = {"name": "mnist/mlp", "seed": 1, "test_accuracy": 0.99, "environment": {"started": "now"}}
    write(tmp_path / "class-counts/mnist-mlp-10-1.json", **copy, count=10)
    text = measurements.section(tmp_path)
    assert "| best/mnist/mlp | 2 | 3 | 5 |" in text, "the copy of a run does not count"
    assert "| best/cifar100/cnn-backprop | – | – | 1 |" in text
    assert "| benchmarks/time_to_accuracy-cnn.toml | – | – | 2 |" in text
    assert "| best/cifar10/cnn-backprop | – | – | 2 |" in text
    copied = read_recipe(ROOT / "benchmarks/time_to_accuracy-cnn.toml")
    monkeypatch.setattr(measurements, "shipped_recipe", lambda name: copied)
    assert "| best/cifar10/cnn | – | – | 2 |" in measurements.section(tmp_path), "the file is a copy of it"
    assert "| benchmarks/predsim | 2 | – | – |" in text
    assert "| FAUST-representative tuplet | 2 + 2 |" in text
    assert "| Backpropagation | 1 |" in text
    assert "ablation, class-counts, incremental, rejection, time to accuracy." in text


def test_every_folder_of_results_is_counted() -> None:
    """If this fails: add the folder to OWN or OTHER in benchmarks/measurements.py."""
    results = ROOT / "results"
    folders = {path.relative_to(results).parts[0] for path in results.glob("*/**/*.json")}
    assert folders <= {*measurements.OWN, *measurements.OTHER}


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_replaced_runs_are_found_in_the_history(tmp_path: Path) -> None:
    folder = tmp_path / "results/best"
    git(tmp_path, "init")
    best_run(folder / "mnist-mlp-0.json", "mnist/mlp", 0, 0.98, "monday")
    best_run(folder / "mnist-mlp-1.json", "mnist/mlp", 1, 0.97, "monday")
    best_run(folder / "mnist-cnn-0.json", "mnist/cnn", 0, 0.99, "monday")
    studied = {"environment": {"started": "monday"}, "seed": 2}
    write(tmp_path / "results/ablation/mnist-mlp-2.json", base="mnist/mlp", **studied)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-m", "one")
    assert measurements.replaced_runs(tmp_path) == []
    best_run(folder / "mnist-mlp-0.json", "mnist/mlp", 0, 0.985, "tuesday")  # trained again
    (folder / "mnist-mlp-1.json").unlink()  # deleted
    (folder / "mnist-cnn-0.json").rename(folder / "mnist-cnn-old-0.json")  # only renamed
    (tmp_path / "results/ablation/mnist-mlp-2.json").unlink()
    found = measurements.replaced_runs(tmp_path)
    assert [(run["recipe"], run.get("study"), run["seed"], run["test_accuracy"]) for run in found] == [
        ("best/mnist/mlp", None, 0, 0.98),
        ("best/mnist/mlp", None, 1, 0.97),
        ("best/mnist/mlp", "ablation", 2, 0.9),
    ]
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-m", "two")
    assert measurements.replaced_runs(tmp_path) == found


def cell(count: int, role: str, mean: float, seeds: int = 3) -> dict[str, object]:
    name = "cifar100/cnn" + ("" if role == "local" else f"-{role}")
    about = {"name": name, "of": "cifar100/cnn", "role": role, "count": count}
    return {**about, "mean": mean, "std": 0.2 if seeds > 1 else None, "seeds": seeds}


def test_the_page_of_class_counts_is_made_of_what_there_is(tmp_path: Path) -> None:
    assert class_counts.page(tmp_path).count("There are no results yet.") == 2
    assert "\nfaustnet reproduce class-counts --base cifar100/cnn --counts 10,20,50,100 --out" in class_counts.page(tmp_path)
    few = [cell(10, "local", 90.0), cell(10, "backprop", 91.0, seeds=1)]
    (tmp_path / "class-counts.json").write_text(json.dumps(few))
    page = class_counts.page(tmp_path)
    assert "| cifar100/cnn | 10 | 90.00 ± 0.20 | 91.00 | −1.00 | – | – | 3 / 1 |" in page
    assert "over 1 to 3 seeds" in page
    assert "![Accuracy" not in page, "the figure was not drawn yet"
    assert "the difference" not in page.split("| 3 / 1 |")[1].split("##")[0], "there is one number of classes"
    more = [*few, cell(100, "local", 78.0), cell(100, "backprop", 76.0), cell(100, "deep-supervision", 78.1)]
    (tmp_path / "class-counts.json").write_text(json.dumps(more))
    (tmp_path / "figures").mkdir()
    (tmp_path / class_counts.FIGURE).write_text("<svg/>")
    page = class_counts.page(tmp_path)
    assert "](../results/figures/class-counts.svg)" in page
    assert "- **cifar100/cnn**: the difference to backprop is −1.00 with 10 classes and +2.00 ± 0.45 with 100." in page
    assert "−0.10 ± 0.45 ○ | 3 / 3 / 3 |" in page
    assert "\nfaustnet reproduce class-counts --base cifar100/cnn --counts 10,100 --seeds 3 --out results --jobs 3\n" in page
    assert "FAUST and its twins on 10 to 100 classes" in "".join(beyond.sections(tmp_path))
    more += [cell(50, role, 80.0) for role in ("local", "deep-supervision")]
    (tmp_path / "class-counts.json").write_text(json.dumps([one for one in more if one["count"] in (50, 100)]))
    assert "on 50 to 100 classes" in "".join(beyond.sections(tmp_path))
    (tmp_path / "class-counts.json").write_text(json.dumps(more))
    assert "with 100; that to deep supervision is +0.00 ± 0.45 ○ with 50 classes and" in class_counts.page(tmp_path)
