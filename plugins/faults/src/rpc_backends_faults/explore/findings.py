"""What a search has found, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpc_backends_faults.explore.places import Places
from rpc_backends_faults.explore.runs import Run
from rpc_backends_faults.explore.shrinking import Shrunk
from rpc_backends_faults.explore.verdicts import Cause

FORMAT = 1


@dataclass
class Against:
    """How often the shrunk schedule failed on another backend.

    :ivar failed: how many of the ``of`` runs failed there, for whatever cause.
    :ivar problem: why the program fails there without faults; then there is no comparison.
    :ivar complete: whether all runs were made.
    :ivar stopped: why not all of them were made.
    """

    backend: str
    failed: int = 0
    of: int = 0
    problem: str = ""
    complete: bool = False
    stopped: str = ""

    def text(self) -> str:
        """Return in words what the comparison says."""
        if self.problem:
            why = f"the program fails there without faults: {self.problem}"
            return f"not compared with {self.backend}: {why}"
        if not self.of:
            return f"not compared with {self.backend}: {self.stopped or 'not yet'}"
        times = f"on {self.backend}, it fails in {self.failed} of {self.of} runs"
        if not self.complete:
            return f"{times}, and then {self.stopped}" if self.stopped else times
        return times if self.failed else f"{times}: the backend may be the cause"


@dataclass
class Failure:
    """A failure, for all runs with the same cause.

    :ivar folder: holds the rule file, the test, the output, the logs and the timeline.
    :ivar run: the first run that failed so.
    :ivar times: how many explored runs failed so.
    :ivar after: how many explored runs it took to find it.
    :ivar seconds: how many seconds it took to find it.
    :ivar doubt: why it is not counted as a failure; empty if it is.
    """

    number: int
    cause: Cause
    folder: Path
    run: Run
    shrunk: Shrunk
    origin: str
    after: int
    seconds: float
    times: int = 1
    against: Against | None = None
    doubt: str = ""

    def data(self) -> dict[str, Any]:
        """Return the failure as JSON data."""
        schedule = self.shrunk.schedule
        return {
            "number": self.number,
            "kind": self.cause.kind,
            "title": self.cause.title,
            "detail": self.cause.detail,
            "folder": str(self.folder),
            "rules": schedule.rule_file(),
            "words": schedule.words(),
            "faults": len(schedule.faults),
            "failed": self.shrunk.failed,
            "of": self.shrunk.of,
            "shrunk": self.shrunk.complete,
            "shrinking_runs": self.shrunk.tried,
            "origin": self.origin,
            "failed_again": self.shrunk.again,
            "times": self.times,
            "found_after_runs": self.after,
            "found_after_seconds": self.seconds,
            "against": vars(self.against) if self.against else None,
            "timeline": [
                {"seconds": round(fault.t - self._first(), 3), "text": fault.text()}
                for fault in self.run.injected
            ],
        }

    def _first(self) -> float:
        return min((float(log[0]["t"]) for log in self.run.logs), default=0.0)


@dataclass
class Findings:
    """The result of a search.

    :ivar runs: all runs, also those that shrink and confirm.
    :ivar explored: the runs of generated schedules and of the corpus.
    :ivar failing_runs: how many of these failed.
    :ivar environment: the variables that chose the backend, if any was set.
    :ivar error: why nothing was searched; empty if a run with faults ended, or after an interrupt.
    """

    command: tuple[str, ...]
    seed: int
    kinds: tuple[str, ...]
    strategy: str
    started: float
    environment: dict[str, str] = field(default_factory=dict)
    baseline_seconds: float = 0.0
    seconds: float = 0.0
    runs: int = 0
    explored: int = 0
    failing_runs: int = 0
    interrupted: bool = False
    error: str = ""
    places: Places = field(default_factory=Places)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def all_notes(self) -> list[str]:
        """Return the notes, with what was sent only in runs with faults."""
        others = self.places.others
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        sent = [f"Only runs with faults sent: {'; '.join(others[:3])}{more}."] if others else []
        return self.notes + sent

    def data(self) -> dict[str, Any]:
        """Return the findings as JSON data."""
        return {
            "format": FORMAT,
            "command": list(self.command),
            "environment": self.environment,
            "seed": self.seed,
            "strategy": self.strategy,
            "kinds": list(self.kinds),
            "started": self.started,
            "seconds": self.seconds,
            "baseline_seconds": self.baseline_seconds,
            "interrupted": self.interrupted,
            **({"error": self.error} if self.error else {}),
            "runs": self.runs,
            "explored": self.explored,
            "failing_runs": self.failing_runs,
            "places": [
                {
                    "message": place.message,
                    "function": place.function,
                    "sender": place.sender,
                    "receiver": place.receiver,
                    "phase": place.phase,
                    "faults": dict(sorted(self.places.counts.get(place, {}).items())),
                }
                for place in self.places
            ],
            "places_covered": self.places.covered(),
            "places_only_with_faults": self.places.others,
            "failures": [failure.data() for failure in self.failures],
            "notes": self.all_notes(),
        }
