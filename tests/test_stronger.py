"""What README.md and RESULTS.md say about the strongest recipes and their twins, for different mixes of results."""

from typing import Any

import pytest

import stronger
import stronger_in_short
import twins
from faustnet.runs.recipes import choice_of_recipe, shipped_recipe
from paragraphs import filled

ROLES = {"": "local", "-backprop": "backprop", "-deep-supervision": "deep-supervision"}
BOTH, ALL = ("", "-backprop"), tuple(ROLES)
METHODS = {"local": "faust-representative"}
RATE = "learning-rate"


def arms(
    name: str,
    endings: tuple[str, ...] = BOTH,
    tuning: str = RATE,
    trials: tuple[int, ...] = (10, 10, 10),
    seeds: tuple[int, ...] = (3, 3, 3),
) -> list[dict[str, Any]]:
    """Return the cells of a recipe, 70 %, and of its twins, 68 % and 71 %."""
    means = {"": 70.0, "-backprop": 68.0, "-deep-supervision": 71.0}
    return [
        {
            "name": name + ending, "of": name, "dataset": name.split("/")[0], "role": ROLES[ending],
            "method": METHODS.get(ROLES[ending], ROLES[ending]), "tuning": tuning, "trials": trials[place],
            "seeds": seeds[place], "mean": means[ending], "std": 0.1, "parameters": 9, "trunk_parameters": 5,
            "seconds": 1.0, "epochs": 60,
        }
        for place, ending in enumerate(endings)
    ]  # fmt: skip


EQUAL_MLP = arms("cifar10/mlp", ALL, "equal", seeds=(5, 5, 5))
ONLY_RATE = arms("mnist/mlp", trials=(7, 3))


def trial(study: str, accuracy: float | None, epochs: int = 30, **about: Any) -> dict[str, Any]:
    changes = {"dataset": "cifar10", "training.epochs": 60}
    return {"study": study, "base": None, "changes": changes, "epochs": epochs, "validation_accuracy": accuracy, **about}


def equal_trials(name: str) -> list[dict[str, Any]]:
    """Return two trials of each arm; one has no result. The best ones are 70, 69 and 71 %."""
    best = zip(ALL, (0.7, 0.69, 0.71), strict=True)
    found = [trial(name + ending, one, tuning="equal") for ending, top in best for one in (top, top - 0.1)]
    return [*found[:-1], {**found[-1], "validation_accuracy": None}]


def words(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.split())


def test_the_readme_names_no_tuning_and_no_deep_supervision_where_nothing_differs() -> None:
    text = stronger_in_short.section([*ONLY_RATE, *arms("cifar10/cnn")], [])
    assert "| recipe | FAUST | backprop | difference |\n" in text
    assert "| mnist/mlp | 70.00 ± 0.10 | 68.00 ± 0.10 | +2.00 ± 0.23 |\n" in text
    assert "All numbers are means over 3 seeds." in words(text)
    assert "**This comparison favours FAUST.** For the twins, only the learning rate was tuned." in words(text)
    assert "chosen for FAUST. Twins with fewer trials than FAUST: 1 of 2." in words(text)
    for absent in ("eep supervision", "qual", "transformer", "*seeds*", "-mixup"):
        assert absent not in text


def test_the_readme_marks_equal_tuning_and_seeds_where_they_differ() -> None:
    deep = arms("cifar10/cnn", ALL, "equal", seeds=(5, 5, 4))
    text = stronger_in_short.section([*ONLY_RATE, *EQUAL_MLP, *deep, *arms("cifar10/mlp-plain", ("",))], [])
    rows = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    columns = "| recipe | FAUST | backprop | difference | deep supervision | difference | tuning | seeds |"
    assert rows["recipe"] == columns
    assert rows["mnist/mlp"].endswith("| +2.00 ± 0.23 | – | – | learning rate | 3 |")
    assert rows["cifar10/mlp"].endswith("| 71.00 ± 0.10 | −1.00 ± 0.15 | equal | 5 |")
    assert rows["cifar10/cnn"].endswith("| equal | 5 / 5 / 4 |")
    assert rows["cifar10/mlp-plain"].endswith("| – | – | – | – | – | 3 |"), "it has no twin"
    assert "means over" not in text
    assert "the same number of trials, 10 each." in words(text)
    assert "**With *learning rate*, the comparison favours FAUST.**" in words(text)
    assert "Twins with fewer trials than FAUST: 1 of 1." in words(text), "others are tuned equally"
    assert words(text).count("*Deep supervision* has") == 1
    assert "`-plain` uses no augmentation." in words(text)


