"""What the benchmarks share: taking turns, statistics, the machine, and the report.

Everything here is a comparison of two sides that are measured in turns in one run, because on any
machine but an idle one the absolute figures drift by more than the differences of interest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from rpc_backends_bench.machine import cpu_model

Verdict = Literal["met", "NOT MET", "open", ""]

_RESAMPLES = 2000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Bar:
    """The ratio (ours to the reference) that is asked for."""

    high: float
    low: float = 0.0

    def __str__(self) -> str:
        if not self.low:
            return f"<= {self.high:.2f}"
        middle = (self.low + self.high) / 2
        return f"{middle:.2f} +/- {self.high - middle:.2f}"

    def judge(self, low: float, high: float) -> Verdict:
        """Judge a ratio known to lie between ``low`` and ``high``; "open" if a limit lies between."""
        if self.low <= low and high <= self.high:
            return "met"
        return "NOT MET" if low > self.high or high < self.low else "open"


@dataclass
class Comparison:
    """Pairs of durations, in seconds, of which the two of a pair were measured one after the other.

    :ivar section: under which heading it is shown.
    :ivar sittings: the pairs, by the set of processes they were measured in.
    """

    section: str
    name: str
    bar: Bar | None = None
    sittings: list[list[tuple[float, float]]] = field(default_factory=lambda: [[]])

    def add(self, ours: float, reference: float) -> None:
        """Add one pair to the current sitting."""
        self.sittings[-1].append((ours, reference))

    def new_sitting(self) -> None:
        """Say that the next pairs are measured in other processes."""
        if self.sittings[-1]:
            self.sittings.append([])

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """All pairs."""
        return [pair for sitting in self.sittings for pair in sitting]

    def summary(self) -> Summary:
        """Return the figures to report."""
        ours, reference = zip(*self.pairs, strict=True)
        low, high = self._interval()
        return Summary(
            section=self.section,
            name=self.name,
            pairs=len(ours),
            ours=quartiles(ours),
            reference=quartiles(reference),
            ratio=ratio_of_medians(self.pairs),
            interval=(low, high),
            pair_ratios=quartiles([one / other for one, other in self.pairs]),
            bar=str(self.bar) if self.bar else None,
            verdict=self.bar.judge(low, high) if self.bar else "",
        )

    def _interval(self) -> tuple[float, float]:
        """Return where the ratio of medians lies with 95 % confidence.

        Sittings are drawn with replacement and then pairs in each: two sets of processes differ by
        more than two blocks of calls in one set.
        """
        chance = random.Random(0)
        sittings = [sitting for sitting in self.sittings if sitting]
        ratios = []
        for _ in range(_RESAMPLES):
            drawn: list[tuple[float, float]] = []
            for sitting in chance.choices(sittings, k=len(sittings)):
                drawn += chance.choices(sitting, k=len(sitting))
            ratios.append(ratio_of_medians(drawn))
        ratios.sort()
        tail = round((1 - _CONFIDENCE) / 2 * _RESAMPLES)
        return ratios[tail], ratios[-1 - tail]


@dataclass(frozen=True)
class Summary:
    """What a comparison comes to.

    :ivar ours: lower quartile, median and upper quartile of our durations, in seconds.
    :ivar reference: the same of what they are compared with.
    :ivar ratio: of the medians, ours to the reference.
    :ivar interval: where that ratio lies, with 95 % confidence.
    :ivar pair_ratios: quartiles and median of the ratios pair by pair.
    """

    section: str
    name: str
    pairs: int
    ours: tuple[float, float, float]
    reference: tuple[float, float, float]
    ratio: float
    interval: tuple[float, float]
    pair_ratios: tuple[float, float, float]
    bar: str | None
    verdict: Verdict


class Comparisons(dict[tuple[str, str], Comparison]):
    """Comparisons by section and name, made when their first pair is added."""

    def add(
        self, section: str, name: str, ours: float, reference: float, bar: Bar | None = None
    ) -> None:
        """Add one pair."""
        self.setdefault((section, name), Comparison(section, name, bar)).add(ours, reference)

    def new_sitting(self) -> None:
        """Say that the next pairs are measured in other processes."""
        for comparison in self.values():
            comparison.new_sitting()


@dataclass
class Figure:
    """Durations, in seconds, that are compared with nothing: a limit, or a detail."""

    name: str
    values: list[float] = field(default_factory=list)


def ratio_of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median of the first divided by the median of the second."""
    return statistics.median([one for one, _ in pairs]) / statistics.median(
        [other for _, other in pairs]
    )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def in_turns(sides: Sequence[str], chance: random.Random) -> list[str]:
    """Return the sides in the order they are to be measured in this round, which is drawn."""
    return chance.sample(sides, k=len(sides))


