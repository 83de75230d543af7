"""Starting, stopping and joining groups, through the plugins and through stock torch.

Static groups, TENSORPIPE and FAULTY_TENSORPIPE. Each round makes new processes on both sides, in an
order that is drawn; a process has imported torch and nothing else. A time is from the first worker's
call to the last worker's return:

- *init_rpc, all at once*: the first of each process, as a launcher makes them. Ours has in it that the
  installed packages are looked at, and that the plugin and what it needs is imported. If rank 0 does not
  listen yet when another worker wants to connect to the store, torch's store pauses for some tenths of a
  second, on both sides; so these times come in lumps.
- *init_rpc, rank 0 before*: the others begin when rank 0 listens, and the time is counted from there.
- *first calls*: then every worker calls the three that come after it, around the group, all at the same
  time, which is when the connections are made that init_rpc has not made. *until then* is both.
- *shutdown*: graceful.
- *init_rpc again*: all at once, in the same processes, after shutdown.

Dynamic groups, TENSORPIPE. One worker joins after the other, then one leaves after the other.
"""

from __future__ import annotations

import argparse
import random

from _measure import Bar, Comparisons, Machine, Progress, Report, add_arguments, in_turns, say
from _sides import OURS, STOCK, Side, both_sides

BACKENDS = ("TENSORPIPE", "FAULTY_TENSORPIPE")
DISTRIBUTIONS = (
    "torch",
    "rpc-backends-core",
    "rpc-backend-tensorpipe",
    "rpc-backend-faulty-tensorpipe",
)
NO_SLOWER = Bar(1.0)
FIRST, HOST_FIRST = "init_rpc, all at once", "init_rpc, rank 0 before"
#: How many others each worker calls. All, of 32, would take TensorPipe 16 GiB of shared memory.
CALLED = 3
#: Of this size are groups whose start, and whose last join, have bars of their own.
LARGE = 32

#: Seconds by what was measured.
Times = dict[str, float]


def static_group(side: Side, backend: str, workers: int) -> Times:
    """Start and stop two groups of new processes, one of them twice."""
    with side.group(workers) as group:
        first = group.start(backend)
        group.greet(CALLED)
        shutdown = group.stop()
        again = group.start(backend)
        group.stop()
    with side.group(workers) as group:
        host_first, greeting = group.start(backend, host_first=True), group.greet(CALLED)
        group.stop()
    return {
        FIRST: first,
        HOST_FIRST: host_first,
        "first calls": greeting,
        "until then": host_first + greeting,
        "shutdown": shutdown,
        "init_rpc again": again,
    }


def dynamic_group(side: Side, workers: int) -> Times:
    """Let workers join one after the other, and leave in the opposite order."""
    with side.group(workers) as group:
        joins = [group.join(rank) for rank in range(workers)]
        leaves = [group.leave(rank) for rank in reversed(range(workers))]
    times = {f"join of worker {rank + 1}": joins[rank] for rank in range(1, workers)}
    return {**times, "all join": sum(joins), "all leave": sum(leaves)}


def measure(arguments: argparse.Namespace) -> Comparisons:
    """Run all rounds; the first of the static groups warms up and does not count."""
    comparisons = Comparisons()
    chance = random.Random(arguments.seed)
    with both_sides() as sides:
        rounds = arguments.rounds and arguments.rounds + 1
        with Progress("static groups", rounds) as progress:
            for turn in range(rounds):
                for backend in arguments.backends:
                    times = {
                        name: static_group(sides[name], backend, arguments.workers)
                        for name in in_turns((OURS, STOCK), chance)
                    }
                    if turn:
                        section = f"{backend}, {arguments.workers} workers"
                        _add(comparisons, section, times, _bars(arguments.workers))
                progress.step()
        with Progress("dynamic groups", arguments.dynamic_rounds) as progress:
            for _ in range(arguments.dynamic_rounds):
                times = {
                    name: dynamic_group(sides[name], arguments.dynamic_workers)
                    for name in in_turns((OURS, STOCK), chance)
                }
                size = arguments.dynamic_workers
                _add(comparisons, f"dynamic group of {size}", times, _bars(size))
                progress.step()
    return comparisons


def _bars(workers: int) -> dict[str, Bar]:
    """Return the bars for a group of so many workers, by what was measured."""
    if workers < LARGE:
        return {FIRST: NO_SLOWER, HOST_FIRST: NO_SLOWER}
    return {FIRST: Bar(0.7), HOST_FIRST: Bar(0.7), f"join of worker {LARGE}": Bar(0.25)}


def _add(
    comparisons: Comparisons, section: str, times: dict[str, Times], bars: dict[str, Bar]
) -> None:
    for name, ours in times[OURS].items():
        comparisons.add(section, name, ours, times[STOCK][name], bars.get(name))


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
    parser.add_argument(
        "--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="of static groups (both)"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.dynamic_rounds, arguments.dynamic_workers = 3, 1, 4
    if min(arguments.rounds, arguments.dynamic_rounds) < 0 or arguments.workers < 2:
        parser.error("a group needs two workers at least, and rounds are a number")
    if not arguments.rounds + arguments.dynamic_rounds:
        parser.error("a comparison needs one round, of static or of dynamic groups")

    machine = Machine.here(*DISTRIBUTIONS)
    say(str(machine))
    comparisons = measure(arguments)
    Report("Groups", "plugins", "stock torch", machine, comparisons).show(arguments)


if __name__ == "__main__":
    main()
