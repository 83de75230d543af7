"""Count what a real group does: a static group phase by phase, a dynamic group join by join.

For each worker these are counted: requests to the store (on the wire, by kind), RPC calls, connections,
files, threads and memory. A static group has the phases start, ring (each worker calls the next one),
star (all call worker 0), mesh (all call all) and shutdown. In a dynamic group each join and each leave is
a phase. If a group does not form, or fails later, the reason is recorded.
"""

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
from rpc_backends_processes import Template, WorkerError, Workers, environ

HERE = Path(__file__).resolve().parent
#: The phases of a static group between start and shutdown, by name.
PATTERNS = {
    "ring": worker_tasks.call_next,
    "star": worker_tasks.call_first,
    "mesh": worker_tasks.call_all,
}
START, SHUTDOWN = "start", "shutdown"
#: How long a group may live, and how much longer for each worker.
_GROUP_TIMEOUT_S, _GROUP_TIMEOUT_PER_WORKER_S = 90.0, 6.0
#: The share of the free memory that one phase may take.
_MAX_MEMORY_SHARE = 0.5
#: Packages that workers import before they are counted, if installed.
_BACKENDS = ("rpc_backend_tensorpipe", "rpc_backend_zeromq")


@dataclass
class Phase:
    """The counts of one phase; each list has an item for each worker.

    :ivar requests: requests to the store, by kind.
    :ivar store_sent: bytes sent to the store.
    :ivar store_received: bytes received from the store.
    :ivar store_connections: connections made to the store.
    :ivar calls: RPC calls sent; each is one message there and one back.
    :ivar call_bytes: payload bytes of the calls.
    :ivar held: the worker's resources at the end of the phase; empty if they were not counted.
    :ivar seconds: the duration, which includes the overhead of counting and is no measurement.
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


@dataclass
class Count:
    """The counts of one group.

    :ivar subject: the backend with its options.
    :ivar before: each worker's resources before it joined.
    :ivar failed: in which phase the group failed, and why; empty if it did not.
    :ivar left_out: phases that were left out, and why.
    """

    subject: str
    dynamic: bool
    size: int
    before: list[Holdings] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    failed: str = ""
    left_out: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values; :meth:`from_json` reads them."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Count:
        """Return the counts from the JSON values of :meth:`to_json`."""
        phases = [Phase(**phase) for phase in value["phases"]]
        return cls(**{**value, "phases": phases})


@functools.cache
def template(own: bool) -> Template:
    """Return the template that workers are forked from.

    :param own: load only torch's own backends.
    """
    variables = {**environ(), **LOOPBACK}
    if own:
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    backends = () if own else filter(find_spec, _BACKENDS)
    return Template(preload=("worker_tasks", *backends), variables=variables, path=[str(HERE)])


def count_static(subject: Subject, size: int) -> Count:
    """Count a static group: start, calls in each of the `PATTERNS`, and shutdown."""
    count = Count(subject.label, False, size)
    with _Counted(count, subject) as group:
        group.phase(START, worker_tasks.join, group.urls, subject.name, subject.options, size)
        for name, step in PATTERNS.items():
            if name != "mesh" or group.has_room(size * (size - 1)):
                group.phase(name, step)
        group.phase(SHUTDOWN, worker_tasks.leave)
    return count


def count_dynamic(subject: Subject, size: int) -> Count:
    """Count a dynamic group: the workers join one by one, then leave in reverse order."""
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
    """Run a group and count its phases; if a phase fails, record why and end the ``with`` block."""

    def __init__(self, count: Count, subject: Subject) -> None:
        self._count = count
        self._relay = StoreRelay(count.size)
        self.urls = [self._relay.url(rank) for rank in range(count.size)]
        seconds = _GROUP_TIMEOUT_S + _GROUP_TIMEOUT_PER_WORKER_S * count.size
        self._workers = Workers(count.size, seconds=seconds, template=template(subject.own))
        self._doing = "starting processes"
        self._calls_seen = 0
        self._own = self._pair = 0.0

    def __enter__(self) -> _Counted:
        self._workers.__enter__()
        try:
            self._workers.run(worker_tasks.prepare)
            self._count.before = self._holdings()
            self._own = sum(holdings["own"] for holdings in self._count.before)
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
        """Run a step in all workers at once, or only in those in ``on``; append its counts as a phase.

        :param look: also count the workers' resources, which takes long.
        """
        self._doing = name
        begin = time.monotonic()
        self._workers.run(step, *arguments, on=on)
        seconds = time.monotonic() - begin
        requests, calls = self._relay.requests(), self._sent()
        new = [now.since(before) for now, before in zip(requests, self._requests, strict=True)]
        phase = Phase(
            name,
            requests=[dict(sorted(made.kinds.items())) for made in new],
            store_sent=[made.sent for made in new],
            store_received=[made.received for made in new],
            store_connections=[made.connections for made in new],
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
        """Return whether there is memory for this many more connected pairs; record a lack of memory.

        The last phase with calls has shown how much memory a pair takes.
        """
        need = pairs * self._pair
        if need <= _MAX_MEMORY_SHARE * (free := available_memory()):
            return True
        self._count.left_out.append(
            f"{pairs} more pairs of connected workers would take {need / 2**30:.1f} GiB; "
            f"{free / 2**30:.1f} GiB are free, and a phase may take {_MAX_MEMORY_SHARE:.0%} of that"
        )
        return False

    def _look(self) -> list[Holdings]:
        """Return each worker's resources; compute how much memory a connected pair takes."""
        held = self._holdings()
        grown = sum(holdings["own"] for holdings in held) - self._own
        if calls := sum(call.get("calls", 0) for call in self._calls) - self._calls_seen:
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
    """Return one line that says why a step failed, and in how many workers."""
    if error.failures:
        first = error.failures[0].error.splitlines()[0]
        return f"{len(error.failures)} workers failed, the first with {first}"
    return re.sub(r"\s+", " ", str(error).splitlines()[0])
