"""Measuring groups: how long they take to form, grow and end, and what a worker of one holds."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from rpc_backends_bench import steps
from rpc_backends_bench.contestants import Group, length, soon
from rpc_backends_bench.plan import DYNAMIC, STATIC, Plan
from rpc_backends_bench.results import Results
from rpc_backends_bench.subjects import Subject
from rpc_backends_bench.turns import Table, Watching, in_turns

#: What a group is expected to take, in seconds a worker, for the progress bar alone.
SECONDS_A_WORKER = 0.15


def measure_static(
    plan: Plan, subjects: Sequence[Subject], results: Results, watching: Watching
) -> None:
    """Measure static groups, by their size; who fails at one is not asked for larger ones."""
    if not plan.has(*STATIC):
        return
    chance = random.Random(plan.seed + 3)
    going = {subject.label: subject for subject in subjects}
    for size, rounds in plan.groups:
        for turn in range(rounds):
            for label in in_turns(list(going), chance):
                watching.at(f"a group of {size}")
                if not _static(plan, going[label], size, turn, results):
                    del going[label]
                watching.step(size * SECONDS_A_WORKER)


def _static(plan: Plan, subject: Subject, size: int, turn: int, results: Results) -> bool:
    """Start and end one group; return whether that went well."""
    with Table[Group](results) as table:
        group = table[subject.label] = Group(subject, size, seconds=600 + 20 * size)
        with table.trying(subject.label, f"a static group of {size}"):
            group.open()
            group.run(steps.prepare)
            found = {"group.start": group.start()}
            neighbours = [([(rank + 1) % size],) for rank in range(size)]
            group.run_each(steps.greet, neighbours)
            held = group.run(steps.holds)
            for what in ("memory", "threads", "files"):
                found[f"group.{what}"] = statistics.fmean(one[what] for one in held)
            if size <= plan.mesh and plan.has("group.mesh"):
                everybody = list(range(size))
                found["group.mesh"] = length(group.run(steps.greet, everybody, soon(size)))
            found["group.shutdown"] = group.stop()
            for row, value in found.items():
                if plan.has(row):
                    results.add(row, subject.label, value, (turn, 0), x=size)
        return subject.label in table


def measure_dynamic(
    plan: Plan, subjects: Sequence[Subject], results: Results, watching: Watching
) -> None:
    """Measure each join of a dynamic group, one after the other, and each leaving, the last first."""
    if not plan.has(*DYNAMIC):
        return
    chance = random.Random(plan.seed + 4)
    going = {subject.label: subject for subject in subjects}
    sizes = [size for size, rounds in plan.joins for _ in range(rounds)]
    for turn, size in enumerate(sizes):
        for label in in_turns(list(going), chance):
            watching.at(f"a dynamic group that grows to {size}")
            if not _dynamic(plan, going[label], size, turn, results):
                del going[label]
            watching.step(2 * size * SECONDS_A_WORKER)


def _dynamic(plan: Plan, subject: Subject, size: int, turn: int, results: Results) -> bool:
    with Table[Group](results) as table:
        group = table[subject.label] = Group(subject, size, seconds=600 + 20 * size)
        with table.trying(subject.label, f"a dynamic group of {size}"):
            group.open()
            group.run(steps.prepare)
            for rank in range(size):
                seconds = group.join(rank)
                if plan.has("group.join"):
                    results.add("group.join", subject.label, seconds, (turn, 0), x=rank + 1)
            for rank in range(size - 1, 0, -1):
                seconds = length([group.call(rank, steps.leave)])
                if plan.has("group.leave"):
                    results.add("group.leave", subject.label, seconds, (turn, 0), x=rank + 1)
            group.call(0, steps.leave)
        return subject.label in table
