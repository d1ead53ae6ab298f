"""Texts with labels, in TSV, CSV and JSONL files."""

import csv
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from faustnet.data.images import DataSet, Images
from faustnet.data.tokens import Tokeniser, text_problem
from faustnet.errors import FaustnetError, require
from faustnet.system.files import read_limited

SUFFIXES = (".tsv", ".csv", ".jsonl")
TEXT_COLUMNS = ("text", "sentence", "question", "review", "content")
LABEL_COLUMNS = ("label", "class", "category", "sentiment", "target")
PARTS = {"train": ("train",), "test": ("test",), "validation": ("validation", "valid", "val", "dev")}
NAMES = {"train": "training"}  # of parts in messages, where they differ
HELD_OUT = 0.2  # fraction for testing, of a single file
LARGEST_FILE = 1 << 30  # bytes

Row = dict[str, Any]  # values by column
NumberedRow = tuple[int, Row]  # with the number of its line


@dataclass(frozen=True)
class TextSettings:
    """How text files are read.

    Args:
        text_column: Name of the column with the texts; "" for the only column with a usual name.
        label_column: Name of the column with the labels; "" for the only column with a usual name.
        tokens: Tokens of a text; longer texts are truncated. 0 for those of the longest training text, from 32 to 128.
        vocabulary: Largest number of different tokens.
        tokeniser: Tokeniser to use; by default one is trained on the training texts.
    """

    text_column: str = ""
    label_column: str = ""
    tokens: int = 0
    vocabulary: int = 8000
    tokeniser: Tokeniser | None = None

    def check_tokeniser(self, tokeniser: Tokeniser, origin: str) -> None:
        """Refuse settings that have no effect because texts get the tokeniser of a prepared file or of a model."""
        require(
            self.tokens in (0, tokeniser.length),
            f"data.tokens must be {tokeniser.length}, as in {origin}, got {self.tokens}: leave it out.",
        )
        require(
            tokeniser.vocabulary - 1 <= self.vocabulary,
            f"data.vocabulary must be at least {tokeniser.vocabulary - 1}, the number of tokens in {origin}, got "
            f"{self.vocabulary}: leave it out.",
        )


@dataclass(frozen=True)
class Texts:
    """Texts and their labels."""

    texts: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def add(self, text: str, label: str) -> None:
        self.texts.append(text)
        self.labels.append(label)


def find_parts(folder: Path) -> dict[str, Path]:
    """Return the text files of a folder by part: train, test and validation. Empty if there is no training file."""
    found: dict[str, Path] = {}
    for part, names in PARTS.items():
        paths = [folder / f"{name}{suffix}" for name in names for suffix in SUFFIXES]
        present = [path for path in paths if path.is_file()]
        if len(present) > 1:
            raise FaustnetError(
                f"{folder} must have one file of {part} texts, got {present[0].name} and {present[1].name}: remove one."
            )
        if present:
            found[part] = present[0]
    return found if "train" in found else {}


def load_text_folder(folder: Path, files: Mapping[str, Path], settings: TextSettings) -> DataSet:
    """Read the files that `find_parts` found in a folder."""
    if "test" not in files:
        raise FaustnetError(
            f"{folder} must have a file test.tsv, test.csv or test.jsonl beside {files['train'].name}: add it, or give "
            f"{files['train']}, of which a fifth is held out for testing."
        )
    parts = {part: read_texts(path, settings) for part, path in files.items()}
    known = set(parts["train"].labels)
    for part, path in files.items():
        if unknown := sorted(set(parts[part].labels) - known):
            raise FaustnetError(
                f"{path} has the label {unknown[0]!r}, which {files['train'].name} does not have: add training texts of it, "
                "or remove it."
            )
    return _tokenised(folder.name, parts, settings)


def load_text_file(path: Path, settings: TextSettings) -> DataSet:
    """Read a single file. About a fifth of the texts are held out for testing, by a hash of the text: adding or removing
    rows moves no other text, and equal texts are in the same part."""
    train, test = Texts(), Texts()
    everything = read_texts(path, settings)
    for text, label in zip(everything.texts, everything.labels, strict=True):
        (test if zlib.crc32(text.encode()) < HELD_OUT * 2**32 else train).add(text, label)
    lost = sorted(set(everything.labels) - set(train.labels))
    require(
        not lost and bool(test.labels),
        f"{path} has too few texts{f' of the class {lost[0]!r}' if lost else ''} to hold out a fifth for testing: add "
        "more, or use a folder with the files train and test.",
    )
    return _tokenised(path.stem, {"train": train, "test": test}, settings)


def _tokenised(name: str, parts: Mapping[str, Texts], settings: TextSettings) -> DataSet:
    names = _sorted_names(set(parts["train"].labels))
    require(len(names) >= 2, f"{name} must have texts of at least two classes, got only the label {names[0]!r}.")
    tokeniser = settings.tokeniser or Tokeniser.train(parts["train"].texts, settings.vocabulary, settings.tokens)
    numbers = {label: number for number, label in enumerate(names)}
    found, truncated = {}, []
    for part, texts in parts.items():
        rows, count = tokeniser.rows(texts.texts)
        found[part] = Images(rows, torch.tensor([numbers[label] for label in texts.labels]))
        truncated += [f"{count:,} of {len(rows):,} {NAMES.get(part, part)} texts"] if count else []
    left_out = f"all tokens after the first {tokeniser.length} of {' and '.join(truncated)} (data.tokens)"
    return DataSet(
        name,
        names,
        found["train"],
        found["test"],
        left_out=(left_out,) if truncated else (),
        validation=found.get("validation"),
        tokeniser=tokeniser,
    )


