"""Measure calls: the participants take turns, each with one short block, in random order."""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rpc_backends_bench import worker_tasks
from rpc_backends_bench.participants import Baselines, Group, Participant, Times, common_start
from rpc_backends_bench.peers import ROWS
from rpc_backends_bench.peers.external_runner import ExternalRunner
from rpc_backends_bench.plan import CPU, Plan
from rpc_backends_bench.process_set import ProcessSet, ProgressListener, shuffled
from rpc_backends_bench.results import Results
from rpc_backends_bench.subjects import Subject

_Participant = TypeVar("_Participant", bound=Participant)

#: How many asynchronous calls each of several clients keeps in flight.
CLIENT_WINDOW = 16
#: The most bytes that a block sends for one message size. It sends two messages even if they are larger.
_MAX_BLOCK_BYTES = 20 << 22
#: Seconds after which the processes of one set are ended in any case.
_PROCESS_LIFETIME_S = 1800


def measure_calls(
    plan: Plan, subjects: Sequence[Subject], results: Results, listener: ProgressListener
) -> None:
    """Measure round trips, throughput by calls in flight, and processor time."""
    rows = plan.of("latency.")
    windows = plan.in_flight if plan.has("throughput.inflight") else ()
    cpu = plan.has(*CPU)
    if not (rows or windows or cpu):
        return
    rng = random.Random(plan.seed)
    for number in range(plan.process_sets):
        with ProcessSet[Participant](results.problems) as processes:
            listener.describe("starting pairs of workers")
            _add_pairs(processes, plan, subjects, rng)
            if any(row.baselines for row in rows):
                processes.add(bare := Baselines(), bare.start)
            for turn in range(plan.rounds):
                one_round = _Round(plan, processes, rng, results, listener, (number, turn))
                for row in rows:
                    one_round.latency(row.id)
                for window in windows:
                    one_round.in_flight(window)
                if cpu:
                    one_round.processor()
            _shut_down(processes)


def measure_sizes(
    plan: Plan, subjects: Sequence[Subject], results: Results, listener: ProgressListener
) -> None:
    """Measure messages of each size, and the machine's baselines for the same sizes."""
    rows = plan.of("size.")
    if not rows:
        return
    rng = random.Random(plan.seed + 1)
    for number in range(plan.process_sets):
        with ProcessSet[Participant](results.problems) as processes:
            listener.describe("starting pairs of workers")
            _add_pairs(processes, plan, subjects, rng)
            processes.add(bare := Baselines(), bare.start)
            # All rounds of one size follow each other. Between rounds with other sizes, each round would
            # measure the first messages of its size, for which engines take new memory.
            for length in plan.sizes:
                for turn in range(plan.size_rounds):
                    one_round = _Round(plan, processes, rng, results, listener, (number, turn))
                    for row in rows:
                        one_round.size(row.id, length)
            _shut_down(processes)


def measure_clients(
    plan: Plan, subjects: Sequence[Subject], results: Results, listener: ProgressListener
) -> None:
    """Measure how many calls per second one worker answers, by the number of processes that call it."""
    if not plan.has("throughput.clients"):
        return
    rng = random.Random(plan.seed + 2)
    for number in range(plan.client_process_sets):
        with ProcessSet[Participant](results.problems) as processes:
            listener.describe("starting groups of clients")
            for subject in shuffled(subjects, rng):
                group = Group(subject, 1 + max(plan.clients), seconds=_PROCESS_LIFETIME_S)
                processes.add(group, group.start)
            for turn in range(plan.client_rounds):
                one_round = _Round(plan, processes, rng, results, listener, (number, turn))
                for count in plan.clients:
                    one_round.clients(count)
            _shut_down(processes)


