"""Errors that a user can fix."""

import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LONGEST = 2_000  # characters of a message
KEY = re.compile(r"\b(?:options|network|optimiser|training)\.(?=[a-z_]+\b)(?!layers\.)")  # section of a recipe, before a key
OPTION = re.compile(r"(?<![\w-])--([a-z]+)")  # option of the command line
PACKAGE = str(Path(__file__).parent)
OUT_OF_MEMORY = "There is not enough memory: use a smaller network, smaller batches or smaller images."


class FaustnetError(Exception):
    """A mistake of the user, such as an invalid option or a damaged file. The message says how to fix it.

    The message may quote an untrusted file: control characters are escaped, and long messages are shortened.
    """

    def __init__(self, sentence: str):
        half = LONGEST // 2
        super().__init__(printable(sentence if len(sentence) <= LONGEST else f"{sentence[:half]} … {sentence[-half:]}"))


class FaustnetWarning(UserWarning):
    """Something that is probably a mistake of the user, such as a learning rate that is too large. Training goes on."""


def warn(sentence: str) -> None:
    """Issue a FaustnetWarning about the line of the user's that called the package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(sentence), FaustnetWarning, stacklevel=level)


def printable(text: str) -> str:
    """Escape the characters that control a terminal: its colours, its cursor, the direction of text."""
    return STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def about_arguments(sentence: str) -> str:
    """Return a message with the names of arguments in place of the keys of recipes and the options of the command line."""
    return OPTION.sub(r"\1", KEY.sub("", sentence))


@contextmanager
def errors_about_arguments() -> Iterator[None]:
    """Let the errors in this block speak of arguments."""
    try:
        yield
    except FaustnetError as error:
        error.args = (about_arguments(str(error)),)
        raise


@contextmanager
def errors_about_options(options: Iterable[str]) -> Iterator[None]:
    """Let the errors in this block about one of these arguments of a method speak of the key in recipes."""
    try:
        yield
    except FaustnetError as error:
        if str(error).partition(" ")[0] in options:
            error.args = (f"options.{error}",)
        raise


def unknown(what: str, name: str, known: Iterable[str], besides: str = "", shown: Iterable[str] = ()) -> FaustnetError:
    """Return the error for a name that is not one of `known`. It suggests the known names that continue it, as faust-tuplet
    continues faust, or the closest one, or lists all of them, followed by `besides`; `shown` is listed instead where
    `known` is too long."""
    known = list(known)
    longer = [one for one in known if name and one.startswith(f"{name}-")]
    begun = [one for one in known if len(name) > 3 and one.startswith(name)]
    near = longer or begun[:1] or get_close_matches(name, known, n=1)
    hint = f"did you mean {_either(near)}?" if near else f"choose {', '.join(shown or known)}{besides}."
    if not known:
        hint = "there are none to choose from."
    return FaustnetError(f"There is no {what} {name!r}: {hint}")


def _either(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def require(holds: bool, sentence: str) -> None:
    """Raise FaustnetError unless `holds` is true."""
    if not holds:
        raise FaustnetError(sentence)
