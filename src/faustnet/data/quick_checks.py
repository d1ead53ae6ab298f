"""Checks of a data set in memory that take less time than reading it, for the start of a training."""

import torch
from torch import Tensor

from faustnet.data.findings import Finding, check_labels, copies_finding, has_pixels, noun_of
from faustnet.data.images import DataSet, Images

SAMPLE = 16  # images of a class that are compared
CLASSES = 1000  # that are compared, at most
VALUES = 64  # of an image that its fingerprint is computed from
LOOKED_UP = 256  # test images that are looked up among the training images


def obvious_findings(data: DataSet) -> list[Finding]:
    """Return the most important findings of `check_data`, as far as a sample of the images shows them. Images in files are
    not read."""
    parts = {"train": data.train, "test": data.test}
    found = [finding for part, images in parts.items() for finding in _copied_classes(data, part, images)]
    return [*found, *_sampled_overlap(data), *check_labels(data)]


def _copied_classes(data: DataSet, part: str, images: Images) -> list[Finding]:
    """Find classes that consist of copies of one image."""
    pixels, labels = images.pixels, images.labels
    if not isinstance(pixels, Tensor) or len(data.class_names) > CLASSES or not (has_pixels(images) or data.tokeniser):
        return []
    sizes = torch.bincount(labels, minlength=len(data.class_names))
    order, starts = _sorted(labels), sizes.cumsum(dim=0) - sizes
    several = (sizes > 1).nonzero()[:, 0]
    steps = torch.arange(SAMPLE, device=labels.device) * sizes[several, None] // SAMPLE
    rows = pixels[order[starts[several, None] + steps]].flatten(2)  # (classes, SAMPLE, values)
    found = []
    for number in several[(rows == rows[:, :1]).flatten(1).all(dim=1)].tolist():
        size = int(sizes[number])
        whole = pixels[order[starts[number] : starts[number] + size]]
        if bool((whole == whole[:1]).all()):
            found.append(copies_finding(part, data.class_names[number], size, size, noun_of(data)))
    return found


def _sorted(values: Tensor) -> Tensor:
    """Return the order of whole numbers. On a CPU, numpy sorts them much faster than torch. (n,) → (n,)"""
    return torch.from_numpy(values.cpu().numpy().argsort(kind="stable")).to(values.device)


def _sampled_overlap(data: DataSet) -> list[Finding]:
    """Look up some test images among the training images. If all images are the same, they are on purpose."""
    train, test = data.train.pixels, data.test.pixels
    if not isinstance(train, Tensor) or not isinstance(test, Tensor) or train.dtype != test.dtype or not test.numel():
        return []
    if torch.equal(train, test):
        return []
    some = test[:: -(-len(test) // LOOKED_UP)]
    known, sought = _fingerprints(train), _fingerprints(some)
    order = _sorted(known)
    begins, ends = (torch.searchsorted(known[order], sought, right=right).tolist() for right in (False, True))
    same = 0
    for row, begin, end in zip(some.reshape(len(some), -1), begins, ends, strict=True):
        candidates = train[order[begin:end]].reshape(end - begin, len(row))
        varies = bool((row != row[0]).any())  # images of a single colour are another mistake
        same += varies and bool((candidates == row).all(dim=1).any())
    if not same:
        return []
    noun = noun_of(data)
    looked_up = " that were looked up" if len(some) < len(test) else ""
    message = f"{same:,} of {len(some):,} test {noun}{looked_up} are also training {noun}: remove them from one of the two."
    return [Finding("overlap", "test", message)]


def _fingerprints(pixels: Tensor) -> Tensor:
    """Return a number for each image, from some of its values, that is equal for equal images. (n, …) → (n,)"""
    rows = pixels.reshape(len(pixels), -1)
    some = rows[:, :: -(-rows.shape[1] // VALUES)]
    numbers = some.float().view(torch.int32) if some.is_floating_point() else some
    weights = torch.randint(2**32, (numbers.shape[1],), generator=torch.Generator().manual_seed(0)).to(numbers.device)
    return (numbers * weights).sum(dim=1)
