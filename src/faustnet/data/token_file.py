"""Prepared texts: an .npz file with token ids, labels, class names and the tokeniser. Reading it does not need the library
tokenizers."""

import json
import zipfile
from pathlib import Path

import numpy as np
import torch

from faustnet.data.images import DataSet, Images
from faustnet.data.npz import read_arrays
from faustnet.data.text import TextSettings
from faustnet.data.tokens import Tokeniser, check_ids
from faustnet.errors import FaustnetError, require
from faustnet.system.files import writing

TOKENISER, CLASS_NAMES = "tokeniser", "class_names"  # arrays of bytes: JSON in UTF-8
PARTS = ("train", "test", "validation")  # the last is optional


def write_tokens(data: DataSet, path: Path) -> None:
    """Write a data set of texts as a token file. An existing file is overwritten."""
    if data.tokeniser is None:
        raise FaustnetError(f"Only texts have tokens, but {data.name} has images: use it as it is.")
    arrays = {TOKENISER: _to_bytes(data.tokeniser.to_json()), CLASS_NAMES: _to_bytes(json.dumps(data.class_names))}
    for part, texts in zip(PARTS, (data.train, data.test, data.validation), strict=True):
        if texts is not None:
            arrays |= {f"x_{part}": texts.all_pixels.cpu().numpy(), f"y_{part}": texts.labels.cpu().numpy()}
    with writing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def is_token_file(path: Path) -> bool:
    """Return whether an .npz file contains a tokeniser."""
    return f"{TOKENISER}.npy" in _members(path)


def load_tokens(path: Path, settings: TextSettings) -> DataSet:
    """Read a token file. Settings that it does not agree with are errors."""
    tokeniser, names = _read_about(path)
    parts = []
    for part in PARTS if f"x_{PARTS[2]}.npy" in _members(path) else PARTS[:2]:
        x, y = read_arrays(path, (f"x_{part}", f"y_{part}"))
        good = x.dtype in (np.int16, np.int32) and y.dtype == np.int64 and x.shape == (len(x), tokeniser.length)
        require(
            good and len(x) > 0 and y.shape == x.shape[:1] and 0 <= y.min() <= y.max() < len(names),
            f"x_{part} and y_{part} in {path} do not fit its tokeniser and class names: prepare it again.",
        )
        rows = torch.from_numpy(x).to(tokeniser.dtype)
        check_ids(rows, tokeniser.vocabulary, f"x_{part} in {path}")
        parts.append(Images(rows, torch.from_numpy(y)))
    _check_settings(path, tokeniser, settings)
    validation = parts[2] if len(parts) == 3 else None
    return DataSet(path.stem, names, *parts[:2], validation=validation, tokeniser=tokeniser)


def _check_settings(path: Path, tokeniser: Tokeniser, settings: TextSettings) -> None:
    if settings.tokeniser is not None:
        require(
            tokeniser == settings.tokeniser,
            f"{path} was prepared with another tokeniser than that of the model: use the text files instead.",
        )
        return
    settings.check_tokeniser(tokeniser, str(path))


def _read_about(path: Path) -> tuple[Tokeniser, tuple[str, ...]]:
    try:
        tokeniser, names = (bytes(array).decode() for array in read_arrays(path, (TOKENISER, CLASS_NAMES)))
        classes = tuple(map(str, json.loads(names)))
        if len(set(classes)) != len(classes) or len(classes) < 2:
            raise ValueError("its class names are not different")
        return Tokeniser.from_json(tokeniser), classes
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FaustnetError(f"{path} is not a readable token file ({error}): prepare it again.") from None


def _members(path: Path) -> set[str]:
    """Return the names of the files in an archive; none if it is damaged, which `read_arrays` reports."""
    try:
        with zipfile.ZipFile(path) as archive:
            return set(archive.NameToInfo)
    except Exception:  # a damaged archive can raise any exception
        return set()


def _to_bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)