def _sorted_names(labels: set[str]) -> tuple[str, ...]:
    """Return class names in order: whole numbers by value, everything else by letters."""
    if all(label.isascii() and label.removeprefix("-").isdigit() for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def read_texts(path: Path, settings: TextSettings) -> Texts:
    """Read the text and the label of every row of a file."""
    rows = _rows(path)
    found, columns = Texts(), None
    for line, row in rows:
        if columns is None:
            columns = _choose_columns(path, list(row), settings)
        text, label = (_value(row, column, path, line) for column in columns)
        if problem := text_problem(text):
            raise FaustnetError(f"The text in line {line} of {path} {problem}.")
        found.add(text, _class_name(label, path, line))
    require(bool(found.texts), f"{path} contains no texts: add lines with a text and a label.")
    return found


def _choose_columns(path: Path, present: Sequence[str], settings: TextSettings) -> tuple[str, str]:
    text = _column(path, present, "text", settings.text_column, TEXT_COLUMNS)
    label = _column(path, present, "label", settings.label_column, LABEL_COLUMNS)
    require(text != label, f"data.text_column and data.label_column must be different columns of {path}, got {text!r}.")
    return text, label


def _column(path: Path, present: Sequence[str], kind: str, chosen: str, usual: Sequence[str]) -> str:
    """Return the column that is chosen, or the only one with a usual name."""
    listed = ", ".join(repr(name[:40]) for name in present)
    if chosen:
        require(chosen in present, f"data.{kind}_column must be a column of {path}, which has {listed}, got {chosen!r}.")
        return chosen
    found = [name for name in present if name.strip().lower() in usual]
    if len(found) != 1:
        raise FaustnetError(
            f"{path} must have one {kind} column, named {', '.join(usual)} in its first line, or named by "
            f"data.{kind}_column, got the columns {listed}."
        )
    return found[0]


def _value(row: Row, column: str, path: Path, line: int) -> Any:
    if column not in row:
        raise FaustnetError(f"Line {line} of {path} has no {column!r}: add it, or remove the line.")
    return row[column]


def _class_name(label: Any, path: Path, line: int) -> str:
    """Return a label as the name of its class."""
    name = str(label).lower() if isinstance(label, bool) else str(label).strip()
    if not isinstance(label, str | int) or not name or _is_fraction(name):
        raise FaustnetError(f"The label in line {line} of {path} must be a name or a whole number, got {label!r}.")
    return name


def _is_fraction(name: str) -> bool:
    try:
        value = float(name)
    except ValueError:
        return False
    return math.isfinite(value) and not value.is_integer()  # "nan" and "infinity" may be names


def _rows(path: Path) -> Iterator[NumberedRow]:
    """Yield the rows of a file, each with the number of its line."""
    try:
        content = read_limited(path, LARGEST_FILE)
    except ValueError as error:
        raise FaustnetError(f"{path} cannot be read ({error}): use smaller files.") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise FaustnetError(f"{path} must be UTF-8, but line {line} is not: save the file with that encoding.") from None
    return _json_rows(path, text) if path.suffix.lower() == ".jsonl" else _table_rows(path, text)


def _table_rows(path: Path, text: str) -> Iterator[NumberedRow]:
    """Yield the rows of a TSV file, where quotation marks have no meaning, or of a CSV file, with commas or semicolons. The
    first line names the columns."""
    if path.suffix.lower() == ".tsv":
        reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
    else:
        header = text.lstrip().partition("\n")[0]
        delimiter = ";" if ";" in header and "," not in header else ","
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: list[str] = []
    first = 1  # line of the row
    try:
        for cells in reader:
            first = reader.line_num + 1
            if not cells:
                continue
            if not columns:
                columns = cells
                _check_header(path, columns)
                continue
            if len(cells) != len(columns):
                raise FaustnetError(
                    f"Line {reader.line_num} of {path} must have {len(columns)} columns like the first, got {len(cells)}."
                )
            yield reader.line_num, dict(zip(columns, cells, strict=True))
    except csv.Error as error:
        raise FaustnetError(
            f"The row in line {first} of {path} cannot be read ({error}): fix its quotation marks."
        ) from None


def _check_header(path: Path, columns: Iterable[str]) -> None:
    seen = set[str]()
    for name in columns:
        require(name not in seen, f"{path} must name its columns in its first line, each differently, got {name!r} twice.")
        seen.add(name)


def _json_rows(path: Path, text: str) -> Iterator[NumberedRow]:
    """Yield the objects of a JSONL file."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FaustnetError(f"Line {number} of {path} is not JSON ({error}): fix it.") from None
        if not isinstance(row, dict):
            raise FaustnetError(f'Line {number} of {path} must be a JSON object such as {{"text": …, "label": …}}.')
        yield number, row
