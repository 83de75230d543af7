"""Measuring calls: between two processes that live as long as a sitting, in short blocks by turns."""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Sequence

from rpc_backends_bench import limits, steps
from rpc_backends_bench.contestants import Caller, Contestant, Group, Limits, soon
from rpc_backends_bench.peers import ROWS
from rpc_backends_bench.peers.outsider import Outsider
from rpc_backends_bench.plan import CPU, Plan
from rpc_backends_bench.results import LIMIT, Results
from rpc_backends_bench.subjects import Subject
from rpc_backends_bench.turns import Table, Watching, in_turns

#: Asynchronous calls in flight of each of several clients.
CLIENT_WINDOW = 16
#: Bytes of which a block of sizes sends twenty times as many at most.
_LARGE = 1 << 22
_SOCKET_BYTES = 64


def measure_calls(
    plan: Plan, subjects: Sequence[Subject], results: Results, watching: Watching
) -> None:
    """Measure round trips, throughput by calls in flight, and processor time."""
    rows = plan.of("latency.")
    windows = plan.in_flight if plan.has("throughput.inflight") else ()
    cpu = plan.has(*CPU)
    if not (rows or windows or cpu):
        return
    chance = random.Random(plan.seed)
    for sitting in range(plan.sittings):
        with Table[Contestant](results) as table:
            watching.at("starting pairs of workers")
            _enter_pairs(table, plan, subjects, chance)
            if any(row.limits for row in rows):
                table.enter(bare := Limits(), bare.start)
            for turn in range(plan.rounds):
                at = (sitting, turn)
                for row in rows:
                    _latency(table, plan, row.id, at, chance, results, watching)
                for window in windows:
                    _in_flight(table, plan, window, at, chance, results, watching)
                if cpu:
                    _processor(table, plan, at, chance, results, watching)
            _leave(table)


def measure_sizes(
    plan: Plan, subjects: Sequence[Subject], results: Results, watching: Watching
) -> None:
    """Measure messages by their size, beside what the machine can do."""
    rows = plan.of("size.")
    if not rows:
        return
    chance = random.Random(plan.seed + 1)
    for sitting in range(plan.sittings):
        with Table[Contestant](results) as table:
            watching.at("starting pairs of workers")
            _enter_pairs(table, plan, subjects, chance)
            table.enter(bare := Limits(), bare.start)
            for turn in range(plan.size_rounds):
                for length in plan.sizes:
                    for row in rows:
                        kind = row.id.partition(".")[2]
                        at = (sitting, turn)
                        _size(table, plan, kind, length, at, chance, results, watching)
            _leave(table)


def measure_clients(
    plan: Plan, subjects: Sequence[Subject], results: Results, watching: Watching
) -> None:
    """Measure how many calls one worker answers, by the number of processes that call it."""
    if not plan.has("throughput.clients"):
        return
    chance = random.Random(plan.seed + 2)
    for sitting in range(plan.client_sittings):
        with Table[Contestant](results) as table:
            watching.at("starting groups of clients")
            for subject in _shuffled(subjects, chance):
                group = Group(subject, 1 + max(plan.clients), seconds=1800)
                table.enter(group, group.start)
            for turn in range(plan.client_rounds):
                for count in plan.clients:
                    watching.at(f"throughput with {count} clients")
                    for label in in_turns(list(table), chance):
                        with table.turn(label, f"throughput.clients {count}"):
                            value = _of_clients(table[label], plan, count)
                            key = "throughput.clients"
                            results.add(key, label, value, (sitting, turn), x=count)
                        watching.step(plan.seconds)
            _leave(table)


def _enter_pairs(
    table: Table[Contestant], plan: Plan, subjects: Sequence[Subject], chance: random.Random
) -> None:
    for subject in _shuffled(subjects, chance):
        if subject.peer:
            if plan.has(*ROWS):
                one = Outsider(subject, seconds=1800)
                table.enter(one, functools.partial(_begin_outsider, one, plan))
            continue
        pair = Group(subject, 2, seconds=1800)

        def begin(pair: Group = pair) -> None:
            pair.run(steps.prepare, own_memory=True)
            if plan.pinned:
                pair.pin()
            pair.start()
            pair.call(0, steps.latency, "noop", 50, 1.0)

        table.enter(pair, begin)


