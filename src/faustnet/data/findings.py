"""Checks of a data set for mistakes that a training does not notice, such as test images that are also training images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch

from faustnet.data.images import DataSet, Images, is_table
from faustnet.data.stored_pixels import CHUNK, StoredPixels

EXAMPLES = 8  # images that a finding names, at most
SHOWN = 5  # classes that a message names
MOSTLY = 0.5  # fraction of a class from which copies of one image are a finding,
MANY = 10  # if there are at least this many of them
HASH_BYTES = 8  # of an image; a chance of one in a million that any two of six million images share one
ADJECTIVES = {"train": "training"}  # of the parts of a data set in messages, where they differ

OnImages = Callable[[int], None]
Example = tuple[str, int]  # part and position of an image


@dataclass(frozen=True)
class Finding:
    """Something about a data set that is probably a mistake."""

    kind: str  # copies, overlap, conflict, constant, single, untested, label or skipped
    where: str  # part of the data set, and class: "test" or "test/cat"; or a path
    message: str  # one sentence, with the remedy
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class _Part:
    """Training, test or validation images."""

    name: str
    labels: np.ndarray  # (n,)
    hashes: np.ndarray  # (n,), equal for equal images
    constant: np.ndarray  # (n,), whether all pixels of a channel have one value, in all channels

    @property
    def adjective(self) -> str:
        return ADJECTIVES.get(self.name, self.name)


def check_data(data: DataSet, on_images: OnImages | None = None) -> list[Finding]:
    """Return everything that is probably a mistake, the most important first.

    All images are read once, and 17 bytes are kept for each. Images are equal if all their values are: a resized or
    brightened copy is another image. Texts are equal if their tokens are. `on_images` is called with the number of images
    that were read, a few at a time.
    """
    noun = noun_of(data)
    given = {"train": data.train, "test": data.test}
    if data.validation is not None:
        given["validation"] = data.validation
    train, *held_out = parts = [_scan(name, images, on_images) for name, images in given.items()]
    found = [finding for part in parts for finding in _copies(part, data.class_names, noun)]
    found += [finding for part in held_out for finding in _overlap(train, part, noun)]
    found += _conflicts(train, data.class_names, noun)
    found += [finding for part in parts for finding in _constant(part, data.class_names)]
    found += check_labels(data)
    found += [finding for part in parts for finding in _single(part, data.class_names, noun)]
    found += _untested(data, noun)
    if data.tokeniser is None:
        found += [Finding("skipped", data.name, f"{line.removesuffix('.')}.") for line in data.left_out]
    return found


def noun_of(data: DataSet) -> str:
    """Return what the samples of a data set are called: images, rows or texts."""
    return "texts" if data.tokeniser else "images" if has_pixels(data.train) else "rows"


def has_pixels(images: Images) -> bool:
    """Return whether these are images, not rows of a table or of tokens."""
    return len(images.shape) == 3 and not is_table(images.shape)


def check_labels(data: DataSet) -> list[Finding]:
    """Find numbers in place of class names that are probably not classes: -1, and those far from the others, such as 255
    after 0 to 9. Folders are named on purpose."""
    if data.paths is not None or not all(name.removeprefix("-").isdecimal() for name in data.class_names):
        return []
    numbers = sorted(map(int, data.class_names))
    if numbers == [-1, 1]:  # a usual name for two classes
        return []
    good = [number for number in numbers if number >= 0]
    run = next((place for place, number in enumerate(good) if number != good[0] + place), len(good))
    far = good[run:] if good[:1] in ([0], [1]) and len(good) - run < run > 1 else []
    strange = [number for number in numbers if number < 0] + far
    return [_strange_label(data, str(number), f"{good[0]} to {good[run - 1]}" if run > 1 else "") for number in strange]


def _strange_label(data: DataSet, name: str, others: str) -> Finding:
    members = (data.train.labels == data.class_names.index(name)).nonzero()[:, 0].cpu().tolist()
    beside = f" beside {others}" if others else ""
    message = (
        f"The label {name}{beside} is a class of its own with {len(members):,} training {noun_of(data)}, but often marks "
        "missing labels: remove them, or number the classes from 0."
    )
    return Finding("label", f"train/{name}", message, tuple(("train", place) for place in members[:EXAMPLES]))


def _scan(name: str, images: Images, on_images: OnImages | None) -> _Part:
    """Read all images in chunks, and compute their hashes."""
    hashes, constant = np.empty(len(images), np.uint64), np.zeros(len(images), bool)
    done, pictures = 0, has_pixels(images)
    for chunk in images.pixels.split(CHUNK):
        rows = chunk.cpu().contiguous()
        stop = done + len(rows)
        if pictures:
            low, high = torch.aminmax(rows.flatten(2), dim=2)
            constant[done:stop] = (low == high).all(dim=1).numpy()
        digests = b"".join(blake2b(row, digest_size=HASH_BYTES).digest() for row in rows.flatten(1).numpy())
        hashes[done:stop] = np.frombuffer(digests, np.uint64)
        done = stop
        if on_images is not None:
            on_images(len(rows))
    return _Part(name, images.labels.cpu().numpy(), hashes, constant)


def _copies(part: _Part, names: Sequence[str], noun: str) -> list[Finding]:
    """Find classes that consist of copies of one image, or mostly."""
    if noun == "rows":
        return []
    order = np.lexsort((part.hashes, part.labels))
    labels, hashes = part.labels[order], part.hashes[order]
    firsts = np.flatnonzero(np.concatenate([[True], (np.diff(labels) != 0) | (hashes[1:] != hashes[:-1])]))
    lengths = np.diff(np.append(firsts, len(order)))  # of groups of equal images with one label
    sizes = np.bincount(part.labels, minlength=len(names))[labels[firsts]]
    enough = (lengths > 1) & ((lengths == sizes) | ((lengths >= MOSTLY * sizes) & (lengths >= MANY)))
    found = []
    for first, length, size in zip(firsts[enough], lengths[enough], sizes[enough], strict=True):
        name = names[labels[first]]
        examples = tuple((part.name, place) for place in np.sort(order[first : first + length])[:EXAMPLES].tolist())
        found.append(copies_finding(part.name, name, int(length), int(size), noun, examples))
    return found


def copies_finding(
    part: str, class_name: str, copies: int, size: int, noun: str, examples: tuple[Example, ...] = ()
) -> Finding:
    """Return the finding that a class contains copies of one image."""
    number = f"All {size:,}" if copies == size else f"{copies:,} of the {size:,}"
    message = (
        f"{number} {ADJECTIVES.get(part, part)} {noun} of {class_name!r} are copies of one {noun[:-1]}: replace them by "
        "different ones."
    )
    return Finding("copies", f"{part}/{class_name}", message, examples)


def _overlap(train: _Part, part: _Part, noun: str) -> list[Finding]:
    """Find images that are also training images."""
    order = train.hashes.argsort(kind="stable")
    places = np.searchsorted(train.hashes, part.hashes, sorter=order).clip(max=len(order) - 1)
    twins = order[places]  # positions of the same image among the training images, if there is one
    same = np.flatnonzero((train.hashes[twins] == part.hashes) & ~part.constant)
    if not len(same):
        return []
    others = int((train.labels[twins[same]] != part.labels[same]).sum())
    labelled = f", {others:,} of them with another label" if others else ""
    message = (
        f"{len(same):,} of {len(part.labels):,} {part.adjective} {noun} ({_percent(len(same), len(part.labels))}) are also "
        f"training {noun}{labelled}: remove them from one of the two."
    )
    examples = [one for place in same[: EXAMPLES // 2] for one in ((part.name, int(place)), (train.name, int(twins[place])))]
    return [Finding("overlap", part.name, message, tuple(examples))]


def _conflicts(train: _Part, names: Sequence[str], noun: str) -> list[Finding]:
    """Find training images that occur with different labels."""
    order = np.lexsort((train.labels, train.hashes))
    order = order[~train.constant[order]]
    equal = train.hashes[order][1:] == train.hashes[order][:-1]
    differ = np.flatnonzero(equal & (np.diff(train.labels[order]) != 0))
    if not len(differ):
        return []
    count = len(np.unique(train.hashes[order[differ]]))
    one, other = (names[train.labels[order[differ[0] + step]]] for step in (0, 1))
    message = (
        f"{count:,} training {noun if count > 1 else noun[:-1]} {'occur' if count > 1 else 'occurs'} with different labels, "
        f"for example {one!r} and {other!r}: correct the labels."
    )
    examples = [("train", int(order[place + step])) for place in differ[: EXAMPLES // 2] for step in (0, 1)]
    return [Finding("conflict", "train", message, tuple(examples))]


def _constant(part: _Part, names: Sequence[str]) -> list[Finding]:
    """Find images of a single colour."""
    places = np.flatnonzero(part.constant)
    if not len(places):
        return []
    classes, counts = np.unique(part.labels[places], return_counts=True)
    listed = _listed([f"{names[label]!r} {count:,}" for label, count in zip(classes, counts, strict=True)])
    has, them = ("images have", "them") if len(places) > 1 else ("image has", "it")
    message = f"{len(places):,} {part.adjective} {has} a single colour (by class: {listed}): remove or replace {them}."
    return [Finding("constant", part.name, message, tuple((part.name, place) for place in places[:EXAMPLES].tolist()))]


def _single(part: _Part, names: Sequence[str], noun: str) -> list[Finding]:
    """Find classes with a single image."""
    counts = np.bincount(part.labels, minlength=len(names))
    places = np.flatnonzero(counts[part.labels] == 1)
    return [
        Finding(
            "single",
            f"{part.name}/{names[part.labels[place]]}",
            f"{names[part.labels[place]]!r} has a single {part.adjective} {noun[:-1]}: add more, or remove the class.",
            ((part.name, place),),
        )
        for place in places.tolist()
    ]


def _untested(data: DataSet, noun: str) -> list[Finding]:
    """Find classes without test images."""
    counts = torch.bincount(data.test.labels.cpu(), minlength=len(data.class_names)).tolist()
    missing = [name for name, count in zip(data.class_names, counts, strict=True) if not count]
    return [
        Finding("untested", f"test/{name}", f"{name!r} has no test {noun}: add some, or its accuracy remains unknown.")
        for name in missing
    ]


def place_of(data: DataSet, example: Example) -> str:
    """Return where the user finds an image: its file, or its position in an array."""
    part, place = example
    images = {"train": data.train, "test": data.test, "validation": data.validation}[part]
    if data.paths is not None:
        return str(data.paths[part][place])
    if images is not None and isinstance(images.pixels, StoredPixels):
        file, row = images.pixels.file_of(place)
        return f"{file.parent.name}/{file.name}[{row}]"
    return f"{part}[{place}]"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _percent(count: int, total: int) -> str:
    return f"{count / total:.2%}" if count / total >= 0.0001 else "below 0.01%"
