"""Run a plan: one stage of measurements after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rpc_backends_bench import calls, groups
from rpc_backends_bench.plan import CPU, DYNAMIC, STATIC, Plan
from rpc_backends_bench.process_set import ProgressListener
from rpc_backends_bench.results import Results
from rpc_backends_bench.subjects import Subject

_Stage: TypeAlias = Callable[[Plan, Sequence[Subject], Results, ProgressListener], None]

_STAGES: tuple[_Stage, ...] = (
    calls.measure_calls,
    calls.measure_sizes,
    calls.measure_clients,
    groups.measure_static,
    groups.measure_dynamic,
)

#: The stages in which peers take part too.
_WITH_PEERS = (calls.measure_calls, calls.measure_sizes)


def run(
    plan: Plan,
    subjects: Sequence[Subject],
    results: Results,
    listener: ProgressListener,
    supports_dynamic_groups: Callable[[Subject], bool],
) -> None:
    """Measure everything in ``plan``; after an interrupt, ``results`` holds what was measured so far.

    A backend that could not start a pair of workers is left out of later stages.

    :param supports_dynamic_groups: returns whether a backend supports dynamic groups.
    """
    try:
        for stage in _STAGES:
            failed = {problem.label for problem in results.problems if problem.at == "start"}
            remaining = [subject for subject in subjects if subject.label not in failed]
            if stage not in _WITH_PEERS:
                remaining = [subject for subject in remaining if not subject.peer]
            if stage is groups.measure_dynamic:
                remaining = [subject for subject in remaining if supports_dynamic_groups(subject)]
            if remaining:
                stage(plan, remaining, results, listener)
        results.complete = True
    finally:
        results.summarize()


def expected(plan: Plan, subjects: int) -> float:
    """Return the expected duration of a run, in seconds, for the progress display."""
    seconds = 0.0
    once = plan.process_sets * plan.rounds * plan.seconds
    latencies = plan.of("latency.")
    seconds += once / 2 * len(latencies) * subjects
    seconds += once / 2 * any(row.baselines for row in latencies)
    seconds += once * subjects * len(plan.in_flight) * plan.has("throughput.inflight")
    seconds += once * subjects * 3 * plan.has(*CPU)
    by_size = sum(plan.seconds + size / 1e9 for size in plan.sizes)
    seconds += (
        plan.process_sets * plan.size_rounds * by_size * len(plan.of("size.")) * (subjects + 1)
    )
    client_rounds = plan.client_process_sets * plan.client_rounds
    clients = client_rounds * len(plan.clients) * plan.seconds * subjects
    seconds += clients * plan.has("throughput.clients")
    static = sum(size * rounds for size, rounds in plan.groups) * groups.SECONDS_PER_WORKER
    seconds += static * subjects * plan.has(*STATIC)
    dynamic = 2 * sum(size * rounds for size, rounds in plan.joins) * groups.SECONDS_PER_WORKER
    return seconds + dynamic * subjects * plan.has(*DYNAMIC)
