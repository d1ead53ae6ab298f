"""Comparison of two groups of runs, A and B: the difference of their accuracies, with an interval over the runs."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.special import stdtrit

CONFIDENCE = 0.95
TOGETHER = "all layers"

Facts = Mapping[str, Any]  # about one run: test_accuracy, layer_accuracy and voters


def welch_interval(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return Welch's t interval of the difference of two means, mean(a) − mean(b). It is None if a or b has fewer than two
    values, or if both have no variance. (n,), (m,)"""
    if min(len(a), len(b)) < 2:
        return None
    half = welch_half((statistics.variance(a), len(a)), (statistics.variance(b), len(b)), confidence)
    difference = statistics.mean(a) - statistics.mean(b)
    return None if half is None else (difference - half, difference + half)


def welch_half(a: tuple[float, int], b: tuple[float, int], confidence: float = CONFIDENCE) -> float | None:
    """Return half the length of Welch's t interval of the difference of two means, from the variances and the numbers of
    values, at least two each. It is None if both variances are 0.

    With s² = var(a)/n + var(b)/m, it is t(ν)·s, where t(ν) is the quantile of Student's t distribution and
    ν = s⁴ / ((var(a)/n)²/(n − 1) + (var(b)/m)²/(m − 1)).
    """
    parts = [variance / count for variance, count in (a, b)]
    total = sum(parts)
    if total == 0:
        return None
    shares = [part / total for part in parts]  # squares of small variances would be 0
    freedom = 1 / sum(share**2 / (count - 1) for share, (_, count) in zip(shares, (a, b), strict=True))
    return float(stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(total)


def t_half(values: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Return half the length of Student's t interval of a mean, t(n − 1)·std/√n. It is None for a single value. (n,)"""
    if len(values) < 2:
        return None
    quantile = float(stdtrit(len(values) - 1, (1 + confidence) / 2))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def compare_groups(a: Sequence[Facts], b: Sequence[Facts]) -> dict[str, Any]:
    """Return the rows and the notes of a comparison, as values for JSON.

    There is a row for all layers together and, if all runs predict from the same number of layers, a row for each layer
    alone. "better" is "A", "B" or None; it is None if the interval includes zero or does not exist.
    """
    rows = [_row(TOGETHER, *([run["test_accuracy"] for run in group] for group in (a, b)))]
    counts = sorted({len(run["voters"]) for run in (*a, *b)})
    notes = []
    if len(counts) > 1:
        found = " and ".join(map(str, counts))
        notes.append(f"Layers are not compared, because the runs predict from different numbers of layers: {found}.")
    elif counts[0] > 1:
        for place, name in enumerate(a[0]["voters"]):
            rows.append(_row(name, *([run["layer_accuracy"][place] for run in group] for group in (a, b))))
    return {"confidence": CONFIDENCE, "rows": rows, "notes": notes + _missing_intervals(rows, a, b)}


def _row(name: str, a: list[float], b: list[float]) -> dict[str, Any]:
    interval, difference = welch_interval(a, b), statistics.mean(a) - statistics.mean(b)
    better = None
    if interval is not None and not interval[0] <= 0 <= interval[1]:
        better = "A" if difference > 0 else "B"
    return {"name": name, "a": _group(a), "b": _group(b), "difference": difference, "interval": interval, "better": better}


def _group(values: list[float]) -> dict[str, Any]:
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "std": std, "values": values}


def _missing_intervals(rows: list[dict[str, Any]], a: Sequence[Facts], b: Sequence[Facts]) -> list[str]:
    single = [name for name, group in (("A", a), ("B", b)) if len(group) == 1]
    if single:
        have = "have one run each" if len(single) == 2 else "has one run only"
        return [f"There are no intervals, because {' and '.join(single)} {have}: train more seeds."]
    equal = [row["name"] for row in rows if row["interval"] is None]
    return [f"There is no interval for {', '.join(equal)}, because the runs of a group do not differ."] if equal else []
