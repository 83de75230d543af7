"""Measure what fault injection adds to a call that has no fault.

Three comparisons on TENSORPIPE and on ZEROMQ, each of calls from one process to another:

* *ready for rules*: fault injection wraps the backend's agent but has no rule, against the bare backend.
  This is the cost of `RPC_BACKENDS_FAULTS=on`. Without that variable the agent is not wrapped.
* *100 rules*: a hundred rules that match none of the messages, against no rule, in the same processes.
* the *control*: the bare backend against itself; its difference from 1 is the method's error.

As in `rpc-backends bench`, all groups are alive at once and take turns with short blocks of calls, in
random order; idle ones are suspended. Callers and callees run on different cores.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
from collections.abc import Callable

import _fault_tasks
from _report import Bar, Report, parser, run

from rpc_backends_bench.calls import start_pair
from rpc_backends_bench.participants import Group, Times
from rpc_backends_bench.process_set import shuffled
from rpc_backends_bench.progress import Progress
from rpc_backends_bench.subjects import Subject

BACKENDS = ("TENSORPIPE", "ZEROMQ")
READY, RULES = Bar(1.02, 0.98), Bar(1.05)
#: The environment variables of each side.
SIDES = {"bare": {}, "bare again": {}, "ready": {"RPC_BACKENDS_FAULTS": "on"}}
#: After this time a block ends, even if it has made fewer calls.
_BLOCK_TIMEOUT_S = 10.0

#: The blocks of calls.
CALLS: dict[str, Callable[[Group], Times]] = {
    "no-op": lambda group: group.latency("latency.noop", 200, _BLOCK_TIMEOUT_S),
    "torch.add": lambda group: group.latency("latency.builtin", 200, _BLOCK_TIMEOUT_S),
    "echo of 1 MiB": lambda group: group.size("echo", 1 << 20, 40, _BLOCK_TIMEOUT_S),
}


def start(group: Group, *, ready: bool) -> None:
    """Start a pair of workers, make each kind of call once, and suspend them."""
    start_pair(group, pinned=True)
    if group.call(0, _fault_tasks.can_have_rules) != ready:
        raise AssertionError(
            f"{group.label}: fault injection {'does not wrap' if ready else 'wraps'} the agent"
        )
    for call in CALLS.values():
        call(group)
    group.suspend()


def block(group: Group, name: str, rules: int = 0) -> float:
    """Return the median time of a call with this number of rules, in seconds."""
    group.resume()
    if rules:
        group.call(0, _fault_tasks.set_rules, rules)
    (times,) = CALLS[name](group).values()
    if rules:
        group.call(0, _fault_tasks.set_rules, 0)
    group.suspend()
    return statistics.median(times)


def measure(backend: str, number: int, rounds: int, rng: random.Random, report: Report) -> None:
    """Measure one backend with one process set."""
    with contextlib.ExitStack() as stack:
        groups = {}
        for side, env in SIDES.items():
            group = groups[side] = Group(Subject(side, backend), 2, seconds=900, env=env)
            stack.callback(group.close)
            group.open()
            start(group, ready=side == "ready")
        for turn in range(rounds):
            at = number, turn
            for name in CALLS:
                times = {side: block(groups[side], name) for side in shuffled([*SIDES], rng)}
                bare = times["bare"]
                report.add_pair(
                    f"{backend}: ready for rules", name, at, (times["ready"], bare), READY
                )
                report.add_pair(f"{backend}: control", name, at, (times["bare again"], bare))
                both = {n: block(groups["ready"], name, n) for n in shuffled([0, 100], rng)}
                report.add_pair(f"{backend}: 100 rules", name, at, (both[100], both[0]), RULES)
        for group in groups.values():
            group.resume()
            group.stop()


def main() -> int:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--sets", type=int, default=8, help="number of process sets (8)")
    options.add_argument("--rounds", type=int, default=8, help="rounds with each process set (8)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.sets, arguments.rounds = 1, 3
    if min(arguments.sets, arguments.rounds) < 1:
        options.error("--sets and --rounds must be at least 1")
    report = Report(
        *("Calls without a fault", "with", "without"),
        *("rpc-backends-agents", "rpc-backends-faults"),
    )
    rng = random.Random(arguments.seed)

    def measure_all(progress: Progress) -> None:
        for number in range(arguments.sets):
            for backend in BACKENDS:
                progress.describe(f"{backend}, process set {number + 1}")
                measure(backend, number, arguments.rounds, rng, report)
                progress.advance(1)

    return run(report, arguments, arguments.sets * len(BACKENDS), measure_all)


if __name__ == "__main__":
    sys.exit(main())
