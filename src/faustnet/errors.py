"""What a user can put right."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LONGEST = 2_000  # characters of a sentence


class FaustnetError(Exception):
    """A mistake in what was asked for, told in one sentence that says what to do. Never a bug. What it quotes may come from
    a file that a stranger wrote."""

    def __init__(self, sentence: str):
        half = LONGEST // 2
        super().__init__(printable(sentence if len(sentence) <= LONGEST else f"{sentence[:half]} … {sentence[-half:]}"))


def printable(text: str) -> str:
    """The same with what would steer a terminal, its colours, cursor or direction of writing, as escapes."""
    return STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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
