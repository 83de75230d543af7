"""The result of a run, combined from the trainers' reports, and whether it is good enough."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from demo.backends import Origin
from demo.plan import GOAL, TRAINERS, Faults


@dataclass(frozen=True)
class StepDone:
    """A trainer has finished one batch.

    :param steps: the number of batches in an epoch.
    """

    epoch: int
    steps: int


@dataclass(frozen=True)
class EpochDone:
    """One trainer's report of an epoch: its half of the training set and test set, and its faults.

    :param loss: mean over this trainer's batches.
    :param failed: number of failed sends in this epoch, by message type.
    :param delayed: number of delayed sends in this epoch, by message type.
    """

    worker: str
    epoch: int
    loss: float
    correct: int
    tested: int
    failed: dict[str, int]
    delayed: dict[str, int]
    seconds: float


@dataclass(frozen=True)
class Epoch:
    """One epoch of both trainers: mean loss, accuracy on the whole test set, number of faults."""

    number: int
    loss: float
    accuracy: float
    failed: dict[str, int]
    delayed: dict[str, int]
    seconds: float


@dataclass
class Run:
    """The training on one backend.

    :param seconds: from the start of the first process to the end of the last one.
    """

    origin: Origin
    faults: Faults
    epochs: list[Epoch] = field(default_factory=list)
    seconds: float = 0.0
    _parts: list[EpochDone] = field(default_factory=list)

    def add(self, part: EpochDone) -> Epoch | None:
        """Add one trainer's report of an epoch; return the epoch if its reports are complete."""
        self._parts.append(part)
        parts = [known for known in self._parts if known.epoch == part.epoch]
        if len(parts) < len(TRAINERS):
            return None
        self._parts = [known for known in self._parts if known.epoch != part.epoch]
        epoch = Epoch(
            number=part.epoch,
            loss=sum(known.loss for known in parts) / len(parts),
            accuracy=sum(known.correct for known in parts) / sum(known.tested for known in parts),
            failed=_total([known.failed for known in parts]),
            delayed=_total([known.delayed for known in parts]),
            seconds=max(known.seconds for known in parts),
        )
        self.epochs.append(epoch)
        return epoch

    @property
    def accuracy(self) -> float:
        """The test accuracy after the last epoch."""
        return self.epochs[-1].accuracy if self.epochs else 0.0

    @property
    def failed(self) -> dict[str, int]:
        """The number of failed sends, by message type."""
        return _total([epoch.failed for epoch in self.epochs])

    @property
    def delayed(self) -> dict[str, int]:
        """The number of delayed sends, by message type."""
        return _total([epoch.delayed for epoch in self.epochs])

    @property
    def shortcoming(self) -> str | None:
        """Why the run is not good enough, or None if it is."""
        if self.accuracy <= GOAL:
            return f"test accuracy {self.accuracy:.3f} is not above {GOAL:g}"
        missed = [kind for kind in self.faults.messages_to_fail if not self.failed.get(kind)]
        missed += [kind for kind in self.faults.messages_to_delay if not self.delayed.get(kind)]
        if missed:
            return f"no fault was injected into {', '.join(missed)}, so the run proves nothing"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the run for the JSON result."""
        return {
            **asdict(self.origin),
            "accuracy": self.accuracy,
            "seconds": round(self.seconds, 3),
            "faults_asked_for": asdict(self.faults),
            "failed": self.failed,
            "delayed": self.delayed,
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "shortcoming": self.shortcoming,
        }


def _total(counts: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)
