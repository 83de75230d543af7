"""Measure groups: how long they take to form, grow and end, and what each worker uses."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from rpc_backends_bench import worker_tasks
from rpc_backends_bench.participants import Group, common_start, duration
from rpc_backends_bench.plan import DYNAMIC, STATIC, Plan
from rpc_backends_bench.process_set import ProcessSet, ProgressListener, shuffled
from rpc_backends_bench.results import Results
from rpc_backends_bench.subjects import Subject

#: How long a group is expected to take, in seconds per worker. Only the progress bar uses it.
SECONDS_PER_WORKER = 0.15


def measure_static(
    plan: Plan, subjects: Sequence[Subject], results: Results, listener: ProgressListener
) -> None:
    """Measure static groups of each size; a subject that fails is left out of the rest."""
    if not plan.has(*STATIC):
        return
    rng = random.Random(plan.seed + 3)
    remaining = {subject.label: subject for subject in subjects}
    for size, rounds in plan.groups:
        for turn in range(rounds):
            for label in shuffled(list(remaining), rng):
                listener.describe(f"a group of {size}")
                if not _static(plan, remaining[label], size, turn, results):
                    del remaining[label]
                listener.advance(size * SECONDS_PER_WORKER)


def _static(plan: Plan, subject: Subject, size: int, turn: int, results: Results) -> bool:
    """Start and end one group; return whether that succeeded."""
    with ProcessSet[Group](results.problems) as processes:
        group = processes[subject.label] = Group(subject, size, seconds=600 + 20 * size)
        with processes.guarded(subject.label, f"a static group of {size}"):
            group.open()
            group.run(worker_tasks.prepare)
            values = {"group.start": group.start()}
            neighbours = [([(rank + 1) % size],) for rank in range(size)]
            group.run_each(worker_tasks.connect_all, neighbours)
            used = group.run(worker_tasks.resource_usage)
            for what in ("memory", "threads", "files"):
                values[f"group.{what}"] = statistics.fmean(counts[what] for counts in used)
            if size <= plan.mesh and plan.has("group.mesh"):
                all_ranks = list(range(size))
                values["group.mesh"] = duration(
                    group.run(worker_tasks.connect_all, all_ranks, common_start(size))
                )
            values["group.shutdown"] = group.stop()
            for row, value in values.items():
                if plan.has(row):
                    results.add(row, subject.label, value, (turn, 0), x=size)
        return subject.label in processes


def measure_dynamic(
    plan: Plan, subjects: Sequence[Subject], results: Results, listener: ProgressListener
) -> None:
    """Measure dynamic groups: the workers join one after the other, then leave in reverse order."""
    if not plan.has(*DYNAMIC):
        return
    rng = random.Random(plan.seed + 4)
    remaining = {subject.label: subject for subject in subjects}
    sizes = [size for size, rounds in plan.joins for _ in range(rounds)]
    for turn, size in enumerate(sizes):
        for label in shuffled(list(remaining), rng):
            listener.describe(f"a dynamic group that grows to {size}")
            if not _dynamic(plan, remaining[label], size, turn, results):
                del remaining[label]
            listener.advance(2 * size * SECONDS_PER_WORKER)


def _dynamic(plan: Plan, subject: Subject, size: int, turn: int, results: Results) -> bool:
    with ProcessSet[Group](results.problems) as processes:
        group = processes[subject.label] = Group(subject, size, seconds=600 + 20 * size)
        with processes.guarded(subject.label, f"a dynamic group of {size}"):
            group.open()
            group.run(worker_tasks.prepare)
            for rank in range(size):
                seconds = group.join(rank)
                if plan.has("group.join"):
                    results.add("group.join", subject.label, seconds, (turn, 0), x=rank + 1)
            for rank in range(size - 1, 0, -1):
                seconds = duration([group.call(rank, worker_tasks.leave)])
                if plan.has("group.leave"):
                    results.add("group.leave", subject.label, seconds, (turn, 0), x=rank + 1)
            group.call(0, worker_tasks.leave)
        return subject.label in processes
