"""Figures from measurements: quantiles, and ratios with the interval in which they lie.

The values of two backends in one round, measured one right after the other, are a *pair*. Two sets of
processes differ by more than two rounds with one *process set*, so values are kept by process set.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

#: The numbers of the process set and of the round, and the value that was measured.
Point = tuple[int, int, float]

#: What is reported of a distribution of single calls, in percent.
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
#: What of it is kept to be drawn, in percent.
CURVE = (*range(100), *(99 + tenth / 10 for tenth in range(1, 10)), 99.95, 99.99)

_RESAMPLES = 1000
#: Calls that have to be beyond a percentile before it is worth telling.
_BEYOND = 5


class Spread(NamedTuple):
    """The median of some values, with their quartiles."""

    low: float
    middle: float
    high: float


class Ratio(NamedTuple):
    """The ratio of two medians, and the interval in which it lies with the confidence asked for."""

    low: float
    middle: float
    high: float
    pairs: int


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of ``values``, of which there must be one."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def quantile(ordered: Sequence[float], percent: float) -> float:
    """Return the value below which ``percent`` of the sorted ``ordered`` lie, between two if need be."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(ordered: Sequence[float]) -> dict[str, float]:
    """Return those of :data:`PERCENTILES` that so many sorted values can tell, by their number."""
    told = (one for one in PERCENTILES if len(ordered) * (1 - one / 100) >= _BEYOND)
    return {f"{one:g}": quantile(ordered, one) for one in told}


def curve(ordered: Sequence[float]) -> list[tuple[float, float]]:
    """Return the distribution of sorted values as it is drawn: percent, and the value there."""
    told = (one for one in CURVE if one <= 90 or len(ordered) * (1 - one / 100) >= _BEYOND)
    return [(float(one), quantile(ordered, one)) for one in told]


def pairs(ours: Sequence[Point], reference: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Return what both measured in the same rounds, by process set."""
    other = {(number, turn): value for number, turn, value in reference}
    sets: dict[int, list[tuple[float, float]]] = {}
    for number, turn, value in ours:
        if (number, turn) in other:
            sets.setdefault(number, []).append((value, other[number, turn]))
    return list(sets.values())


def draws(ours: Sequence[Point], reference: Sequence[Point]) -> list[float]:
    """Return, sorted, the ratio of the medians in samples of what was measured; empty without any.

    Process sets are drawn with replacement, and then rounds in each: as many as the longest has.
    """
    import torch

    sets = pairs(ours, reference)
    if not sets:
        return []
    rng = torch.Generator().manual_seed(0)
    count, longest = len(sets), max(len(one) for one in sets)
    padded = [one + [one[0]] * (longest - len(one)) for one in sets]
    values = torch.tensor(padded, dtype=torch.float64)  # process set, round, which of the two
    lengths = torch.tensor([len(one) for one in sets])
    chosen = torch.randint(count, (_RESAMPLES, count, 1), generator=rng)
    part = torch.rand((_RESAMPLES, count, longest), generator=rng)
    turn = (part * lengths[chosen]).long()
    samples = values[chosen.expand_as(turn), turn].flatten(1, 2).sort(dim=1).values
    size = samples.shape[1]
    medians = (samples[:, (size - 1) // 2] + samples[:, size // 2]) / 2
    drawn: list[float] = (medians[:, 0] / medians[:, 1]).sort().values.tolist()
    return drawn


def ratio(
    ours: Sequence[Point],
    reference: Sequence[Point],
    confidence: float = 0.95,
    drawn: Sequence[float] | None = None,
) -> Ratio | None:
    """Return the ratio of the medians, ours to the reference; None without a common round, or to 0.

    :param drawn: what :func:`draws` has given for them, if that was asked before.
    """
    flat = [pair for one in pairs(ours, reference) for pair in one]
    if not flat or any(other <= 0 for _, other in flat):
        return None
    drawn = draws(ours, reference) if drawn is None else drawn
    tail = (1 - confidence) / 2 * 100
    low, high = quantile(drawn, tail), quantile(drawn, 100 - tail)
    return Ratio(low, _of_medians(flat), high, len(flat))


def interval(points: Sequence[Point], confidence: float = 0.95) -> Ratio | None:
    """Return the median of one backend's values as :func:`ratio` does: its ratio to one."""
    return ratio(points, [(number, turn, 1.0) for number, turn, _ in points], confidence)


def _of_medians(sample: Sequence[tuple[float, float]]) -> float:
    ours, reference = zip(*sample, strict=True)
    value: float = statistics.median(ours) / statistics.median(reference)
    return value
