"""Statistics of measurements: quantiles, and ratios with confidence intervals.

The values of two backends in one round are a *pair*: they were measured one right after the other. Two
sets of processes differ more than two rounds of one *process set*, so values are kept by process set.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

#: The number of the process set, that of the round, and the measured value.
Point = tuple[int, int, float]

#: The percentiles of single calls that are reported, in percent.
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
#: The percentiles of single calls that are kept for plots, in percent.
CURVE = (*range(100), *(99 + tenth / 10 for tenth in range(1, 10)), 99.95, 99.99)

_RESAMPLES = 1000
#: How many calls must lie beyond a percentile for it to be reported.
_MIN_SAMPLES_BEYOND = 5


class Spread(NamedTuple):
    """The median and the two quartiles of some values."""

    low: float
    middle: float
    high: float


class Ratio(NamedTuple):
    """The ratio of two medians with its confidence interval.

    :ivar pairs: how many pairs of values it was computed from.
    """

    low: float
    middle: float
    high: float
    pairs: int


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of ``values``, which must not be empty."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def quantile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of the sorted values ``ordered``, interpolated between its neighbours."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(ordered: Sequence[float]) -> dict[str, float]:
    """Return those of :data:`PERCENTILES` that have enough of the sorted values beyond them."""
    reported = (
        percentile
        for percentile in PERCENTILES
        if len(ordered) * (1 - percentile / 100) >= _MIN_SAMPLES_BEYOND
    )
    return {f"{percentile:g}": quantile(ordered, percentile) for percentile in reported}


def curve(ordered: Sequence[float]) -> list[tuple[float, float]]:
    """Return the distribution of sorted values for a plot: pairs of percent and value."""
    drawn = (
        percentile
        for percentile in CURVE
        if percentile <= 90 or len(ordered) * (1 - percentile / 100) >= _MIN_SAMPLES_BEYOND
    )
    return [(float(percentile), quantile(ordered, percentile)) for percentile in drawn]


def pairs(ours: Sequence[Point], reference: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Return the pairs of values from rounds that both have: a list for each process set."""
    of_reference = {(number, turn): value for number, turn, value in reference}
    sets: dict[int, list[tuple[float, float]]] = {}
    for number, turn, value in ours:
        if (number, turn) in of_reference:
            sets.setdefault(number, []).append((value, of_reference[number, turn]))
    return list(sets.values())


def bootstrap_ratios(ours: Sequence[Point], reference: Sequence[Point]) -> list[float]:
    """Return the ratios of the medians of bootstrap samples, sorted; empty if there is no pair.

    For a sample, process sets are drawn with replacement. From each drawn set, rounds are then drawn
    with replacement, always as many as the longest set has.
    """
    import torch

    sets = pairs(ours, reference)
    if not sets:
        return []
    rng = torch.Generator().manual_seed(0)
    count, longest = len(sets), max(len(values) for values in sets)
    padded = [values + [values[0]] * (longest - len(values)) for values in sets]
    values = torch.tensor(padded, dtype=torch.float64)  # process set x round x (ours, reference)
    lengths = torch.tensor([len(values) for values in sets])
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
    """Return the ratio of our median to the reference's, with its interval.

    None if there is no common round, or a value of the reference is not above 0.

    :param drawn: the result of :func:`bootstrap_ratios` for the same points, if already computed.
    """
    flat = [pair for group in pairs(ours, reference) for pair in group]
    if not flat or any(denominator <= 0 for _, denominator in flat):
        return None
    drawn = bootstrap_ratios(ours, reference) if drawn is None else drawn
    tail = (1 - confidence) / 2 * 100
    low, high = quantile(drawn, tail), quantile(drawn, 100 - tail)
    return Ratio(low, _median_ratio(flat), high, len(flat))


def interval(points: Sequence[Point], confidence: float = 0.95) -> Ratio | None:
    """Return the median of one backend's values with its interval, as a ratio to 1."""
    return ratio(points, [(number, turn, 1.0) for number, turn, _ in points], confidence)


def _median_ratio(sample: Sequence[tuple[float, float]]) -> float:
    ours, reference = zip(*sample, strict=True)
    value: float = statistics.median(ours) / statistics.median(reference)
    return value
