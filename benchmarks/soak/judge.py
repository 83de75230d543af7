"""Judge whether a figure is flat: compare the median of a run's last third with the middle third.

The first third is ignored, because caches fill, threads start and the allocator grows. A median ignores a
single sample, such as one with a large tensor in transit. A leak grows from third to third; noise does
not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: How many samples a verdict needs at least.
LEAST_SAMPLES = 9


@dataclass(frozen=True)
class Tolerance:
    """How far the last third may be above the middle one: ``fixed`` plus ``share`` of the middle.

    :ivar most: how high the last third may be in any case.
    """

    fixed: float
    share: float
    most: float = math.inf

    def above(self, middle: float) -> float:
        """Return how far above ``middle`` is permitted."""
        return self.fixed + self.share * middle


#: By figure. Memory is in MiB; the allocator does not return all free memory. The number of an agent's
#: threads follows its load. One or two files may be about to be closed.
TOLERANCES = {
    "rss_mib": Tolerance(fixed=8.0, share=0.02),
    "files": Tolerance(fixed=2.0, share=0.0),
    "threads": Tolerance(fixed=4.0, share=0.2),
}
#: With churn, 10 files more are permitted: a worker has about 5 for each peer, and the successors of two
#: killed peers may join before the worker has given these up. The allocator's arenas fill for minutes,
#: because the worker creates large RRefs; ``--most-mib`` limits that.
CHURNED = {
    **TOLERANCES,
    "rss_mib": Tolerance(fixed=48.0, share=0.15),
    "files": Tolerance(fixed=10.0, share=0.0),
}


@dataclass(frozen=True)
class Verdict:
    """The verdict on one figure of one worker.

    :ivar first: the median of the first third, which is shown but not judged.
    :ivar middle: the median of the middle third.
    :ivar last: the median of the last third.
    :ivar permitted: how far ``last`` may be above ``middle``.
    :ivar most: how high ``last`` may be in any case.
    """

    worker: str
    figure: str
    first: float
    middle: float
    last: float
    permitted: float
    most: float = math.inf

    @property
    def flat(self) -> bool:
        """Whether the figure has grown by no more than is permitted; it may fall."""
        return self.last - self.middle <= self.permitted

    @property
    def is_good(self) -> bool:
        """Whether the figure is flat and not above its limit."""
        return self.flat and self.last <= self.most

    def __str__(self) -> str:
        word = "flat" if self.flat else "GROWS"
        if self.last > self.most:
            word += f", ABOVE its limit of {self.most:g}"
        return (
            f"{self.worker} {self.figure}: {self.first:g}, {self.middle:g}, {self.last:g} "
            f"(permitted +{self.permitted:.3g}): {word}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        most = None if math.isinf(self.most) else self.most
        return {**asdict(self), "most": most, "flat": self.flat, "is_good": self.is_good}


def judge(
    worker: str,
    figure: str,
    samples: Sequence[float],
    tolerances: Mapping[str, Tolerance] = TOLERANCES,
) -> Verdict:
    """Judge the samples of one figure, taken at equal intervals.

    :raises ValueError: there are too few samples.
    """
    if len(samples) < LEAST_SAMPLES:
        raise ValueError(
            f"{len(samples)} samples of {figure} are too few for a verdict, which needs {LEAST_SAMPLES}. "
            "Run longer (--minutes), or sample more often (--interval)."
        )
    third = len(samples) // 3
    first, middle, last = (
        statistics.median(part)
        for part in (samples[:third], samples[third:-third], samples[-third:])
    )
    tolerance = tolerances[figure]
    return Verdict(worker, figure, first, middle, last, tolerance.above(middle), tolerance.most)
