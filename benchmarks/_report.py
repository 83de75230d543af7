"""Shared by the scripts here: comparisons of two sides with a bar, their table and JSON file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from rpc_backends_bench import formatting, machine
from rpc_backends_bench.compare import ENOUGH
from rpc_backends_bench.progress import Progress
from rpc_backends_bench.statistics import Point, Ratio, ratio, spread

Verdict = Literal["met", "NOT MET", "open"]

_STYLES = {"met": "green", "NOT MET": "bold red", "open": "yellow"}
_INTERRUPTED = 130
#: The share of the cores' time that other programs may take before the report says so.
_MAX_BUSY = 0.15


@dataclass(frozen=True)
class Bar:
    """A bar: the range in which the ratio of our figure to the reference's must lie."""

    high: float = float("inf")
    low: float = 0.0

    def __str__(self) -> str:
        if not self.low:
            return f"<= {self.high:.2f}"
        if self.high == float("inf"):
            return f">= {self.low:.2f}"
        middle = (self.low + self.high) / 2
        return f"{middle:.2f} +/- {self.high - middle:.2f}"

    def judge(self, ratio: Ratio | None) -> Verdict:
        """Judge a ratio by its interval; "open" if that contains a limit, or rounds were too few."""
        if ratio is None or ratio.pairs < ENOUGH:
            return "open"
        if self.low <= ratio.low and ratio.high <= self.high:
            return "met"
        return "NOT MET" if ratio.low > self.high or ratio.high < self.low else "open"


@dataclass
class Comparison:
    """The values of two sides, which were measured one after the other in each round."""

    section: str
    name: str
    bar: Bar | None = None
    shown: Callable[[float], str] = formatting.seconds
    ours: list[Point] = field(default_factory=list)
    reference: list[Point] = field(default_factory=list)

    @property
    def ratio(self) -> Ratio | None:
        """The ratio of the medians, with its 95 % confidence interval."""
        return ratio(self.ours, self.reference)

    @property
    def verdict(self) -> Verdict | Literal[""]:
        """Whether the bar is met; empty if there is no bar."""
        return self.bar.judge(self.ratio) if self.bar else ""

    def cells(self) -> list[str]:
        """Return the cells of its line in the table."""
        style = _STYLES.get(self.verdict)
        return [
            f"  {self.name}",
            self._median(self.ours),
            self._median(self.reference),
            formatting.ratio(self.ratio, digits=3),
            str(self.bar or ""),
            f"[{style}]{self.verdict}[/]" if style else "",
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values, with every measured value."""
        ratio = self.ratio
        return {
            "section": self.section,
            "name": self.name,
            "ratio": ratio and ratio.middle,
            "interval": ratio and [ratio.low, ratio.high],
            "bar": str(self.bar or ""),
            "verdict": self.verdict,
            "ours": self.ours,
            "reference": self.reference,
        }

    def _median(self, points: Sequence[Point]) -> str:
        return self.shown(spread([value for _, _, value in points]).middle) if points else ""


class Report:
    """All comparisons of a script.

    :param title: the title of the table.
    :param ours: the heading of our column.
    :param reference: the heading of the reference's column.
    :param distributions: distributions whose versions the report shows.
    """

    def __init__(self, title: str, ours: str, reference: str, *distributions: str) -> None:
        self._title = title
        self._sides = ours, reference
        self.machine = {**machine.describe(distributions), "busy_before": machine.busy_share()}
        self._comparisons: dict[tuple[str, str], Comparison] = {}

    def add(self, comparison: Comparison) -> None:
        """Add a comparison."""
        self._comparisons[comparison.section, comparison.name] = comparison

    def add_pair(
        self,
        section: str,
        name: str,
        at: tuple[int, int],
        values: tuple[float, float],
        bar: Bar | None = None,
    ) -> None:
        """Add the times of both sides in one round.

        :param at: the number of the process set, and that of the round.
        :param values: our time and the reference's, in seconds.
        """
        new = Comparison(section, name, bar)
        comparison = self._comparisons.setdefault((section, name), new)
        comparison.ours.append((*at, values[0]))
        comparison.reference.append((*at, values[1]))

    def finish(self, arguments: argparse.Namespace) -> bool:
        """Print the table and write the ``--json`` file; return whether no bar is missed."""
        self.machine.update(machine.finished())
        comparisons = sorted(self._comparisons.values(), key=lambda comparison: comparison.section)
        console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
        console.print(self._table(comparisons))
        console.print(f"[dim]{machine.summary(self.machine)}[/]")
        if self.machine["busy_before"] > _MAX_BUSY:
            console.print("Other programs were running when the run began.", style="yellow")
        if arguments.json is not None:
            whole = {
                "title": self._title,
                "machine": self.machine,
                "comparisons": [comparison.to_json() for comparison in comparisons],
            }
            arguments.json.write_text(json.dumps(whole, indent=1))
        return all(comparison.verdict != "NOT MET" for comparison in comparisons)

    def _table(self, comparisons: Sequence[Comparison]) -> Table:
        caption = "Medians. In parentheses: the 95 % confidence interval, by bootstrap."
        table = Table(title=self._title, caption=caption, box=box.SIMPLE_HEAD)
        table.add_column("measured")
        for column in (*self._sides, "ratio", "bar", ""):
            table.add_column(column, justify="right", no_wrap=True)
        section = ""
        for comparison in comparisons:
            if comparison.section != section:
                section = comparison.section
                table.add_section()
                table.add_row(f"[bold]{section}[/]")
            table.add_row(*comparison.cells())
        return table


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return an argument parser with the options that all scripts here have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="a few rounds, to show that it works")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every value to FILE")
    made.add_argument("--check", action="store_true", help="exit with 1 if a bar is not met")
    made.add_argument(
        "--seed", type=int, default=0, help="seed of the random order of the sides (0)"
    )
    return made


def run(
    report: Report,
    arguments: argparse.Namespace,
    rounds: int,
    measure: Callable[[Progress], None],
) -> int:
    """Measure, report and return the exit status; Ctrl-C keeps the values so far.

    :param rounds: how often ``measure`` advances the progress by 1.
    """
    print(machine.summary(report.machine), file=sys.stderr)
    status = 0
    with Progress(rounds) as progress:
        try:
            measure(progress)
        except KeyboardInterrupt:
            status = _INTERRUPTED
    good = report.finish(arguments)
    return status or int(arguments.check and not good)
