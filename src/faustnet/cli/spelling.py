"""Commands that know other spellings of their options: old ones, which work, and usual ones, which are suggested."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand

from faustnet.errors import FaustnetError

OLD = {"--data": "--dataset", "--dataset": "--datasets"}  # spellings that work, but are not in help texts
USUAL = {  # in other programs
    "--lr": "--learning-rate",
    "--bs": "--batch-size",
    "--batch": "--batch-size",
    "--hidden": "--widths",
    "--layers": "--widths",
    "--model": "--method",
    "--output": "--out",
    "--output-dir": "--out",
    "--optimiser": "--set optimiser.name=…",
    "--optimizer": "--set optimiser.name=…",
    "--weight-decay": "--set optimiser.weight_decay=…",
    "--dropout": "--set network.dropout=…",
    "--gpu": "--device cuda",
    "--cuda": "--device cuda",
    "--cpu": "--device cpu",
}


class Command(TyperCommand):
    """Command whose unknown options are errors that suggest the right one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_value = {name: not is_flag for name, is_flag in self._options().items()}
        return super().parse_args(ctx, corrected(args, takes_value))

    def _options(self) -> dict[str, bool]:
        """Return the names of the options, and whether they are flags, which have no value."""
        names = {
            name: bool(getattr(parameter, "is_flag", False))
            for parameter in self.params
            for name in (*parameter.opts, *parameter.secondary_opts)
            if name.startswith("--")
        }
        return {**names, "--help": True}


def corrected(words: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Return the words of a command line with the present names of its options. An unknown option is an error."""
    found: list[str] = []
    is_value = False
    for number, word in enumerate(words):
        if word == "--" and not is_value:
            return [*found, *words[number:]]
        if is_value or not word.startswith("--"):
            found.append(word)
            is_value = False
            continue
        name, equals, value = word.partition("=")
        known = _known(name, takes_value)
        found.append(known + equals + value)
        is_value = takes_value[known] and not equals
    return found


def _known(name: str, known: Mapping[str, bool]) -> str:
    present = name
    while present and present not in known:
        present = OLD.get(present, "")
    if present:
        return present
    usual = USUAL.get(name, "")
    near = get_close_matches(name, known, n=1) if not usual else [usual] if usual.partition(" ")[0] in known else []
    hint = f"did you mean {near[0]}?" if near else "add --help to list the options."
    raise FaustnetError(f"There is no option {name}: {hint}")