@dataclass(frozen=True)
class _Round:
    """One round: each participant runs one block for each row.

    :ivar at: the number of the process set, and that of the round.
    """

    plan: Plan
    processes: ProcessSet[Participant]
    rng: random.Random
    results: Results
    listener: ProgressListener
    at: tuple[int, int]

    def latency(self, row: str) -> None:
        """Measure the round trips of one row."""

        def measure(participant: Participant) -> None:
            self._add(
                row, participant.latency(row, self.plan.calls, self.plan.seconds), samples=True
            )

        self.listener.describe(f"round trip: {row.removeprefix('latency.')}")
        self._run_blocks(self._with_row(row), row, measure, self.plan.seconds / 2)

    def in_flight(self, window: int) -> None:
        """Measure throughput with ``window`` calls in flight."""
        row = "throughput.inflight"

        def measure(participant: Participant) -> None:
            value = participant.throughput(window, self.plan.seconds)
            self.results.add(row, participant.label, value, self.at, x=window)

        self.listener.describe(f"throughput with {window} in flight")
        self._run_blocks(self._with_row(row), f"{row} {window}", measure, self.plan.seconds)

    def clients(self, count: int) -> None:
        """Measure the calls per second of ``count`` clients together that all call worker 0."""
        row = "throughput.clients"

        def measure(group: Group) -> None:
            at = common_start(count)
            idle = (0, 0.0, at, 0)  # worker 0 makes no calls
            client = (CLIENT_WINDOW, 2 * self.plan.seconds, at, 0)
            rates = group.run_each(worker_tasks.throughput, [idle, *[client] * count])
            self.results.add(row, group.label, sum(rates), self.at, x=count)

        self.listener.describe(f"throughput with {count} clients")
        self._run_blocks(self._groups(), f"{row} {count}", measure, self.plan.seconds)

    def processor(self) -> None:
        """Measure the processor time of calls, and that of an idle worker."""

        def measure(pair: Group) -> None:
            callee = pair.workers[1].pid
            task, plan = worker_tasks.processor, self.plan
            for row, value in pair.call(0, task, callee, plan.calls, plan.seconds).items():
                if plan.has(row):
                    self.results.add(row, pair.label, value, self.at)

        self.listener.describe("processor time")
        self._run_blocks(self._groups(), "cpu", measure, 3 * self.plan.seconds)

    def size(self, row: str, length: int) -> None:
        """Measure messages of ``length`` bytes."""
        kind = row.partition(".")[2]
        calls = max(2, min(self.plan.calls // 2, _MAX_BLOCK_BYTES // length))

        def measure(participant: Participant) -> None:
            self._add(row, participant.size(kind, length, calls, self.plan.seconds / 2), x=length)

        self.listener.describe(f"{kind} of {length} bytes")
        self._run_blocks(
            self._with_row(row), f"{row} {length}", measure, self.plan.seconds + length / 1e9
        )

    def _add(self, row: str, times: Times, x: int | None = None, *, samples: bool = False) -> None:
        for label, each in times.items():
            value = statistics.median(each)
            self.results.add(row, label, value, self.at, x, each if samples else ())

    def _run_blocks(
        self,
        participants: Sequence[_Participant],
        what: str,
        measure: Callable[[_Participant], None],
        seconds: float,
    ) -> None:
        for participant in shuffled(participants, self.rng):
            with self.processes.block(participant.label, what):
                measure(participant)
            self.listener.advance(seconds)

    def _with_row(self, row: str) -> list[Participant]:
        return [process for process in self.processes.values() if process.has(row)]

    def _groups(self) -> list[Group]:
        return [process for process in self.processes.values() if isinstance(process, Group)]


def _add_pairs(
    processes: ProcessSet[Participant],
    plan: Plan,
    subjects: Sequence[Subject],
    rng: random.Random,
) -> None:
    for subject in shuffled(subjects, rng):
        if not subject.peer:
            pair = Group(subject, 2, seconds=_PROCESS_LIFETIME_S)
            processes.add(pair, functools.partial(start_pair, pair, pinned=plan.pinned))
        elif plan.has(*ROWS):
            runner = ExternalRunner(subject, seconds=_PROCESS_LIFETIME_S)
            processes.add(runner, functools.partial(_start_external, runner, plan))


def start_pair(pair: Group, *, pinned: bool) -> None:
    """Start a group of two whose processes share no memory pages and, if ``pinned``, no cores."""
    pair.run(worker_tasks.prepare, own_memory=True)
    if pinned:
        pair.pin()
    pair.start()
    pair.latency("latency.noop", 50, 1.0)


def _start_external(runner: ExternalRunner, plan: Plan) -> None:
    if plan.pinned:
        runner.pin()
    runner.start(plan.pinned)
    runner.latency("latency.noop", 50, 1.0)


def _shut_down(processes: ProcessSet[Participant]) -> None:
    for label in list(processes):
        with processes.guarded(label, "shutdown"):
            processes[label].resume()
            processes[label].stop()
