"""The results on docs/few-shot.md, and links to them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import beyond
import few_shot_page
import results
from faustnet.reproduce.few_shot import TASKS, summary
from faustnet.runs.recipes import shipped_recipe

CHOSEN: dict[str, dict[str, Any]] = {
    "faust-prototype": {"trials": 6, "readouts": 6, "layers": [2, 3], "data": "omniglot-rotated"},
    "backprop": {"trials": 6, "readouts": 12, "layers": [3], "unit": False, "data": "omniglot-rotated"},
}


def result(method: str, seed: int, mean: float, layers: list[str]) -> dict[str, Any]:
    def tasks(mean: float, layers: list[str]) -> list[dict[str, Any]]:
        alone = [mean - 0.1 * place for place in range(len(layers))]
        return [
            {
                "protocol": task.protocol, "ways": task.ways, "shots": task.shots, "queries": task.queries,
                "episodes": 500, "mean": mean, "variance": 0.01, "layers": layers, "layer_accuracy": alone,
                "first_layers_accuracy": alone,
            }
            for task in TASKS
        ]  # fmt: skip

    return {"method": method, "seed": seed, "episodes": 500, "tasks": tasks(mean, layers), "pixels": tasks(0.3, ["pixels"])}


def cells(faust: float = 0.95) -> list[dict[str, Any]]:
    return summary(
        [
            result(method, seed, mean, layers)
            for seed in (0, 1)
            for method, mean, layers in (
                ("faust-prototype", faust, ["layer 2", "layer 3"]),
                ("backprop", 0.9, ["layer 3"]),
            )
        ]
    )


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    assert few_shot_page.section(tmp_path) == "There are no results yet."
    assert few_shot_page.in_short(tmp_path) == ""


def test_accuracies_stand_beside_each_other_by_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "few-shot.json").write_text(json.dumps(cells()))
    monkeypatch.setattr(few_shot_page, "choices", lambda: CHOSEN)
    text = few_shot_page.section(tmp_path)
    assert "| task | FAUST-prototype | Backpropagation | raw pixels |" in text
    assert "| 20-way 1-shot | 95.00 ± 0.62 | 90.00 ± 0.62 | 30.00 ± 0.62 |" in text
    assert "| 20-way 1-shot within an alphabet | 95.00 ± 0.62 |" in text
    assert "| 5-way 5-shot | FAUST-prototype | +5.00 | 2, 3 | 95.00 / 85.00 | 1,000 |" in text
    assert "| 5-way 5-shot | Backpropagation | – | 3 | – | 1,000 |" in text
    assert "| 5-way 5-shot | raw pixels | – | – | – | 1,000 |" in text
    assert "mean over 2 seeds" in text
    assert "96.0 (prototypical" in text
    assert "93.8 (matching" in text


def test_a_mark_says_that_an_interval_overlaps_that_of_backprop() -> None:
    assert "| 5-way 1-shot | 90.20 ± 0.62 ○ | 90.00 ± 0.62 | 30.00 ± 0.62 |" in few_shot_page.accuracies(cells(0.902))


def test_a_method_that_is_not_measured_yet_is_left_out() -> None:
    only = [cell for cell in cells() if (cell["method"], cell["protocol"]) != ("backprop", "alphabet")]
    assert "| 20-way 1-shot within an alphabet | 95.00 ± 0.62 | – | 30.00 ± 0.62 |" in few_shot_page.accuracies(only)


def test_trials_and_readouts_are_shown_where_there_are_recipes() -> None:
    text = few_shot_page.described(cells(), CHOSEN, [])
    assert "| FAUST-prototype | 6 | 6 | 2, 3 |" in text
    assert "| Backpropagation | 6 | 12 | 3, not normalised |" in text
    assert "400 episodes" in text
    assert "rotated by 90, 180 and 270" in " ".join(text.split())
    plain = {method: {**choice, "data": "omniglot"} for method, choice in CHOSEN.items()}
    assert "rotated by 90" not in few_shot_page.described(cells(), plain, [])
    assert "readouts" not in few_shot_page.described(cells(), {}, [])


def test_variations_stand_beside_the_best_trial() -> None:
    trials: list[dict[str, Any]] = [
        {"study": "backprop", "epochs": 8, "validation_accuracy": accuracy} for accuracy in (0.90, 0.91)
    ]
    varied = {"study": "backprop", "epochs": 40, "variation": "40 epochs", "validation_accuracy": 0.92}
    assert "| Backpropagation | 91.00 | 92.00 | – |" in few_shot_page.described(cells(), CHOSEN, [*trials, varied])
    waiting = {**varied, "validation_accuracy": None}
    assert "fourth layer" not in few_shot_page.described(cells(), CHOSEN, [*trials, waiting])


def test_the_layers_of_a_choice_are_those_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {**shipped_recipe("best/digits/mlp"), "dataset": "omniglot-rotated", "prediction": {"weights": [0.0, 1.0, 1.0]}}
    recipe["network"] = {**recipe["network"], "widths": [8, 8, 8]}
    found = {"omniglot/faust-prototype": {"trials": 6, "readouts": 6},
             "omniglot/backprop": {"trials": 6, "readouts": 12, "readout": {"layers": [3], "unit": True}}}  # fmt: skip
    monkeypatch.setattr(few_shot_page, "shipped_recipes", lambda: [f"few-shot/{name}" for name in found])
    monkeypatch.setattr(few_shot_page, "shipped_recipe", lambda name: recipe)
    monkeypatch.setattr(few_shot_page, "choice_of_recipe", lambda name, family: found[name])
    chosen = few_shot_page.choices()
    assert {method: (one["layers"], one["data"]) for method, one in chosen.items()} == {
        "faust-prototype": ([2, 3], "omniglot-rotated"), "backprop": ([3], "omniglot-rotated"),
    }  # fmt: skip
    assert chosen["backprop"]["unit"] is True


def test_the_results_link_the_pages_only_if_they_have_results(tmp_path: Path) -> None:
    for name, link in (("few-shot", "docs/few-shot.md#accuracy"), ("incremental", "docs/new-classes.md#classes-that-come")):
        assert not any(link in section for section in beyond.sections(tmp_path))
        (tmp_path / f"{name}.json").write_text(json.dumps([{"method": "backprop"}]))
        assert sum(link in section for section in beyond.sections(tmp_path)) == 1


def test_the_page_is_written_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(results.RESULTS, tmp_path / "results")
    (tmp_path / "results/few-shot.json").write_text(json.dumps(cells()))
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    pages = results.pages()
    page = pages[results.ROOT / "docs/few-shot.md"]
    assert "| 20-way 1-shot | 95.00 ± 0.62 |" in page
    assert "There are no results yet." not in page
    assert "docs/few-shot.md#accuracy-on-omniglot" in pages[results.ROOT / "RESULTS.md"]
    readme = pages[results.ROOT / "README.md"]
    assert "| 20-way 1-shot | 95.00 ± 0.62 |" in readme
    assert "over 1,000 episodes" in " ".join(readme.split())
