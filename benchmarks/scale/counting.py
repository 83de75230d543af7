"""Counting what a real group does: static ones phase by phase, dynamic ones join by join."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import worker_tasks
from holdings import Holdings, available_memory, holdings
from store_relay import StoreRelay

from rpc_backends_bench.participants import LOOPBACK
from rpc_backends_bench.subjects import Subject
from rpc_backends_cli.processes import Template, WorkerError, Workers, environ

HERE = Path(__file__).resolve().parent
#: What the workers of a static group do, one after the other, and what it is called in the results.
PATTERNS = {
    "ring": worker_tasks.call_next,
    "star": worker_tasks.call_first,
    "mesh": worker_tasks.call_all,
}
START, SHUTDOWN = "start", "shutdown"
#: Seconds that a group of one has, and each further worker gives it.
_PATIENCE, _PATIENCE_A_WORKER = 90.0, 6.0
#: The share of the memory that is free which one phase may take.
_MOST = 0.5
#: What workers have imported, where it is installed.
_BACKENDS = ("rpc_backend_tensorpipe", "rpc_backend_zeromq")


@dataclass
class Phase:
    """What happened in one phase, by worker.

    :ivar requests: to the store, by kind.
    :ivar store_sent: bytes to the store.
    :ivar store_received: bytes from it.
    :ivar store_connections: made to it.
    :ivar calls: RPC calls sent; each is a message there and one back.
    :ivar call_bytes: of what these carried.
    :ivar held: what the worker has at the end of the phase; empty where that was not looked at.
    :ivar seconds: how long it took, with all that the counting costs: no measurement.
    """

    name: str
    requests: list[dict[str, int]]
    store_sent: list[int]
    store_received: list[int]
    store_connections: list[int]
    calls: list[int]
    call_bytes: list[int]
    held: list[Holdings]
    seconds: float

    @property
    def totals(self) -> list[int]:
        """How many requests each worker has made."""
        return [sum(kinds.values()) for kinds in self.requests]


@dataclass
class Count:
    """What was counted of one group.

    :ivar before: what each worker had before it joined.
    :ivar failed: in which phase it failed, and why; empty if all is well.
    :ivar left_out: what was not done, and why.
    """

    subject: str
    dynamic: bool
    size: int
    before: list[Holdings] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    failed: str = ""
    left_out: list[str] = field(default_factory=list)

    def phase(self, name: str) -> Phase:
        """Return one phase.

        :raises LookupError: the group did not come so far.
        """
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise LookupError(f"{self.subject}, {self.size} workers: no {name!r}. {self.failed}")

    def to_json(self) -> dict[str, Any]:
        """Return it in a form that JSON can carry; see :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Count:
        """Return what :meth:`to_json` wrote."""
        phases = [Phase(**phase) for phase in value["phases"]]
        return cls(**{**value, "phases": phases})


@functools.cache
def template(own: bool) -> Template:
    """Return how workers start.

    :param own: with torch's own backends alone.
    """
    variables = {**environ(), **LOOPBACK}
    if own:
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    backends = () if own else filter(find_spec, _BACKENDS)
    return Template(preload=("worker_tasks", *backends), variables=variables, path=[str(HERE)])


def count_static(subject: Subject, size: int) -> Count:
    """Start a static group, have its workers call each other in each pattern, and end it."""
    count = Count(subject.label, False, size)
    with _Counted(count, subject) as group:
        group.phase(START, worker_tasks.join, group.urls, subject.name, subject.options, size)
        for name, step in PATTERNS.items():
            if name != "mesh" or group.has_room(size * (size - 1)):
                group.phase(name, step)
        group.phase(SHUTDOWN, worker_tasks.leave)
    return count


def count_dynamic(subject: Subject, size: int) -> Count:
    """Let one worker join after the other, and then one leave after the other, the last first."""
    count = Count(subject.label, True, size)
    with _Counted(count, subject) as group:
        for rank in range(size):
            arguments = (group.urls, subject.name, subject.options, None)
            if not group.has_room(rank):
                return count
            group.phase(
                f"join {rank + 1}",
                worker_tasks.join,
                *arguments,
                on=[rank],
                look=_is_looked_at(rank + 1),
            )
        for rank in reversed(range(size)):
            group.phase(f"leave {rank + 1}", worker_tasks.leave, on=[rank], look=False)
    return count


