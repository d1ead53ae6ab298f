"""What a user can put right."""

from collections.abc import Iterable
from difflib import get_close_matches


class FaustnetError(Exception):
    """A mistake in what was asked for, told in one sentence that says what to do. Never a bug."""


def unknown(what: str, name: str, known: Iterable[str], besides: str = "", shown: Iterable[str] = ()) -> FaustnetError:
    """There is no such thing; the nearest that there is, or all of them (and what else would do). Where they are too many
    to list, `shown` says them shorter."""
    known = list(known)
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(shown or known) or 'none'}{besides}."
    return FaustnetError(f"There is no {what} {name!r}: {hint}")


def require(holds: bool, sentence: str) -> None:
    """Refuse a value unless something holds."""
    if not holds:
        raise FaustnetError(sentence)
