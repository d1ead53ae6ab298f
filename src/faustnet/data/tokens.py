"""Tokens: texts as rows of whole numbers. The tokeniser is trained on the training texts and stored with the model."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from faustnet.errors import FaustnetError, require

PADDING = 0  # id of the tokens after the end of a text; token i of the definition has id i + 1
LONGEST = 4096  # tokens of a text, at most
AUTOMATIC = 32, 128  # smallest and largest number of tokens of a text, if the training texts determine it
SMALLEST_VOCABULARY = 256  # number of different bytes; every text can be written with them
LARGEST_VOCABULARY = 2**20
AT_ONCE = 10_000  # texts that are encoded together
RARE = 2  # pairs of tokens that occur less often are not joined
NEEDED = (
    "Texts need the package tokenizers: install it with pip install 'faustnet[text]', or prepare the data on another "
    "machine with 'faustnet tokens'."
)


@dataclass(frozen=True)
class Tokeniser:
    """Byte-level BPE tokeniser of lower-case text. It needs no token for unknown characters.

    Only `train` and `encode` import the library tokenizers. Training is deterministic.
    """

    definition: str  # JSON of the library tokenizers
    length: int  # tokens of a text; shorter texts are padded

    @classmethod
    def train(cls, texts: Sequence[str], vocabulary: int, length: int = 0) -> "Tokeniser":
        """Train a tokeniser with at most `vocabulary` tokens. Without a `length`, it is that of the longest text, but within
        the limits `AUTOMATIC`."""
        library = _imported()
        made = library.Tokenizer(library.models.BPE())
        steps = [library.normalizers.NFKC(), library.normalizers.Strip(), library.normalizers.Lowercase()]
        made.normalizer = library.normalizers.Sequence(steps)
        made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
        alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
        # A WordPiece trainer breaks ties between tokens at random, this one does not.
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary, min_frequency=RARE, initial_alphabet=alphabet, show_progress=False
        )
        made.train_from_iterator(texts, trainer)
        definition = made.to_str()
        least, most = AUTOMATIC
        longest = max(map(len, cls(definition, LONGEST).encode(texts)))
        return cls(definition, length or min(max(longest, least), most))

    @classmethod
    def of_ids(cls, vocabulary: int, length: int) -> "Tokeniser":
        """Return a tokeniser of texts that are ids already: the text "17 4" has the tokens 17 and 4. `vocabulary` is the
        number of ids, including padding."""
        words = {f"Ġ{number + 1}": number for number in range(vocabulary - 1)}  # Ġ is the byte of a space
        parts = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        empty: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
        model = {"type": "BPE", "vocab": words, "merges": [], "ignore_merges": True}
        about = {"version": "1.0", **empty, "added_tokens": [], "pre_tokenizer": parts, "model": model}
        return cls(json.dumps(about, ensure_ascii=False), length)

    @classmethod
    def from_json(cls, content: str) -> "Tokeniser":
        """Return a tokeniser from `to_json`. Anything else is a ValueError."""
        about = json.loads(content)
        definition, length = about["definition"], about["length"]
        if not isinstance(definition, str) or type(length) is not int or not 1 <= length <= LONGEST:
            raise ValueError("its tokeniser has no valid definition and length")
        made = cls(definition, length)
        if made.vocabulary > LARGEST_VOCABULARY:
            raise ValueError(f"its tokeniser has more than {LARGEST_VOCABULARY:,} tokens")
        return made

    def to_json(self) -> str:
        return json.dumps({"definition": self.definition, "length": self.length})

    @cached_property
    def _tokens(self) -> list[str]:
        """The tokens in the order of their numbers, from the definition alone."""
        numbers = json.loads(self.definition)["model"]["vocab"]
        if not isinstance(numbers, dict) or sorted(numbers.values()) != list(range(len(numbers))):
            raise ValueError("the tokens of its tokeniser are not numbered from 0")
        if not set().union(*numbers) <= BYTES.keys():
            raise ValueError("the tokens of its tokeniser are not strings of bytes")
        return sorted(numbers, key=numbers.__getitem__)

    @property
    def vocabulary(self) -> int:
        """Number of ids, including padding."""
        return len(self._tokens) + 1

    @property
    def dtype(self) -> torch.dtype:
        """Smallest type that is used to store ids."""
        return torch.int16 if self.vocabulary <= 2**15 else torch.int32

    @cached_property
    def _library(self) -> Any:
        library = _imported()
        try:
            return library.Tokenizer.from_str(self.definition)
        except Exception as error:  # the library has no class for its errors
            raise FaustnetError(f"The tokeniser cannot be used ({error}): install the package tokenizers again.") from None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of all tokens of each text, without padding."""
        return list(self._encoded(texts))

    def _encoded(self, texts: Sequence[str]) -> Iterator[list[int]]:
        most = self.vocabulary
        for first in range(0, len(texts), AT_ONCE):
            for number, found in enumerate(self._library.encode_batch(texts[first : first + AT_ONCE]), start=first + 1):
                ids = [1 + token for token in found.ids]
                if not ids or max(ids) >= most:
                    raise FaustnetError(f"Text {number} cannot be encoded by the tokeniser: train again.")
                yield ids

    def rows(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        """Return the ids of texts, padded or truncated to one length, and the number of truncated texts. → (n, T)"""
        rows = torch.full((len(texts), self.length), PADDING, dtype=self.dtype)
        truncated = 0
        for row, ids in zip(rows, self._encoded(texts), strict=True):
            truncated += len(ids) > self.length
            kept = ids[: self.length]
            row[: len(kept)] = torch.tensor(kept, dtype=self.dtype)
        return rows, truncated

    def whole_rows(self, texts: Sequence[str]) -> Tensor:
        """Return the ids of texts, padded to one length. An empty text and one that is too long are errors. → (n, T)"""
        for number, text in enumerate(texts, start=1):
            if problem := text_problem(text):
                raise FaustnetError(f"Text {number} {problem}.")
        for number, ids in enumerate(self._encoded(texts), start=1):
            require(
                len(ids) <= self.length,
                f"A text must have at most {self.length} tokens for this model, but text {number} has {len(ids)}: "
                "shorten it, or train with a larger data.tokens.",
            )
        return self.rows(texts)[0]

    def decode(self, rows: Tensor) -> list[str]:
        """Return texts in lower case from their ids, without importing the library. (n, T)"""
        found = []
        for ids in rows.tolist():
            joined = "".join(self._tokens[number - 1] for number in ids if number != PADDING)
            found.append(bytes(BYTES[letter] for letter in joined).decode(errors="replace").strip())
        return found


def text_problem(text: object) -> str | None:
    """Return why a text cannot be used, or None if it can."""
    if not isinstance(text, str):
        return f"must be a string, got {type(text).__name__}"
    if not text.strip():
        return "is empty: remove it, or write at least one word"
    if text.encode(errors="replace").decode() != text:
        return "contains invalid Unicode: replace those characters"
    return None


def check_ids(rows: Tensor, vocabulary: int, name: str) -> None:
    """Refuse rows of tokens that are not ids of this vocabulary, or are padding only. (n, T)"""
    require(
        rows.dim() == 2 and not rows.is_floating_point(), f"{name} must be whole numbers, (n, tokens), got {rows.dtype}."
    )
    if rows.numel():
        low, high = (int(end) for end in rows.aminmax())
        require(low >= 0 and high < vocabulary, f"{name} must have ids from 0 to {vocabulary - 1}, got {low} to {high}.")
        require(bool((rows != PADDING).any(dim=1).all()), f"{name} must have a token in every text: remove empty texts.")


def _byte_letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level token stands for: printable characters of Latin-1 stand for
    themselves, and the other bytes are numbered from U+0100 on."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + number): byte for number, byte in enumerate(others)}


BYTES = _byte_letters()


def _imported() -> Any:
    try:
        return import_module("tokenizers")
    except ImportError:
        raise FaustnetError(NEEDED) from None
