"""Medians, percentiles and ratios of known numbers; confidence intervals separate noise from change."""

from __future__ import annotations

import random

import pytest

from rpc_backends_bench import statistics
from rpc_backends_bench.statistics import Point


def points(values: list[float], per_set: int = 5) -> list[Point]:
    return [(n // per_set, n % per_set, value) for n, value in enumerate(values)]


def test_a_spread_is_the_quartiles_with_the_median_between() -> None:
    assert statistics.spread([4.0, 1.0, 3.0, 2.0, 5.0]) == (2.0, 3.0, 4.0)
    assert statistics.spread([7.0]) == (7.0, 7.0, 7.0)


def test_quantiles_interpolate_between_neighbours() -> None:
    ordered = [10.0, 20.0, 30.0, 40.0]

    assert statistics.quantile(ordered, 0) == 10
    assert statistics.quantile(ordered, 50) == 25
    assert statistics.quantile(ordered, 100) == 40


def test_a_percentile_needs_five_calls_beyond_it() -> None:
    assert statistics.percentiles([float(n) for n in range(499)]).keys() == {"50", "90"}
    by_percent = statistics.percentiles([float(n) for n in range(5001)])

    assert by_percent.keys() == {"50", "90", "99", "99.9"}
    assert by_percent["99.9"] == pytest.approx(4995)


def test_a_distribution_rises_and_ends_at_known_percentiles() -> None:
    drawn = statistics.curve(sorted(random.Random(1).random() for _ in range(1000)))

    assert drawn == sorted(drawn)
    assert drawn[0][0] == 0
    assert 99 < drawn[-1][0] < 99.6


def test_pairs_are_of_the_same_process_set_and_round() -> None:
    ours = [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 3.0)]
    reference = [(0, 1, 20.0), (1, 0, 30.0), (1, 1, 40.0)]

    assert statistics.pairs(ours, reference) == [[(2.0, 20.0)], [(3.0, 30.0)]]


def test_common_drift_does_not_widen_the_ratio() -> None:
    drift = [1.0, 3.0, 0.5, 2.0, 10.0, 0.1, 4.0, 7.0, 2.5, 1.5]

    ratio = statistics.ratio(points([2 * d for d in drift]), points(drift))

    assert ratio is not None
    assert (ratio.low, ratio.middle, ratio.high) == pytest.approx((2, 2, 2))
    assert ratio.pairs == 10


def test_the_interval_of_equal_backends_contains_one() -> None:
    chance = random.Random(3)
    a, b = ([chance.lognormvariate(0, 0.1) for _ in range(40)] for _ in "ab")

    ratio = statistics.ratio(points(a), points(b))

    assert ratio is not None
    assert ratio.low < 1 < ratio.high
    assert ratio.high / ratio.low < 1.2


def test_the_interval_is_reproducible_and_grows_with_confidence() -> None:
    chance = random.Random(4)
    a, b = (points([chance.lognormvariate(0, 0.2) for _ in range(20)]) for _ in "ab")

    narrow, wide = (statistics.ratio(a, b, confidence) for confidence in (0.8, 0.99))

    assert narrow == statistics.ratio(a, b, 0.8)
    assert narrow is not None
    assert wide is not None
    assert wide.low < narrow.low < narrow.middle == wide.middle < narrow.high < wide.high


def test_a_ratio_needs_common_rounds_and_positive_reference() -> None:
    assert statistics.ratio([(0, 0, 1.0)], [(0, 1, 1.0)]) is None
    assert statistics.ratio([(0, 0, 1.0)], [(0, 0, 0.0)]) is None
    assert statistics.ratio([], []) is None