def test_the_readme_says_what_was_tuned_for_each_twin_where_it_differs() -> None:
    mixed = arms("cifar10/cnn", ALL, "equal")
    mixed[2]["tuning"] = RATE
    unknown = [{**cell, "tuning": None} for cell in arms("mnist/cnn")]
    text = stronger_in_short.section([*EQUAL_MLP, *mixed, *unknown], [])
    rows = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    tuned = {name: rows[name].split(" | ")[6] for name in ("cifar10/mlp", "cifar10/cnn", "mnist/cnn")}
    assert tuned == {"cifar10/mlp": "equal", "cifar10/cnn": "equal / learning rate", "mnist/cnn": "–"}


def test_the_readme_says_of_nothing_that_it_favours_faust_if_all_is_tuned_equally() -> None:
    text = stronger_in_short.section(EQUAL_MLP, [])
    assert "favours" not in text
    assert "All numbers are means over 5 seeds." in words(text)
    assert "| −1.00 ± 0.15 | equal |" in text


def test_methods_without_faust_are_not_in_the_readme() -> None:
    (cell,) = arms("cifar10/cwc", ("",))
    assert "cifar10/cwc" not in stronger_in_short.section([*ONLY_RATE, {**cell, "method": "cwc"}], [])


def test_recipes_leave_the_validation_table_of_the_readme_when_all_their_arms_are_measured() -> None:
    trials = [*equal_trials("cifar10/mlp"), *equal_trials("cifar100/mlp")]
    head = "| recipe | epochs | FAUST | backprop | deep supervision |"
    before = stronger_in_short.section([*ONLY_RATE, *arms("cifar10/mlp")], trials)
    mlp = "| cifar10/mlp | 30 | 70.00 (2) | 69.00 (2) | 71.00 (1) |"
    assert before.endswith("| cifar100/mlp | 30 | 70.00 (2) | 69.00 (2) | 71.00 (1) |")
    assert mlp in before
    assert "the same 2 trials. *Deep supervision* has" in words(before), "it is not in the first table"
    assert words(before).count("cifar10/mlp +1.00 in place of +2.00.") == 1
    partly = stronger_in_short.section([*ONLY_RATE, *arms("cifar10/mlp", BOTH, "equal")], trials)
    assert mlp in partly, "deep supervision is missing"
    assert "in place of" not in partly
    one = stronger_in_short.section([*ONLY_RATE, *EQUAL_MLP], trials)
    assert mlp not in one
    assert "| cifar100/mlp | 30 |" in one
    both = [*ONLY_RATE, *EQUAL_MLP, *arms("cifar100/mlp", ALL, "equal")]
    assert head not in stronger_in_short.section(both, trials)
    assert "one seed each" not in stronger_in_short.section(both, trials)
    assert mlp in stronger.section(both, trials), "RESULTS.md keeps the trials"


def test_shorter_trials_are_counted_where_every_trial_of_the_twin_is_shorter() -> None:
    cells = arms("cifar10/mlp")
    for longest, shorter in ((20, 1), (30, 0)):
        trials = [trial("cifar10/mlp", 0.7), trial("cifar10/mlp-backprop", 0.6, 10)]
        trials.append(trial("cifar10/mlp-backprop", 0.5, longest))
        trials.append(trial("cifar10/mlp-backprop", 0.5, 90, tuning="equal"))
        assert ("Twins with shorter trials: 1 of 1." in words(stronger.handicap(cells, trials))) == shorter
    assert not stronger.handicap(EQUAL_MLP, [])


@pytest.mark.parametrize(
    ("trials", "others", "said"), [((4, 4), (3, 3), True), ((4, 2), (3, 2), False), ((4, 4), (9, 2), False)]
)
def test_all_transformers_have_as_many_trials_as_their_twins_if_it_is_said(
    trials: tuple[int, int], others: tuple[int, int], said: bool
) -> None:
    cells = [*ONLY_RATE, *arms("sst2/transformer", trials=trials), *arms("cifar10/transformer", trials=others)]
    assert ("The transformers and their twins had the same number" in words(stronger.section(cells, []))) == said
    assert "trials on texts" in words(stronger.section(cells, []))
    assert "trials on texts" not in words(stronger.section(ONLY_RATE, []))


