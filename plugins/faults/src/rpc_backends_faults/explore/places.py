"""The places at which faults can be injected: function, type, sender, receiver and phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rpc_backends_faults import replay
from rpc_backends_faults.explore.runs import Injected, Run

#: A stream: message type, function, sender, receiver.
Stream = tuple[str, str, str, str]


@dataclass(frozen=True, order=True)
class Place:
    """A place of a program.

    :ivar phase: the mark that the sender was in; without one: `only`, `first`, `middle` or `last` message
        of the stream.
    :ivar numbers: the messages of the stream that are in this phase, counted from 0.
    :ivar positions: for each of them, how many messages its sender sent to its receiver before.
    """

    message: str
    function: str
    sender: str
    receiver: str
    phase: str
    numbers: tuple[int, ...] = field(compare=False, default=())
    positions: tuple[int, ...] = field(compare=False, default=())

    def stream(self) -> Stream:
        """Return the stream that this is a part of."""
        return (self.message, self.function, self.sender, self.receiver)

    def text(self) -> str:
        """Return the place in words."""
        what = f"{self.function} ({self.message})" if self.function else self.message
        return f"{what}, {self.sender} to {self.receiver}, {self.phase}"


def stream_of(message: dict[str, Any]) -> Stream:
    """Return the stream of a message of a run."""
    return (
        str(message["type"]),
        str(message.get("function", "")),
        str(message["sender"]),
        str(message["to"]),
    )


class Places:
    """The places of a fault-free run, and which faults were injected there.

    :ivar counts: how many faults of each kind acted at each place.
    """

    def __init__(self) -> None:
        self._others: set[str] = set()
        self._places: dict[Place, None] = {}
        self._lengths: dict[Stream, int] = {}
        self.counts: dict[Place, Counter[str]] = {}

    def learn(self, run: Run) -> None:
        """Add the places of the fault-free run.

        Runs with faults add none: which messages they have depends on time, and so would the schedules.
        """
        streams: dict[Stream, list[tuple[int, int, str]]] = {}
        sent: Counter[tuple[str, str]] = Counter()
        for message in _of_rules(run):
            stream = stream_of(message)
            position = sent[stream[2:]]
            sent[stream[2:]] += 1
            entry = (int(message["number"]), position, str(message["mark"]))
            streams.setdefault(stream, []).append(entry)
        for stream, messages in streams.items():
            length = self._lengths[stream] = max(number for number, _, _ in messages) + 1
            phases: dict[str, dict[int, int]] = {}
            for number, position, mark in messages:
                phases.setdefault(mark or _phase(number, length), {})[number] = position
            for phase, which in phases.items():
                numbers, positions = zip(*sorted(which.items()), strict=True)
                self._places[Place(*stream, phase, numbers, positions)] = None

    def __iter__(self) -> Any:
        return iter(sorted(self._places))

    def __len__(self) -> int:
        return len(self._places)

    def cover(self, run: Run) -> None:
        """Count the faults that acted in a run with faults."""
        for message in _of_rules(run):
            stream = stream_of(message)
            if stream not in self._lengths:
                self._others.add(Place(*stream, "").text().removesuffix(", "))
        marks = {
            (*stream_of(message), int(message["number"])): str(message["mark"])
            for message in run.messages
        }
        for fault in run.injected:
            place = self._place(fault, marks)
            if place is not None:
                self.counts.setdefault(place, Counter())[fault.what] += 1

    def _place(self, fault: Injected, marks: dict[Any, str]) -> Place | None:
        stream = (fault.message, fault.function, fault.sender, fault.receiver)
        mark = marks.get((*stream, fault.number), "")
        length = self._lengths.get(stream)
        if length is None:
            return None
        place = Place(*stream, mark or _phase(fault.number, length))
        return place if place in self._places else None

    @property
    def others(self) -> list[str]:
        """What was sent only in runs with faults, as text, sorted."""
        return sorted(self._others)

    def covered(self) -> int:
        """Return at how many places faults were injected."""
        return len(self.counts)


def _of_rules(run: Run) -> list[dict[str, Any]]:
    """Return the messages on which rules act: not those that start and stop groups."""
    return [message for message in run.messages if not replay.is_housekeeping(message)]


def _phase(number: int, length: int) -> str:
    if length == 1:
        return "only" if number == 0 else "middle"
    if number == 0:
        return "first"
    return "last" if number >= length - 1 else "middle"


def summary(places: Places) -> str:
    """Return the coverage in words."""
    return f"faults were injected at {places.covered()} of {len(places)} places"


def kinds_of(places: Iterable[Counter[str]]) -> list[str]:
    """Return the kinds of faults that acted anywhere, sorted."""
    return sorted({kind for counts in places for kind in counts})
