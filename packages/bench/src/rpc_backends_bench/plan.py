"""The plan of a run: the rows, how often each is measured, and their titles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

KiB, MiB = 1 << 10, 1 << 20

#: Unit of a row's values: seconds, calls per second, bytes, a plain number, or processor cores.
Unit = Literal["s", "1/s", "B", "", "core"]


@dataclass(frozen=True)
class Row:
    """A row of the report: one quantity that is measured.

    :ivar id: the row's name in the results and for ``--only``.
    :ivar section: the heading above the row.
    :ivar along: the variable that the quantity depends on (the x axis); None for a single figure.
    :ivar baselines: the baselines measured for this row: ``memcpy``, ``socket``.
    """

    id: str
    section: str
    title: str
    unit: Unit = "s"
    higher_is_better: bool = False
    along: str | None = None
    baselines: tuple[str, ...] = ()


_LATENCY, _LOADED = "Round trip", "Round trip while four other threads call"
_THROUGHPUT, _CPU = "Asynchronous no-ops", "Processor time"
_SIZE, _GROUP = "Size", "Groups"
_BOTH = ("memcpy", "socket")

ROWS = (
    Row("latency.noop", _LATENCY, "no-op in Python", baselines=("socket",)),
    Row("latency.builtin", _LATENCY, "builtin, torch.add"),
    Row("latency.tensor", _LATENCY, "echo of 16 floats"),
    Row("latency.script", _LATENCY, "TorchScript function"),
    Row("latency.loaded.noop", _LOADED, "no-op in Python"),
    Row("latency.loaded.builtin", _LOADED, "builtin, torch.add"),
    Row("throughput.inflight", _THROUGHPUT, "calls in flight", "1/s", True, "calls in flight"),
    Row("throughput.clients", _THROUGHPUT, "client processes", "1/s", True, "client processes"),
    Row("cpu.sync.caller", _CPU, "no-op, sync: caller"),
    Row("cpu.sync.callee", _CPU, "no-op, sync: callee"),
    Row("cpu.async.caller", _CPU, "no-op, 64 in flight: caller"),
    Row("cpu.async.callee", _CPU, "no-op, 64 in flight: callee"),
    Row("cpu.idle", _CPU, "an idle worker", "core"),
    Row("size.echo", _SIZE, "echo", along="bytes", baselines=_BOTH),
    Row("size.oneway", _SIZE, "one way", along="bytes", baselines=_BOTH),
    Row("group.start", _GROUP, "init_rpc, static group", along="workers"),
    Row("group.mesh", _GROUP, "first calls, all to all", along="workers"),
    Row("group.shutdown", _GROUP, "shutdown, static group", along="workers"),
    Row("group.memory", _GROUP, "memory of a worker", "B", along="workers"),
    Row("group.threads", _GROUP, "threads of a worker", "", along="workers"),
    Row("group.files", _GROUP, "open files of a worker", "", along="workers"),
    Row("group.join", _GROUP, "join, dynamic group", along="workers"),
    Row("group.leave", _GROUP, "leave, dynamic group", along="workers"),
)
BY_ID = {row.id: row for row in ROWS}

#: The rows that one start of a static group measures.
STATIC = (
    *("group.start", "group.mesh", "group.shutdown"),
    *("group.memory", "group.threads", "group.files"),
)
DYNAMIC = ("group.join", "group.leave")
CPU = ("cpu.sync.caller", "cpu.sync.callee", "cpu.async.caller", "cpu.async.callee", "cpu.idle")


@dataclass(frozen=True)
class Plan:
    """How often and how long each row is measured.

    :ivar only: the ids of the rows to measure.
    :ivar process_sets: how many sets of processes measure calls, and how many measure sizes.
    :ivar rounds: rounds of each row of calls with one process set.
    :ivar calls: the largest number of calls in a block.
    :ivar seconds: a block of calls ends after this time even if it has made fewer calls; a block of
        throughput lasts this long.
    :ivar in_flight: numbers of calls in flight.
    :ivar clients: numbers of client processes.
    :ivar sizes: message sizes in bytes.
    :ivar groups: pairs of the size of a static group and its number of rounds.
    :ivar mesh: the largest group in which all workers call all others.
    :ivar joins: pairs of the size to which a dynamic group grows and its number of rounds.
    :ivar pinned: keep callers on one half of the cores and callees on the other.
    :ivar seed: seed of the random order of the blocks.
    """

    name: str
    only: tuple[str, ...]
    process_sets: int
    rounds: int
    calls: int
    seconds: float
    in_flight: tuple[int, ...]
    clients: tuple[int, ...]
    sizes: tuple[int, ...]
    groups: tuple[tuple[int, int], ...]
    mesh: int
    joins: tuple[tuple[int, int], ...]
    pinned: bool = True
    seed: int = 0

    @property
    def size_rounds(self) -> int:
        """Rounds of each size with one process set."""
        return (self.rounds + 1) // 2

    @property
    def client_process_sets(self) -> int:
        """Process sets for clients: twice as many, since on few cores sets differ more than rounds."""
        return 2 * self.process_sets

    @property
    def client_rounds(self) -> int:
        """Rounds of each number of clients with one process set."""
        return (self.size_rounds + 1) // 2

    def to_json(self) -> dict[str, Any]:
        """Return the plan as in a results file, in which process sets are called sittings."""
        fields = asdict(self)
        return {"sittings" if key == "process_sets" else key: fields[key] for key in fields}

    def has(self, *ids: str) -> bool:
        """Return whether one of these rows is measured."""
        return any(row in self.only for row in ids)

    def up_to(self, largest: int) -> Plan:
        """Return the plan without groups of more than ``largest`` workers."""
        return replace(
            self,
            clients=tuple(client for client in self.clients if client < largest),
            groups=tuple(group for group in self.groups if group[0] <= largest),
            joins=tuple((min(largest, size), rounds) for size, rounds in self.joins),
        )

    def of(self, prefix: str) -> list[Row]:
        """Return the measured rows whose ids begin with ``prefix``."""
        return [row for row in ROWS if row.id in self.only and row.id.startswith(prefix)]


ALL = tuple(row.id for row in ROWS)

FULL = Plan(
    name="full",
    only=ALL,
    process_sets=4,
    rounds=8,
    calls=400,
    seconds=0.25,
    in_flight=(1, 4, 16, 64, 256, 1024),
    clients=(1, 2, 4, 8),
    sizes=(64, KiB, 16 * KiB, 256 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB, 256 * MiB),
    groups=((2, 32), (4, 32), (8, 24), (16, 12), (32, 6), (64, 3)),
    mesh=16,
    joins=((8, 27), (32, 5)),
)
QUICK = replace(
    FULL,
    name="quick",
    process_sets=1,
    rounds=6,
    calls=200,
    seconds=0.1,
    in_flight=(1, 16, 256),
    clients=(1, 4),
    sizes=(64, 16 * KiB, MiB, 16 * MiB),
    groups=((2, 3), (4, 3), (8, 3)),
    mesh=8,
    joins=((8, 2),),
)


def choose(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the rows that ``patterns`` select; all rows without a pattern.

    :param patterns: an id (``latency.noop``), its first parts (``latency``), or a glob (``size.*``).
    :raises ValueError: a pattern selects no row.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        ids = {
            row
            for row in ALL
            if row == pattern or row.startswith(f"{pattern}.") or fnmatchcase(row, pattern)
        }
        if not ids:
            raise ValueError(f"there is no row {pattern!r}. The rows are: {', '.join(ALL)}.")
        chosen |= ids
    return tuple(row for row in ALL if row in chosen) if chosen else ALL