def test_the_commands_train_as_many_seeds_as_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stronger, "best_names", lambda: ["digits/mlp", "mnist/mlp", "cifar10/mlp"])
    train = "faustnet reproduce best"
    assert list(stronger.commands([*ONLY_RATE, *arms("cifar10/mlp")])) == [f"{train} --seeds 3 --out results --jobs 8"]
    assert list(stronger.commands([*ONLY_RATE, *EQUAL_MLP])) == [
        f"{train} --seeds 3 --out results --jobs 8",
        f"{train} --names cifar10/mlp --seeds 5 --out results --jobs 8",
    ]
    assert list(stronger.commands(EQUAL_MLP)) == [f"{train} --names cifar10/mlp --seeds 5 --out results --jobs 8"]
    assert f"```sh\n{train} --names cifar10/mlp --seeds 5 " in stronger.section(EQUAL_MLP, [])


def test_the_table_of_the_results_has_the_seeds_where_they_differ() -> None:
    same, mixed = stronger.section(ONLY_RATE, []), stronger.section([*ONLY_RATE, *EQUAL_MLP], [])
    assert "Mean over 3 seeds" in same
    assert "seeds |" not in same
    assert "Mean over 3 to 5 seeds" in mixed
    assert "| 10 / 10 / 10, equal | 5 | 9 / 9 / 9 | 5 |" in mixed
    assert "*seeds* are those" in mixed


def test_the_note_on_mixup_needs_a_recipe_that_was_chosen_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [*arms("cifar10/mlp"), *arms("cifar10/mlp-mixup")]
    note = "the best trial without MixUp became a recipe too."
    recipe = shipped_recipe("best/cifar10/mlp")
    for tuning, mixup, shown in ((RATE, 0.0, True), (RATE, 0.2, False), ("equal", 0.0, False)):
        options = {**recipe["options"], "mixup": mixup}
        monkeypatch.setattr(stronger, "choice_of_recipe", lambda name, tuning=tuning: {"tuning": tuning})
        monkeypatch.setattr(stronger, "shipped_recipe", lambda name, options=options: {**recipe, "options": options})
        assert (note in words(stronger.section(cells, []))) == shown
    assert choice_of_recipe("cifar10/mlp"), "the note looks it up by this name"


def test_the_pages_say_that_equally_tuned_arms_have_other_settings() -> None:
    every = "learning rate, weight decay, dropout, label smoothing, MixUp and cutout differ."
    for module, said in ((stronger, every), (stronger_in_short, "the best settings of its own trials, so these differ.")):
        assert said in words(module.section([*ONLY_RATE, *EQUAL_MLP], []))
        assert said not in words(module.section(ONLY_RATE, []))
        assert "number of epochs" in words(module.section(ONLY_RATE, [])).split("except for what was tuned")[0]


def test_the_learning_rates_of_faust_can_be_at_the_edge_too() -> None:
    rates = {"mnist/mlp": (0.1, 0.2, 0.4), "mnist/mlp-backprop": (0.2, 0.1, 0.4)}  # the best one first
    trials = [
        trial(study, 0.9 - place / 10, changes={"optimiser.learning_rate": rate})
        for study, mine in rates.items()
        for place, rate in enumerate(mine)
    ]
    text = words(stronger.section(ONLY_RATE, trials))
    assert "a better one may exist outside the tried range: mnist/mlp." in text


def test_twins_come_after_their_recipe_in_the_order_of_the_columns() -> None:
    shuffled = [EQUAL_MLP[2], EQUAL_MLP[0], EQUAL_MLP[1], *arms("mnist/cnn")[1:]]
    assert {name: [cell["role"] for cell in mine] for name, mine in twins.arms_of(shuffled).items()} == {
        "cifar10/mlp": ["local", "backprop", "deep-supervision"]
    }


def test_code_is_not_broken_into_two_lines() -> None:
    text = filled(["word " * 22, "`python benchmarks/results.py`."])
    assert text.splitlines()[1] == "`python benchmarks/results.py`."
