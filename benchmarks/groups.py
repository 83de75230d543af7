"""Starting, stopping and joining groups, through the plugins and through stock torch.

*Static groups*, TENSORPIPE and FAULTY_TENSORPIPE. Each round makes new processes on both sides, in an
order that is drawn; a process has imported torch and nothing else. All workers begin at the same
moment, and a time is from the first worker's call to the last worker's return:

- *init_rpc, first in the process*: as a program has it. Ours has in it that the installed packages are
  looked at, and that the plugin and what it needs is imported.
- *first call of each to all*: every worker calls every other one once, all at the same time, which is
  when the connections are made that `init_rpc` has not made. *Both* is the sum of these two: when the
  group is ready for work.
- *shutdown*: graceful.
- *init_rpc again*: the same processes, after shutdown.

*Dynamic groups*, TENSORPIPE. One worker joins after the other, then one leaves after the other.
"""

from __future__ import annotations

import argparse
import random

from _measure import Bar, Comparison, Machine, Progress, Report, add_arguments, in_turns, say
from _sides import OURS, STOCK, Side, both_sides, free_port

NO_SLOWER = Bar(1.0)
BACKENDS = ("TENSORPIPE", "FAULTY_TENSORPIPE")
DISTRIBUTIONS = (
    "torch",
    "rpc-backends-core",
    "rpc-backend-tensorpipe",
    "rpc-backend-faulty-tensorpipe",
)

Times = dict[str, float]


def static_group(side: Side, backend: str, workers: int) -> Times:
    """Start and stop a group twice in new processes; return seconds by what was measured."""
    with side.group(workers) as group:
        first, greeting = group.start(backend), group.greet()
        shutdown = group.stop()
        again = group.start(backend)
        group.greet()
        group.stop()
    return {
        "init_rpc, first in the process": first,
        "first call of each to all": greeting,
        "both: ready for work": first + greeting,
        "shutdown": shutdown,
        "init_rpc again": again,
    }


def dynamic_group(side: Side, workers: int) -> Times:
    """Let workers join one after the other, and leave in the opposite order."""
    with side.group(workers) as group:
        port = free_port()
        joins = [group.join(rank, port) for rank in range(workers)]
        leaves = [group.leave(rank) for rank in reversed(range(workers))]
    times = {f"join of worker {rank + 1}": joins[rank] for rank in range(1, workers)}
    times["all join"] = sum(joins)
    times["all leave"] = sum(leaves)
    return times


class Table:
    """Comparisons by name, filled round by round."""

    def __init__(self) -> None:
        self.comparisons: dict[str, Comparison] = {}

    def add(self, prefix: str, times: dict[str, Times], bars: dict[str, Bar]) -> None:
        """Add a round.

        :param times: by side.
        :param bars: by what was measured.
        """
        for name, ours in times[OURS].items():
            full = f"{prefix}: {name}"
            comparison = self.comparisons.setdefault(full, Comparison(full, bars.get(name)))
            comparison.add(ours, times[STOCK][name])


def measure(arguments: argparse.Namespace) -> list[Comparison]:
    """Run all rounds; the first of each kind warms up and does not count."""
    table = Table()
    chance = random.Random(arguments.seed)
    bars = {"init_rpc, first in the process": NO_SLOWER}
    with both_sides() as sides:
        with Progress("static groups", arguments.rounds + 1) as progress:
            for turn in range(arguments.rounds + 1):
                for backend in BACKENDS:
                    times = {
                        name: static_group(sides[name], backend, arguments.workers)
                        for name in in_turns((OURS, STOCK), chance)
                    }
                    if turn:
                        table.add(f"{backend}, {arguments.workers} workers", times, bars)
                progress.step()
        with Progress("dynamic groups", arguments.dynamic_rounds) as progress:
            for _ in range(arguments.dynamic_rounds):
                times = {
                    name: dynamic_group(sides[name], arguments.dynamic_workers)
                    for name in in_turns((OURS, STOCK), chance)
                }
                table.add("dynamic", times, {})
                progress.step()
    return list(table.comparisons.values())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=30, help="static groups a side (30)")
    parser.add_argument("--workers", type=int, default=4, help="in a static group (4)")
    parser.add_argument("--dynamic-rounds", type=int, default=8, help="dynamic groups a side (8)")
    parser.add_argument("--dynamic-workers", type=int, default=8, help="in a dynamic group (8)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.dynamic_rounds, arguments.dynamic_workers = 3, 1, 4
    if min(arguments.rounds, arguments.dynamic_rounds) < 1 or arguments.workers < 2:
        parser.error("a comparison needs one round, and a group two workers, at least")

    machine = Machine.here(*DISTRIBUTIONS)
    say(str(machine))
    comparisons = measure(arguments)
    Report("Groups", "plugins", "stock torch", machine, comparisons).show(arguments)


if __name__ == "__main__":
    main()
