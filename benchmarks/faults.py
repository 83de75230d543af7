"""What fault injection costs a call that meets no fault.

Three comparisons on TENSORPIPE and on ZEROMQ, each of a call from one process to another:

* *ready for rules*: the agent in front of the backend's, and no rule, beside the bare backend. Without
  `RPC_BACKENDS_FAULTS` nothing stands in front at all; this is what `RPC_BACKENDS_FAULTS=on` costs.
* *100 rules*: a hundred that are for none of the messages, beside none, in the same processes.
* the *control*: the bare backend beside itself; what it differs from 1 by is the method's error.

The groups are alive at once; blocks of calls alternate between them in an order that is drawn, and the
processes of a group that waits are stopped meanwhile. Callers stay on one core and callees on another.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import _faults_worker as act
from _measure import Bar, Comparisons, Machine, Progress, Report, add_arguments, in_turns, say

from rpc_backends_core.testing.processes import Template, Workers

BLOCKS = {"no-op": (200, 20), "torch.add": (200, 20), "echo of 1 MiB": (40, 4)}
BACKENDS = ("TENSORPIPE", "ZEROMQ")
READY, RULES = Bar(1.02, 0.98), Bar(1.05)
DISTRIBUTIONS = ("torch", "rpc-backends-core", "rpc-backends-agents", "rpc-backends-faults")
#: Environment by what is compared.
SIDES = {"bare": {}, "bare again": {}, "ready": {"RPC_BACKENDS_FAULTS": "on"}}


class Pair:
    """Two workers that are stopped while they are not measured."""

    def __init__(self, workers: Workers, backend: str, folder: str, side: str) -> None:
        self._workers = workers
        cores = sorted(os.sched_getaffinity(0))
        for worker in workers:
            os.sched_setaffinity(worker.pid, {cores[worker.index % len(cores)]})
        front = workers.run(act.join, f"file://{folder}/{side}", backend)
        if (front[0] == "InterceptingAgent") != (side == "ready"):
            raise AssertionError(f"{side!r} has {front[0]} in front")
        for kind, (calls, _) in BLOCKS.items():
            workers[0].call(act.block, kind, calls, 0)
        self._signal(signal.SIGSTOP)

    def block(self, kind: str, rules: int = 0) -> float:
        """Return the median time of a call while there are so many rules."""
        self._signal(signal.SIGCONT)
        try:
            if rules:
                self._workers[0].call(act.set_rules, rules)
            found = float(self._workers[0].call(act.block, kind, *BLOCKS[kind]))
            if rules:
                self._workers[0].call(act.set_rules, 0)
            return found
        finally:
            self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """Let the workers leave their group."""
        self._signal(signal.SIGCONT)
        self._workers.run(act.leave)

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            os.kill(worker.pid, number)


@contextlib.contextmanager
def pairs(template: Template, backend: str) -> Iterator[dict[str, Pair]]:
    """Start a pair of workers for each side."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rpc-bench-"))
        found = {}
        for side, env in SIDES.items():
            workers = stack.enter_context(Workers(2, env=env, seconds=600, template=template))
            found[side] = Pair(workers, backend, folder, side)
        yield found
        for pair in found.values():
            pair.end()


def sitting(
    template: Template, backend: str, rounds: int, chance: random.Random, comparisons: Comparisons
) -> None:
    """Measure a backend with one set of processes."""
    with pairs(template, backend) as sides:
        for _ in range(rounds):
            for kind in BLOCKS:
                times = {side: sides[side].block(kind) for side in in_turns([*SIDES], chance)}
                add = comparisons.add
                add(f"{backend}: ready for rules", kind, times["ready"], times["bare"], READY)
                add(f"{backend}: control", kind, times["bare again"], times["bare"])
                both = dict.fromkeys(("0", "100"), 0.0)
                for rules in in_turns([*both], chance):
                    both[rules] = sides["ready"].block(kind, int(rules))
                add(f"{backend}: 100 rules", kind, both["100"], both["0"], RULES)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--sittings", type=int, default=8, help="sets of processes (8)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of blocks in a sitting (8)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sittings, arguments.rounds = 1, 3
    if min(arguments.sittings, arguments.rounds) < 1:
        parser.error("a comparison needs one sitting and one round at least")

    machine = Machine.here(*DISTRIBUTIONS)
    say(str(machine))
    comparisons = Comparisons()
    chance = random.Random(arguments.seed)
    template = Template(path=[str(Path(__file__).parent)])
    with Progress("sittings", arguments.sittings * len(BACKENDS)) as progress:
        for _ in range(arguments.sittings):
            comparisons.new_sitting()
            for backend in BACKENDS:
                sitting(template, backend, arguments.rounds, chance, comparisons)
                progress.step()
    in_order = Comparisons(sorted(comparisons.items()))
    Report("Calls that meet no fault", "with", "without", machine, in_order).show(arguments)


if __name__ == "__main__":
    sys.exit(main())
