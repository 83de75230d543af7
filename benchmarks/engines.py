"""ZEROMQ beside TENSORPIPE: calls, tensors, and the start of a group.

One group of two processes for each engine is alive, and short blocks of calls alternate between them in
an order that is drawn, as in `calls.py`, which says why: the groups that wait are stopped, callers stay
on one core and callees on another, and after some rounds all groups are made anew. TENSORPIPE is stock
torch's (TORCH_DEVICE_BACKEND_AUTOLOAD=0).

- *no-op*, *torch.add*: `rpc_sync` of a Python function, and of a builtin on 2 x 2 floats.
- *no-op, N in flight*: `rpc_async`, and `wait` for the oldest as soon as N are under way. The time is
  that of one call, so 1.5 times as many calls a second are a ratio of 0.67.
- *echo*, *one way*: a tensor there and back, and there alone.
- *processor*: what a call takes of the processors in both processes together, which says more than the
  time where other programs run. TENSORPIPE polls, so it takes what nobody else wants as well.
- *16 workers*: `init_rpc` as in `groups.py`, the first calls of all to all, and `shutdown`. *again* is in
  the same processes: the first time has in it that ours is looked for and imported.

An engine is NAME or NAME:OPTION=VALUE,... for any backend that is installed, and *plain* is short for
ZEROMQ:encryption=off. The bars of 64 MiB are for engines that do not encrypt.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _bare import Bare, bare
from _measure import (
    Bar,
    Comparisons,
    Machine,
    Progress,
    Report,
    add_arguments,
    in_turns,
    say,
)
from _sides import OURS, STOCK, Group, Side, both_sides

REFERENCE = "TENSORPIPE"
PLAIN = "plain"
NO_MORE, HALF = Bar(1.0), Bar(0.5)
#: 1.5 times as many in the same time.
MORE = Bar(1 / 1.5)
#: Calls in a block by kind, and how many before them are not measured.
BLOCKS = {
    "no-op": (150, 20),
    "torch.add": (150, 20),
    "echo of 1 MiB": (30, 4),
    "echo of 64 MiB": (3, 1),
    "64 MiB one way": (3, 1),
}
#: Calls in a block by how many are under way.
FLOODS = {16: 800, 256: 1500}
FLOOD = "no-op, {} in flight"
BARS = {
    "no-op": NO_MORE,
    "torch.add": NO_MORE,
    "echo of 1 MiB": NO_MORE,
    "init_rpc, all at once": HALF,
    "init_rpc, rank 0 before": HALF,
    "init_rpc again": HALF,
    "until then": HALF,
    **{FLOOD.format(number): MORE for number in FLOODS},
}
PLAIN_BARS = {"echo of 64 MiB": NO_MORE, "64 MiB one way": NO_MORE}
DISTRIBUTIONS = ("torch", "rpc-backends-core", "rpc-backends-agents", "rpc-backend-zeromq", "pyzmq")
#: What is put before the installed packages with --here.
SOURCES = ("src", "packages/agents/src", "plugins/zeromq/src", "plugins/tensorpipe/src")
#: Longer than a group stands still: whoever goes on after that would be taken for lost.
PATIENT = {"heartbeat_timeout": 3600.0}


@dataclass(frozen=True)
class Engine:
    """A backend, and the options that it gets."""

    label: str
    backend: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Engine:
        """Return the engine of ``text``; see above for the form."""
        name, _, rest = text.partition(":")
        if name == PLAIN:
            return cls("ZEROMQ plain", "ZEROMQ", {"encryption": False})
        given = dict(item.split("=", 1) for item in rest.split(",") if item)
        return cls(text, name, {key: _value(value) for key, value in given.items()})

    @property
    def is_plain(self) -> bool:
        """Whether what it sends can be read on the way."""
        return self.backend != "ZEROMQ" or self.options.get("encryption") is False

    def bar(self, name: str) -> Bar | None:
        """Return the bar for what is called ``name``."""
        return BARS.get(name) or (PLAIN_BARS.get(name) if self.is_plain else None)

    def start(self, group: Group, *, host_first: bool = False) -> float:
        """Call ``init_rpc`` in a group; return how long that takes."""
        if self.label == REFERENCE:
            return group.start(REFERENCE, host_first=host_first)
        patient = PATIENT if self.backend == "ZEROMQ" else {}
        return group.start(self.backend, {**patient, **self.options}, host_first=host_first)

    def side(self, sides: dict[str, Side]) -> Side:
        """Return where its processes are made."""
        return sides[STOCK if self.label == REFERENCE else OURS]


#: Seconds that passed, and of the processors, by what was measured.
Times = dict[str, tuple[float, float]]


def _value(text: str) -> Any:
    words = {"on": True, "off": False}
    if text in words:
        return words[text]
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def block(group: Group, name: str) -> tuple[float, float]:
    """Measure one block of calls; return the time of a call, and its time of the processors."""
    group.thaw()
    time.sleep(0.002)
    try:
        before = group.processor_time()
        if name in BLOCKS:
            calls, unmeasured = BLOCKS[name]
            took = group.block(name, calls, unmeasured)
            calls += unmeasured
        else:
            in_flight = next(number for number in FLOODS if FLOOD.format(number) == name)
            calls = FLOODS[in_flight]
            took = group.flood(calls, in_flight)
        return took, (group.processor_time() - before) / calls
    finally:
        group.freeze()


def sitting(
    sides: dict[str, Side],
    engines: list[Engine],
    arguments: argparse.Namespace,
    chance: random.Random,
    comparisons: Comparisons,
    limits: Bare,
) -> None:
    """Measure calls with one set of processes for each engine."""
    groups: dict[str, Group] = {}
    by_label = {engine.label: engine for engine in engines}
    names = [*BLOCKS, *(FLOOD.format(number) for number in FLOODS)]
    try:
        for label in in_turns(list(by_label), chance):
            group = groups[label] = by_label[label].side(sides).new_group(2)
            if not arguments.no_pin:
                group.pin()
            by_label[label].start(group)
            for name in names:
                block(group, name)
        for _ in range(arguments.rounds):
            for name in names:
                times = {
                    label: {name: block(groups[label], name)}
                    for label in in_turns(list(groups), chance)
                }
                _add(comparisons, "calls", by_label, times)
            limits.measure()
        for group in groups.values():
            group.thaw()
            group.stop()
    finally:
        for group in groups.values():
            group.close()


def start_and_stop(sides: dict[str, Side], engine: Engine, workers: int) -> Times:
    """Start and stop two groups of new processes."""
    side = engine.side(sides)
    times: Times = {}
    with side.group(workers) as group:
        before = group.processor_time()
        first = engine.start(group)
        times["init_rpc, all at once"] = first, group.processor_time() - before
        before = group.processor_time()
        greeting = group.greet()
        times["first call to all"] = greeting, group.processor_time() - before
        both = zip(times["init_rpc, all at once"], times["first call to all"], strict=True)
        took, processor = map(sum, both)
        times["until then"] = took, processor
        before = group.processor_time()
        times["shutdown"] = group.stop(), group.processor_time() - before
        before = group.processor_time()
        times["init_rpc again"] = engine.start(group), group.processor_time() - before
        group.stop()
    with side.group(workers) as group:
        before = group.processor_time()
        took = engine.start(group, host_first=True)
        times["init_rpc, rank 0 before"] = took, group.processor_time() - before
        group.stop()
    return times


def _add(
    comparisons: Comparisons, section: str, engines: dict[str, Engine], times: dict[str, Times]
) -> None:
    """Compare each engine with the reference."""
    for label, ours in times.items():
        if label == REFERENCE:
            continue
        for name, (took, processor) in ours.items():
            other = times[REFERENCE][name]
            comparisons.add(f"{label}: {section}", name, took, other[0], engines[label].bar(name))
            comparisons.add(f"{label}: {section}, processor", name, processor, other[1])


def measure(
    arguments: argparse.Namespace, engines: list[Engine], comparisons: Comparisons, limits: Bare
) -> None:
    """Run all sittings, and all starts of groups."""
    chance = random.Random(arguments.seed)
    by_label = {engine.label: engine for engine in engines}
    root = Path(__file__).resolve().parents[1]
    sources = [root / source for source in SOURCES] if arguments.here else []
    with both_sides(sources) as sides:
        with Progress("sittings", arguments.sittings) as progress:
            for _ in range(arguments.sittings):
                comparisons.new_sitting()
                sitting(sides, engines, arguments, chance, comparisons, limits)
                progress.step()
        with Progress(f"groups of {arguments.workers}", arguments.starts) as progress:
            for _ in range(arguments.starts):
                times = {
                    label: start_and_stop(sides, by_label[label], arguments.workers)
                    for label in in_turns(list(by_label), chance)
                }
                _add(comparisons, f"{arguments.workers} workers", by_label, times)
                progress.step()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument(
        "--engines",
        default=f"ZEROMQ {PLAIN}",
        help=f"what is compared with {REFERENCE}, with spaces between (ZEROMQ {PLAIN})",
    )
    parser.add_argument("--sittings", type=int, default=5, help="sets of processes (5)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="blocks of each kind in a sitting (5)"
    )
    parser.add_argument("--starts", type=int, default=8, help="groups that are started (8)")
    parser.add_argument("--workers", type=int, default=16, help="in a group that is started (16)")
    parser.add_argument(
        "--here",
        action="store_true",
        help="measure this checkout, built in place, not what is installed",
    )
    parser.add_argument("--no-pin", action="store_true", help="let the system choose cores")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sittings, arguments.rounds, arguments.starts = 1, 5, min(arguments.starts, 1)
    if min(arguments.sittings, arguments.rounds) < 1 or arguments.workers < 2:
        parser.error("a comparison needs one round, and a group two workers, at least")
    engines = [Engine.parse(text) for text in (REFERENCE, *arguments.engines.split())]

    machine = Machine.here(*DISTRIBUTIONS)
    say(str(machine))
    comparisons = Comparisons()
    with bare() as limits:
        measure(arguments, engines, comparisons, limits)
    comparisons = Comparisons(sorted(comparisons.items(), key=lambda item: item[0][0]))
    report = Report("Engines", "engine", REFERENCE, machine, comparisons)
    report.figures = list(limits.figures.values())
    report.show(arguments)


if __name__ == "__main__":
    main()
