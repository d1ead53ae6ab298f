"""The part of README.md about the strongest recipes and their twins. Every sentence that depends on the results is made
from results/best.json and results/best-study.json."""

from collections import Counter

import stronger
import twins
from faustnet.report.table1 import over_seeds, signed
from faustnet.report.tables import markdown
from faustnet.reproduce.best import LOCAL
from faustnet.reproduce.best import TABLE as BEST
from paragraphs import filled
from stronger import SEARCH
from trials import EQUAL, best_of
from twins import Cells, Trials

COLUMNS = ("recipe", "FAUST", "backprop", "difference", "deep supervision", "difference")  # the first ones of BEST
INTRO = """**Stronger recipes**: several references per class, Muon, data augmentation, convolutions. The twins of a recipe
have the same network, data, optimiser and number of epochs, except for what was tuned. *Backprop* has one loss at the
output."""
DEEP = "*Deep supervision* has FAUST's heads and losses on every layer, but its gradient passes through all layers."
INTERVALS = "± after a difference is its 95 % interval; ○ marks an interval that includes zero, where neither is better."
SEEDS = """*seeds* is the number of runs that a mean is taken over; if FAUST and its twins differ, there is a number for
each, in the order of the columns."""
ENDINGS = {
    "-plain": "`-plain` uses no augmentation",
    "-mixup": "`-mixup` uses MixUp",
    "-wide": "`-wide` has layers of 3,000 units",
}


def section(cells: Cells, trials: Trials) -> str:
    """Return the text and the tables."""
    mine = [cell for cell in cells if cell["role"] != LOCAL or cell["method"].startswith("faust")]
    arms = list(twins.arms_of(mine).values())
    equal = any(map(twins.tuned_equally, arms))
    columns, rows = _table(mine, mixed=equal)
    parts = [
        filled(introduction(mine, has_deep="deep supervision" in columns)),
        markdown(columns, rows),
        *tuning(mine, trials, equal=equal),
        *on_validation(mine, trials, has_deep="deep supervision" in columns),
    ]
    return "\n\n".join(part for part in parts if part)


def introduction(cells: Cells, *, has_deep: bool) -> list[str]:
    """Return the sentences before the table."""
    seeds = f"All numbers are means over {over_seeds(cells)}." if twins.same_seeds(cells) else SEEDS
    endings = [said for ending, said in ENDINGS.items() if any(cell["name"].endswith(ending) for cell in cells)]
    return [INTRO, *([DEEP] if has_deep else []), seeds, INTERVALS, *([", ".join(endings) + "."] if endings else [])]


def _table(cells: Cells, *, mixed: bool) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows. The columns of tuning and seeds are left out if all recipes have the same."""
    rows = BEST.rows(cells)
    shown = [place for place in range(len(COLUMNS)) if place < 2 or any(row[place] != "–" for row in rows)]
    arms, several = twins.arms_of(cells), not twins.same_seeds(cells)
    last = {"tuning": lambda name: _tuning(arms[name])} if mixed else {}
    last |= {"seeds": lambda name: twins.seeds_of(arms[name])} if several else {}
    columns = [*(COLUMNS[place] for place in shown), *last]
    return columns, [[*(row[place] for place in shown), *(say(row[0]) for say in last.values())] for row in rows]


def _tuning(arms: Cells) -> str:
    """Return what was tuned for the twins of a recipe, in the order of the columns where it differs."""
    kinds = [(twin["tuning"] or "–").replace("-", " ") for twin in arms[1:]] or ["–"]
    return kinds[0] if len(set(kinds)) == 1 else " / ".join(kinds)


def tuning(cells: Cells, trials: Trials, *, equal: bool) -> list[str]:
    """Return paragraphs that say what was tuned, and whom the comparison favours."""
    said = []
    if equal:
        counts = {cell["trials"] for arms in twins.arms_of(cells).values() if twins.tuned_equally(arms) for cell in arms}
        number = " or ".join(map(str, sorted(counts)))
        said.append(
            f"With *equal* tuning, FAUST and its twins had {SEARCH} and the same number of trials, {number} each. "
            "Each has the best settings of its own trials, so these differ."
        )
    if handicap := stronger.handicap(cells, trials):
        which = "With *learning rate*, the" if equal else "This"
        said.append(f"**{which} comparison favours FAUST.** For the twins, only the learning rate was tuned. {handicap}")
    return [filled([text]) for text in said]


def on_validation(cells: Cells, trials: Trials, *, has_deep: bool) -> list[str]:
    """Return a text and a table of equal trials, of the recipes that are not in the table above with equal tuning, or
    nothing if there are none."""
    done = twins.measured_equally(cells)
    studies = {name: arms for name, arms in twins.equal_studies(trials).items() if name not in done}
    if not studies:
        return []
    drawn = Counter(trial["study"] for trial in trials if trial.get("tuning") == EQUAL and trial["study"] in studies)
    number = " or ".join(map(str, sorted(set(drawn.values()))))
    said = [
        f"Equal tuning on validation images: in the next table, FAUST, backprop and deep supervision have {SEARCH} and the "
        f"same {number} trials.",
        *([] if has_deep else [DEEP]),
        "The table shows the best accuracy in % on validation images, one seed each, and in brackets how many of the "
        f"{number} trials have been measured.",
        *_other_differences(cells, studies),
    ]
    return [filled(said), twins.equal_trials(trials, without=done)]


def _other_differences(cells: Cells, studies: dict[str, list[Trials]]) -> list[str]:
    """Return a sentence about the differences to backprop in equal trials, beside those of the first table."""
    found = []
    for one, twin in twins.with_disadvantage(cells):
        if twin["role"] == "backprop" and one["name"] in studies:
            faust, backprop = (100 * best_of(trials)["validation_accuracy"] for trials in studies[one["name"]][:2])
            found.append(f"{one['name']} {signed(faust - backprop)} in place of {signed(one['mean'] - twin['mean'])}")
    return [f"Difference to backprop here, in place of that in the first table: {', '.join(found)}."] if found else []
