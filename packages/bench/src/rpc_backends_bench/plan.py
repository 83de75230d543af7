"""What a run measures, how often, and in which words it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

KiB, MiB = 1 << 10, 1 << 20

#: What a value is: seconds, calls per second, bytes, a number, or a share of a processor core.
Unit = Literal["s", "1/s", "B", "", "core"]


@dataclass(frozen=True)
class Row:
    """One thing that is measured.

    :ivar id: its name in the results, and for ``--only``.
    :ivar section: the heading that it stands under.
    :ivar along: what it depends on, None for a single figure.
    :ivar baselines: what is measured beside the backends: ``memcpy``, ``socket``.
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
    Row("cpu.idle", _CPU, "a worker that waits", "core"),
    Row("size.echo", _SIZE, "echo", along="bytes", baselines=_BOTH),
    Row("size.oneway", _SIZE, "one way", along="bytes", baselines=_BOTH),
    Row("group.start", _GROUP, "init_rpc, static group", along="workers"),
    Row("group.mesh", _GROUP, "first calls, all to all", along="workers"),
    Row("group.shutdown", _GROUP, "shutdown, static group", along="workers"),
    Row("group.memory", _GROUP, "memory of a worker", "B", along="workers"),
    Row("group.threads", _GROUP, "threads of a worker", "", along="workers"),
    Row("group.files", _GROUP, "files of a worker", "", along="workers"),
    Row("group.join", _GROUP, "joining a dynamic group as its Nth", along="workers"),
    Row("group.leave", _GROUP, "leaving a dynamic group of N", along="workers"),
)
BY_ID = {row.id: row for row in ROWS}

#: The rows of a static group that follow from one start of it.
STATIC = (
    *("group.start", "group.mesh", "group.shutdown"),
    *("group.memory", "group.threads", "group.files"),
)
DYNAMIC = ("group.join", "group.leave")
CPU = ("cpu.sync.caller", "cpu.sync.callee", "cpu.async.caller", "cpu.async.callee", "cpu.idle")


@dataclass(frozen=True)
class Plan:
    """How much of what is measured.

    :ivar only: the ids of the rows.
    :ivar process_sets: sets of processes for calls and for sizes.
    :ivar rounds: of each row of calls with one process set.
    :ivar calls: single calls in a block whose times are kept.
    :ivar seconds: after which a block ends, however many calls it has made; one of throughput lasts as
        long.
    :ivar sizes: in bytes.
    :ivar groups: rounds by the size of a static group.
    :ivar mesh: up to which size of a group all call all.
    :ivar joins: rounds by the size to which a dynamic group grows.
    :ivar pinned: callers stay on one half of the cores and callees on the other.
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
        """Sets of processes for clients: on few cores two sets differ more than rounds of one do."""
        return 2 * self.process_sets

    @property
    def client_rounds(self) -> int:
        """Rounds of each number of clients in one of these."""
        return (self.size_rounds + 1) // 2

    def to_json(self) -> dict[str, Any]:
        """Return it as it stands in files of results, where process sets are called sittings."""
        fields = asdict(self)
        return {"sittings" if key == "process_sets" else key: fields[key] for key in fields}

    def has(self, *ids: str) -> bool:
        """Return whether one of these rows is measured."""
        return any(one in self.only for one in ids)

    def up_to(self, largest: int) -> Plan:
        """Return the plan without groups of more than ``largest`` workers."""
        return replace(
            self,
            clients=tuple(one for one in self.clients if one < largest),
            groups=tuple(one for one in self.groups if one[0] <= largest),
            joins=tuple((min(largest, size), rounds) for size, rounds in self.joins),
        )

    def of(self, prefix: str) -> list[Row]:
        """Return the rows that are measured and whose ids begin so."""
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
    """Return the ids that ``patterns`` mean: an id, the beginning of some up to a dot, or with ``*``.

    :raises ValueError: a pattern means none.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = {
            one
            for one in ALL
            if one == pattern or one.startswith(f"{pattern}.") or fnmatchcase(one, pattern)
        }
        if not found:
            raise ValueError(f"no row is called {pattern!r}. There are: {', '.join(ALL)}.")
        chosen |= found
    return tuple(one for one in ALL if one in chosen) if chosen else ALL