# --- the machine -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """Where and when it was measured."""

    cpu: str
    cores: int
    system: str
    versions: dict[str, str]
    date: str
    load_before: float
    load_after: float | None = None

    @classmethod
    def here(cls, *distributions: str) -> Machine:
        """Describe this machine, with the versions of Python and of ``distributions``."""
        versions = {"python": platform.python_version()}
        versions.update({name: metadata.version(name) for name in distributions})
        return cls(
            cpu=cpu_model(),
            cores=len(os.sched_getaffinity(0)),
            system=f"{platform.system()} {platform.release()}",
            versions=versions,
            date=time.strftime("%Y-%m-%d"),
            load_before=os.getloadavg()[0],
        )

    @property
    def is_busy(self) -> bool:
        """Whether other programs ran when the measurement began."""
        return self.load_before > 0.5 * self.cores

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        after = "" if self.load_after is None else f", {self.load_after:.1f} after"
        return (
            f"{self.cpu}, {self.cores} cores, {self.system}; {versions}; {self.date}; "
            f"load {self.load_before:.1f} before{after}"
        )


# --- the report ------------------------------------------------------------------------------------


@dataclass
class Report:
    """All that a run has measured."""

    title: str
    ours: str
    reference: str
    machine: Machine
    comparisons: Comparisons
    figures: list[Figure] = field(default_factory=list)

    def show(self, arguments: argparse.Namespace) -> None:
        """Print the tables, and write the file of ``--json``; with ``--check``, exit 1 above a bar.

        :param arguments: of a parser that has :func:`add_arguments`.
        """
        self.machine = Machine(**{**vars(self.machine), "load_after": os.getloadavg()[0]})
        summaries = [comparison.summary() for comparison in self.comparisons.values()]
        console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
        console.print(self._table(summaries))
        if self.figures:
            console.print(self._figures())
        console.print(f"[dim]{self.machine}[/]")
        if self.machine.is_busy:
            console.print(
                "The machine was busy when this began: the times are not its best, and an open "
                "verdict says so.",
                style="yellow",
            )
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(self._as_json(arguments, summaries), indent=1))
            print(f"wrote {arguments.json}", file=sys.stderr)
        if arguments.check and any(summary.verdict == "NOT MET" for summary in summaries):
            sys.exit(1)

    def _table(self, summaries: list[Summary]) -> Table:
        table = Table(
            title=self.title,
            caption="quartiles in brackets; interval: 95 %, by bootstrap",
            box=box.SIMPLE_HEAD,
        )
        table.add_column("measured")
        for column in (self.ours, self.reference, "ratio", "interval", "pair by pair", "bar", ""):
            table.add_column(column, justify="right", no_wrap=True)
        styles = {"met": "green", "NOT MET": "bold red", "open": "yellow", "": ""}
        section = None
        for one in summaries:
            if one.section != section:
                section = one.section
                table.add_section()
                table.add_row(f"[bold]{section}[/]")
            table.add_row(
                f"  {one.name}",
                _spread(one.ours),
                _spread(one.reference),
                f"{one.ratio:.3f}",
                f"{one.interval[0]:.3f} - {one.interval[1]:.3f}",
                _ratios(one.pair_ratios),
                one.bar or "",
                f"[{styles[one.verdict]}]{one.verdict}[/]" if one.verdict else "",
            )
        return table

    def _figures(self) -> Table:
        table = Table(title="For comparison", box=box.SIMPLE_HEAD)
        table.add_column("measured")
        table.add_column("time", justify="right", no_wrap=True)
        for figure in self.figures:
            table.add_row(figure.name, _spread(quartiles(figure.values)))
        return table

    def _as_json(self, arguments: argparse.Namespace, summaries: list[Summary]) -> dict[str, Any]:
        given = {k: v for k, v in vars(arguments).items() if k not in ("json", "check")}
        return {
            "title": self.title,
            "machine": vars(self.machine),
            "arguments": given,
            "unit": "s",
            "comparisons": [
                {**vars(summary), "sittings": comparison.sittings}
                for summary, comparison in zip(summaries, self.comparisons.values(), strict=True)
            ],
            "figures": [vars(figure) for figure in self.figures],
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that every benchmark has."""
    parser.add_argument(
        "--quick", action="store_true", help="a few rounds: shows that it works, settles nothing"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is not met")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the order in which the sides take turns (0)"
    )


def _ratios(values: tuple[float, float, float]) -> str:
    low, middle, high = values
    return f"{middle:.3f} ({low:.2f} - {high:.2f})"


def _spread(values: tuple[float, float, float]) -> str:
    low, middle, high = values
    size, unit = next(
        ((size, unit) for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")) if middle >= size),
        (1e-9, "ns"),
    )
    return f"{middle / size:.3g} {unit} ({low / size:.3g} - {high / size:.3g})"


# --- progress --------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Show progress where it does not disturb the result."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Shows how far a measurement is: a bar on a terminal, a line now and then in a log."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._bar: RichProgress | None = None
        if sys.stderr.isatty():
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        else:
            say(f"{self._title}: {self._total} rounds")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self) -> None:
        """Say that one more round is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
        elif self._done * 10 // self._total > (self._done - 1) * 10 // self._total:
            say(f"{self._title}: {self._done} of {self._total}")