def _begin_outsider(one: Outsider, plan: Plan) -> None:
    if plan.pinned:
        one.pin()
    one.start(plan.pinned)
    one.latency("latency.noop", 50, 1.0)


def _latency(
    table: Table[Contestant],
    plan: Plan,
    row: str,
    at: tuple[int, int],
    chance: random.Random,
    results: Results,
    watching: Watching,
) -> None:
    watching.at(f"round trip: {row.removeprefix('latency.')}")
    for label in in_turns(list(table), chance):
        one = table[label]
        if row != "latency.noop" if isinstance(one, Limits) else not _caller(one).has(row):
            continue
        with table.turn(label, row):
            if isinstance(one, Limits):
                times = one.call(0, limits.block, "socket", "echo", _SOCKET_BYTES, plan.calls, 1.0)
            else:
                times = _caller(one).latency(row, plan.calls, plan.seconds)
            whose = f"{LIMIT}socket" if isinstance(one, Limits) else label
            results.add(row, whose, statistics.median(times), at, samples=times)
        watching.step(plan.seconds / 2)


def _in_flight(
    table: Table[Contestant],
    plan: Plan,
    window: int,
    at: tuple[int, int],
    chance: random.Random,
    results: Results,
    watching: Watching,
) -> None:
    watching.at(f"throughput with {window} in flight")
    for label in in_turns(_names(table), chance):
        with table.turn(label, f"throughput.inflight {window}"):
            value = _caller(table[label]).throughput(window, plan.seconds)
            results.add("throughput.inflight", label, value, at, x=window)
        watching.step(plan.seconds)


def _processor(
    table: Table[Contestant],
    plan: Plan,
    at: tuple[int, int],
    chance: random.Random,
    results: Results,
    watching: Watching,
) -> None:
    watching.at("processor time")
    for label in in_turns(_groups(table), chance):
        with table.turn(label, "cpu"):
            pair = table[label]
            callee = pair.workers[1].pid
            found = pair.call(0, steps.processor, callee, plan.calls, plan.seconds)
            for row, value in found.items():
                if plan.has(row):
                    results.add(row, label, value, at)
        watching.step(3 * plan.seconds)


def _size(
    table: Table[Contestant],
    plan: Plan,
    kind: str,
    length: int,
    at: tuple[int, int],
    chance: random.Random,
    results: Results,
    watching: Watching,
) -> None:
    row = f"size.{kind}"
    watching.at(f"{kind} of {length} bytes")
    calls, seconds = max(2, min(plan.calls // 2, 20 * _LARGE // length)), plan.seconds / 2
    for label in in_turns(list(table), chance):
        one = table[label]
        with table.turn(label, f"{row} {length}"):
            if isinstance(one, Limits):
                for limit in ("memcpy", "socket"):
                    times = one.call(0, limits.block, limit, kind, length, calls, seconds)
                    value = statistics.median(times)
                    results.add(row, f"{LIMIT}{limit}", value, at, x=length)
            else:
                times = _caller(one).size(kind, length, calls, seconds)
                results.add(row, label, statistics.median(times), at, x=length)
        watching.step(plan.seconds + length / 1e9)


def _of_clients(group: Contestant, plan: Plan, count: int) -> float:
    """Return the sum of what ``count`` clients got through that called worker 0 at the same time."""
    at = soon(count)
    idle = (0, 0.0, at, 0)  # worker 0 answers
    client = (CLIENT_WINDOW, 2 * plan.seconds, at, 0)
    rates: list[float] = group.run_each(steps.throughput, [idle, *[client] * count])
    return sum(rates)


def _leave(table: Table[Contestant]) -> None:
    for label in _names(table):
        with table.trying(label, "shutdown"):
            table[label].thaw()
            _caller(table[label]).stop()


def _groups(table: Table[Contestant]) -> list[str]:
    return [label for label, one in table.items() if isinstance(one, Group)]


def _names(table: Table[Contestant]) -> list[str]:
    return [label for label, one in table.items() if isinstance(one, Caller)]


def _caller(one: Contestant) -> Caller:
    assert isinstance(one, Caller)
    return one


def _shuffled(subjects: Sequence[Subject], chance: random.Random) -> list[Subject]:
    return chance.sample(subjects, k=len(subjects))
