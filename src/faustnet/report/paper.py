"""Accuracies from the paper, and titles of data sets."""

# Test accuracy in %, Table I of the paper; a dash there is None here.
TABLE_1: dict[str, dict[tuple[str, str], float | None]] = {
    method: dict(
        zip(
            [(dataset, network) for dataset in ("mnist", "fashion-mnist", "cifar10") for network in ("3x500", "4x800")],
            figures,
            strict=True,
        )
    )
    for method, figures in {
        "backprop": (98.64, 98.64, 90.11, 90.40, 57.30, 57.63),
        "forward-forward": (97.05, 97.22, 87.10, 87.47, 46.13, 46.44),
        "ffcm": (97.01, 97.12, 87.67, 87.64, 54.44, 54.48),
        "collaborative-ff": (97.90, None, 88.40, None, 48.40, None),
        "faust-triplet": (98.33, 97.95, 86.61, 86.71, 47.42, 46.76),
        "faust-tuplet": (98.68, 98.69, 87.69, 87.42, 54.05, 53.79),
        "faust-representative": (98.43, 98.39, 89.67, 89.47, 55.92, 56.22),
    }.items()
}

TITLES = {
    "digits": "digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar100-coarse": "CIFAR-100, 20 groups",
    "omniglot": "Omniglot",
    "omniglot-rotated": "Omniglot with rotations",
    "omniglot-evaluation": "Omniglot, evaluation set",
    "sst2": "SST-2",
    "trec": "TREC",
}  # of data sets, in the order of tables


def dataset_title(name: str) -> str:
    """Return the title of a data set, or its name if it has none."""
    return TITLES.get(name, name)


def dataset_rank(name: str) -> tuple[int, str]:
    """Return the sort key of a data set in tables: known titles first, in their order."""
    return list(TITLES).index(name) if name in TITLES else len(TITLES), name


def reported(method: str, dataset: str, network: str) -> float | None:
    """Return the accuracy in the paper, or None if it has none."""
    return TABLE_1.get(method, {}).get((dataset, network))
