"""Find what changed between two runs beyond their noise.

Ratios to the reference are compared, because drift of the machine cancels in them. Figures themselves
are compared if the two runs have different references, or have only the reference in common. A change
counts if the 99 % intervals of the two runs do not overlap and the change is larger than what two
identical runs differ by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rpc_backends_bench import statistics
from rpc_backends_bench.plan import BY_ID
from rpc_backends_bench.results import Results
from rpc_backends_bench.statistics import Ratio

Verdict = Literal["better", "worse", "no change"]

_CONFIDENCE = 0.99
#: By how much two identical runs may differ, as a share: with enough rounds, and with fewer.
FLOOR, FLOOR_OF_FEW = 0.05, 0.25
#: How many rounds an interval needs to be reliable.
ENOUGH = 5


@dataclass(frozen=True)
class Change:
    """One row of one backend in both runs.

    :ivar absolute: whether figures are compared, and not ratios to the reference.
    :ivar old: the ratio or the figure in the old run, with its interval.
    :ivar new: the same in the new run.
    :ivar factor: the new value divided by the old one.
    """

    row: str
    x: int | None
    label: str
    absolute: bool
    old: Ratio
    new: Ratio
    factor: float
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """Everything that both runs measured.

    :ivar notes: other differences between the runs (machine, versions, plan) that may explain a change.
    """

    changes: list[Change]
    notes: list[str]

    def beyond_noise(self) -> list[Change]:
        """Return the changes beyond the noise, the largest first."""
        changes = [change for change in self.changes if change.verdict != "no change"]
        return sorted(changes, key=lambda change: -max(change.factor, 1 / change.factor))

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "compared": len(self.changes),
            "changes": [asdict(change) for change in self.beyond_noise()],
            "notes": self.notes,
        }


def compare(old: Results, new: Results) -> Comparison:
    """Compare two runs."""
    return Comparison(list(_changes(old, new)), list(_notes(old, new)))


def _changes(old: Results, new: Results) -> Iterator[Change]:
    same_reference = old.reference == new.reference
    alone = len(set(old.labels) & set(new.labels)) == 1
    for key in new.series:
        row, x, label = key
        if key not in old.series or label not in new.labels:
            continue
        absolute = not same_reference
        if label == new.reference and not absolute:
            if not alone:
                continue  # the ratios of all others are relative to it
            absolute = True
        before, after = (_of(run, row, x, label, absolute) for run in (old, new))
        if before is not None and after is not None:
            yield _change(row, x, label, absolute, before, after)


def _of(run: Results, row: str, x: int | None, label: str, absolute: bool) -> Ratio | None:
    if absolute:
        return statistics.interval(run.series[row, x, label].points, _CONFIDENCE)
    return run.ratio(row, x, label, _CONFIDENCE)


def _change(row: str, x: int | None, label: str, absolute: bool, old: Ratio, new: Ratio) -> Change:
    # A value of zero (an idle worker's processor time may be too little to measure) has no factor.
    factor = new.middle / old.middle if old.middle and new.middle else 1.0
    floor = FLOOR if min(old.pairs, new.pairs) >= ENOUGH else FLOOR_OF_FEW
    apart = new.low > old.high or new.high < old.low
    verdict: Verdict = "no change"
    if apart and max(factor, 1 / factor) > 1 + floor:
        verdict = "better" if (factor > 1) == BY_ID[row].higher_is_better else "worse"
    return Change(row, x, label, absolute, old, new, factor, verdict)


def _notes(old: Results, new: Results) -> Iterator[str]:
    if old.reference != new.reference:
        yield (
            f"The old run's reference is {old.reference}, this run's is {new.reference}. So figures are "
            "compared and not ratios, and the changes include drift of the machine."
        )
    for what in ("cpu", "cores", "system"):
        if old.machine.get(what) != new.machine.get(what):
            yield f"{what}: {old.machine.get(what)} then, {new.machine.get(what)} now."
    if bool(old.machine.get("awake")) != bool(new.machine.get("awake")):
        yield "The cores were kept awake (--awake) in only one of the two runs."
    versions = (run.machine.get("versions", {}) for run in (old, new))
    before, after = versions
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield f"{name}: {before.get(name)} then, {after.get(name)} now."
    if old.plan.get("name") != new.plan.get("name"):
        yield f"The old run was {old.plan.get('name')}, this one is {new.plan.get('name')}."
    for subject in old.labels:
        if subject not in new.labels:
            yield f"{subject} was measured in the old run and not in this one."
