"""Figures from measurements: quantiles, and ratios with the interval in which they lie.

What two backends took in one round was measured one right after the other: a *pair*. Rounds in one set
of processes are a *sitting*: two sets of processes differ by more than two rounds of one set.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

#: Sitting, round, and the value that was measured then.
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
    """Return what both measured in the same rounds, by sitting."""
    other = {(sitting, turn): value for sitting, turn, value in reference}
    sittings: dict[int, list[tuple[float, float]]] = {}
    for sitting, turn, value in ours:
        if (sitting, turn) in other:
            sittings.setdefault(sitting, []).append((value, other[sitting, turn]))
    return list(sittings.values())


def draws(ours: Sequence[Point], reference: Sequence[Point]) -> list[float]:
    """Return, sorted, the ratio of the medians in samples of what was measured; empty without any.

    Sittings are drawn with replacement, and then rounds in each: as many as the longest has.
    """
    import torch

    sittings = pairs(ours, reference)
    if not sittings:
        return []
    chance = torch.Generator().manual_seed(0)
    count, longest = len(sittings), max(len(sitting) for sitting in sittings)
    padded = [sitting + [sitting[0]] * (longest - len(sitting)) for sitting in sittings]
    values = torch.tensor(padded, dtype=torch.float64)  # sitting, round, which of the two
    lengths = torch.tensor([len(sitting) for sitting in sittings])
    sitting = torch.randint(count, (_RESAMPLES, count, 1), generator=chance)
    part = torch.rand((_RESAMPLES, count, longest), generator=chance)
    turn = (part * lengths[sitting]).long()
    samples = values[sitting.expand_as(turn), turn].flatten(1, 2).sort(dim=1).values
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
    flat = [pair for sitting in pairs(ours, reference) for pair in sitting]
    if not flat or any(other <= 0 for _, other in flat):
        return None
    drawn = draws(ours, reference) if drawn is None else drawn
    tail = (1 - confidence) / 2 * 100
    low, high = quantile(drawn, tail), quantile(drawn, 100 - tail)
    return Ratio(low, _of_medians(flat), high, len(flat))


def interval(points: Sequence[Point], confidence: float = 0.95) -> Ratio | None:
    """Return the median of one backend's values as :func:`ratio` does: its ratio to one."""
    return ratio(points, [(sitting, turn, 1.0) for sitting, turn, _ in points], confidence)


def _of_medians(sample: Sequence[tuple[float, float]]) -> float:
    ours, reference = zip(*sample, strict=True)
    value: float = statistics.median(ours) / statistics.median(reference)
    return value
