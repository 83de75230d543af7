"""Whether a figure of a process is flat: the median of the last third of a run beside that of the middle.

The first third is left out: caches fill, threads start, the allocator finds its size. A median does not
see what one sample has, such as a large tensor that was on its way. What grows for as long as the program
runs grows from third to third; what is only noisy does not.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: Samples without which nothing is said.
LEAST_SAMPLES = 9


@dataclass(frozen=True)
class Tolerance:
    """By how much the last third may be above the middle one: ``fixed`` and, of that one, ``share``."""

    fixed: float
    share: float

    def above(self, middle: float) -> float:
        """Return what is permitted above ``middle``."""
        return self.fixed + self.share * middle


#: By figure. Memory is in MiB, and the allocator gives back what it likes. An agent has as many threads
#: as the moment takes; of files there are as many as of peers, and one or two that are about to go.
TOLERANCES = {
    "rss_mib": Tolerance(fixed=8.0, share=0.02),
    "files": Tolerance(fixed=2.0, share=0.0),
    "threads": Tolerance(fixed=4.0, share=0.2),
}
#: Where peers die and others come: a worker has about 5 files for each peer, and of two peers one may
#: have come while the one before is not given up yet. Memory and threads must be as flat as ever.
CHURNED = {**TOLERANCES, "files": Tolerance(fixed=10.0, share=0.0)}


@dataclass(frozen=True)
class Verdict:
    """What was found of one figure of one worker.

    :ivar first: the median of the first third, for those who want to see it.
    :ivar permitted: by how much ``last`` may be above ``middle``.
    """

    worker: str
    figure: str
    first: float
    middle: float
    last: float
    permitted: float

    @property
    def flat(self) -> bool:
        """Whether it has not grown by more than is permitted; that it may fall goes without saying."""
        return self.last - self.middle <= self.permitted

    def __str__(self) -> str:
        word = "flat" if self.flat else "GROWS"
        return (
            f"{self.worker} {self.figure}: {self.first:g}, {self.middle:g}, {self.last:g} "
            f"(permitted +{self.permitted:.3g}): {word}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "flat": self.flat}


def judge(
    worker: str,
    figure: str,
    samples: Sequence[float],
    tolerances: Mapping[str, Tolerance] = TOLERANCES,
) -> Verdict:
    """Judge the samples of one figure, which were taken at equal intervals.

    :raises ValueError: there are too few of them.
    """
    if len(samples) < LEAST_SAMPLES:
        raise ValueError(
            f"{len(samples)} samples of {figure} are too few to say whether it is flat; {LEAST_SAMPLES} "
            "are needed. Let the program run longer, or sample more often (--interval)."
        )
    third = len(samples) // 3
    first, middle, last = (
        statistics.median(part)
        for part in (samples[:third], samples[third:-third], samples[-third:])
    )
    return Verdict(worker, figure, first, middle, last, tolerances[figure].above(middle))
