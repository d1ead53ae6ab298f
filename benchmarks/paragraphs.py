"""Paragraphs of generated pages."""

import re
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 120  # characters of a line
JOINED = "\0"  # in place of a space in code, which is not broken into two lines


def filled(sentences: Iterable[str]) -> str:
    """Return a paragraph of these sentences, in lines."""
    text = " ".join(" ".join(sentences).split())
    text = re.sub("`[^`]*`", lambda code: code[0].replace(" ", JOINED), text)
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False).replace(JOINED, " ")


def listed(parts: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)