class _Counted:
    """A group whose phases are counted; a failure is noted, and ends the block."""

    def __init__(self, count: Count, subject: Subject) -> None:
        self._count = count
        self._relay = StoreRelay(count.size)
        self.urls = [self._relay.url(rank) for rank in range(count.size)]
        seconds = _PATIENCE + _PATIENCE_A_WORKER * count.size
        self._workers = Workers(count.size, seconds=seconds, template=template(subject.own))
        self._doing = "starting processes"
        self._calls_seen = 0
        self._own = self._pair = 0.0

    def __enter__(self) -> _Counted:
        self._workers.__enter__()
        try:
            self._workers.run(worker_tasks.prepare)
            self._count.before = self._holdings()
            self._own = sum(one["own"] for one in self._count.before)
            self._requests, self._calls = self._relay.requests(), self._sent()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self._end()
        if isinstance(error, WorkerError):
            self._count.failed = f"{self._doing}: {_reason(error)}"
            return True
        return False

    def phase(
        self,
        name: str,
        step: Callable[..., Any],
        *arguments: Any,
        on: list[int] | None = None,
        look: bool = True,
    ) -> None:
        """Run a step, in all workers at once or in some, and note what it has come to.

        :param look: note what workers have, too, which takes long.
        """
        self._doing = name
        begin = time.monotonic()
        self._workers.run(step, *arguments, on=on)
        seconds = time.monotonic() - begin
        requests, calls = self._relay.requests(), self._sent()
        new = [now.since(before) for now, before in zip(requests, self._requests, strict=True)]
        phase = Phase(
            name,
            requests=[dict(sorted(one.kinds.items())) for one in new],
            store_sent=[one.sent for one in new],
            store_received=[one.received for one in new],
            store_connections=[one.connections for one in new],
            calls=[now.get("calls", 0) - old.get("calls", 0) for now, old in self._both(calls)],
            call_bytes=[
                now.get("bytes", 0) - old.get("bytes", 0) for now, old in self._both(calls)
            ],
            held=[],
            seconds=seconds,
        )
        self._requests, self._calls = requests, calls
        if look:
            phase.held = self._look()
        self._count.phases.append(phase)

    def has_room(self, pairs: int) -> bool:
        """Return whether memory is there for so many more pairs of workers that talk; note if not.

        What a pair takes is known from the last phase in which calls were sent.
        """
        need = pairs * self._pair
        if need <= _MOST * (free := available_memory()):
            return True
        self._count.left_out.append(
            f"{pairs} more pairs of workers that talk would take {need / 2**30:.1f} GiB here, and "
            f"{free / 2**30:.1f} GiB are free"
        )
        return False

    def _look(self) -> list[Holdings]:
        """Return what each worker has, and note what a pair of those that talk takes."""
        held = self._holdings()
        grown = sum(one["own"] for one in held) - self._own
        if calls := sum(one.get("calls", 0) for one in self._calls) - self._calls_seen:
            self._pair = grown / calls
        self._own += grown
        self._calls_seen += calls
        return held

    def _both(self, calls: list[dict[str, int]]) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
        return zip(calls, self._calls, strict=True)

    def _sent(self) -> list[dict[str, int]]:
        return self._workers.run(worker_tasks.calls)

    def _holdings(self) -> list[Holdings]:
        ports = [int(url.rpartition(":")[2]) for url in self.urls]
        return holdings([worker.pid for worker in self._workers], besides=ports)

    def _end(self) -> None:
        self._workers.__exit__()
        self._relay.__exit__()


def _is_looked_at(size: int) -> bool:
    return size & (size - 1) == 0


def _reason(error: WorkerError) -> str:
    """Return in a line why a step failed, and in how many workers."""
    if error.failures:
        first = error.failures[0].error.splitlines()[0]
        return f"{len(error.failures)} workers failed, the first with {first}"
    return re.sub(r"\s+", " ", str(error).splitlines()[0])
