"""What changed between two runs, beyond what both runs' own noise explains.

Compared are ratios to the reference, since drift of the machine cancels in them; and the figures
themselves where a run has no reference to divide by (the reference itself is one, told only where
nothing else can be). A change counts if the intervals of the two runs, at 99 %, do not meet, and it is
larger than what two runs differ by without a change.
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
#: By how much two runs differ of which neither knows, as a share: with enough rounds, and with few.
FLOOR, FLOOR_OF_FEW = 0.05, 0.25
#: Rounds from which on the interval says something.
ENOUGH = 5


@dataclass(frozen=True)
class Change:
    """One row of one backend in both runs.

    :ivar old: the ratio to the reference, or, with ``absolute``, the figure itself; and its interval.
    :ivar factor: the new divided by the old.
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
    """All that both runs have.

    :ivar notes: in what the runs differ otherwise, so that a reader knows what a change can come from.
    """

    changes: list[Change]
    notes: list[str]

    def beyond_noise(self) -> list[Change]:
        """Return what changed, the largest change first."""
        found = [one for one in self.changes if one.verdict != "no change"]
        return sorted(found, key=lambda one: -max(one.factor, 1 / one.factor))

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON knows."""
        return {
            "compared": len(self.changes),
            "changes": [asdict(one) for one in self.beyond_noise()],
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
                continue  # all others are told relative to it
            absolute = True
        before, after = (_of(run, row, x, label, absolute) for run in (old, new))
        if before is not None and after is not None:
            yield _change(row, x, label, absolute, before, after)


def _of(run: Results, row: str, x: int | None, label: str, absolute: bool) -> Ratio | None:
    if absolute:
        return statistics.interval(run.series[row, x, label].points, _CONFIDENCE)
    return run.ratio(row, x, label, _CONFIDENCE)


def _change(row: str, x: int | None, label: str, absolute: bool, old: Ratio, new: Ratio) -> Change:
    # Nothing, or too little to be measured (a worker that waits): there is no factor from or to that.
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
            f"The old run compares with {old.reference} and this one with {new.reference}: figures are "
            "compared and not ratios, so drift of the machine is among the changes."
        )
    for what in ("cpu", "cores", "system"):
        if old.machine.get(what) != new.machine.get(what):
            yield f"{what}: {old.machine.get(what)} then, {new.machine.get(what)} now."
    if bool(old.machine.get("awake")) != bool(new.machine.get("awake")):
        yield "The cores were kept awake in one of the runs, and not in the other (--awake)."
    versions = (run.machine.get("versions", {}) for run in (old, new))
    before, after = versions
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield f"{name}: {before.get(name)} then, {after.get(name)} now."
    if old.plan.get("name") != new.plan.get("name"):
        yield f"The old run was {old.plan.get('name')}, this one is {new.plan.get('name')}."
    for subject in old.labels:
        if subject not in new.labels:
            yield f"{subject} was measured then and not now."
