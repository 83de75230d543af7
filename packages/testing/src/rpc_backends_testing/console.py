"""What ``rpc-backends conformance`` shows: how the run goes, and what came of it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpc_backends_testing.results import Outcome, Report, Result

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_OUTCOME_STYLES = {
    Outcome.PASSED: "green",
    Outcome.FAILED: "bold red",
    Outcome.NOT_DECLARED: "dim",
    Outcome.WORKS_UNDECLARED: "cyan",
    Outcome.FAILS_NEWER: "yellow",
    Outcome.NOT_RUN: "yellow",
}
_CAPABILITY_STYLES = {
    "kept": "green",
    "broken": "bold red",
    "declared, not tested": "yellow",
    "works, not declared": "bold cyan",
    "not declared": "dim",
}
_VERDICT_STYLES = {"conforms": "green", "does not conform": "red", "partial": "yellow"}
_REFRESH = 4  # times a second


class Progress:
    """Shows how a run goes, on stderr: one line that changes, or one a chapter where nobody watches.

    :param quiet: say nothing where it is not a terminal.
    """

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._name = name
        self._console = Console(stderr=True, highlight=False, emoji=False, markup=False)
        self._quiet = quiet
        self._begin = time.monotonic()
        self._total: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._outcomes: dict[str, dict[str, str]] = {}
        self._at: tuple[str, str] | None = None
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        """Begin to show."""
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._line,
                console=self._console,
                refresh_per_second=_REFRESH,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the line away."""
        if self._live is not None:
            self._live.stop()

    def take(self, event: dict[str, Any]) -> None:
        """Take in what the run tells."""
        kind = event["event"]
        if kind == "collected":
            self._total = Counter(event["chapters"])
        elif kind == "test":
            self._at = (event["chapter"], event["test"])
        elif kind == "result":
            results = self._outcomes.setdefault(event["chapter"], {})
            if results.get(event["id"]) != Outcome.FAILED:  # its tear-down may fail besides
                results[event["id"]] = event["outcome"]
        elif kind == "done":
            self._done[event["chapter"]] += 1
            if self._done[event["chapter"]] == self._total[event["chapter"]]:
                self._end_chapter(event["chapter"])

    def _end_chapter(self, chapter: str) -> None:
        if self._live is not None or self._quiet:
            return
        counts = Counter(self._outcomes.get(chapter, {}).values())
        said = ", ".join(f"{counts[one]} {one}" for one in Outcome if counts[one])
        self._console.print(
            f"{chapter}: {said} ({time.monotonic() - self._begin:.0f} s)", soft_wrap=True
        )

    def _failures(self) -> int:
        return sum(
            outcome == Outcome.FAILED
            for results in self._outcomes.values()
            for outcome in results.values()
        )

    def _line(self) -> RenderableType:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        for settings in ({}, {}, {"ratio": 1}, {}, {}, {}):
            table.add_column(no_wrap=True, overflow="ellipsis", **settings)  # type: ignore[arg-type]
        chapter, test = self._at or (self._name, "starting")
        seconds = int(time.monotonic() - self._begin)
        failures = self._failures()
        table.add_row(
            self._spinner(Spinner),
            Text(chapter, "bold"),
            Text(test),
            f"{self._done.total()} of {self._total.total()}" if self._total else "",
            Text(f"{failures} failed", "bold red" if failures else "dim"),
            f"{seconds // 60}:{seconds % 60:02}",
        )
        return table

    def _spinner(self, make: Any) -> Any:
        if not hasattr(self, "_spin"):
            self._spin = make("dots")
        return self._spin


def render(report: Report, files: tuple[Path, ...], to: Console) -> None:
    """Show what came of a run; the verdict is last."""
    _render_chapters(report, to)
    for results in report.chapters().values():
        for result in results:
            if result.outcome is Outcome.FAILED:
                _render_failure(result, to)
    _render_reasons(report, Outcome.FAILS_NEWER, "Newer than the version that counts", to)
    _render_reasons(report, Outcome.NOT_RUN, "Could not be tried here", to)
    _render_capabilities(report, to)
    _render_verdict(report, files, to)


def _render_chapters(report: Report, to: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    there = report.count()
    columns = [one for one in Outcome if there[one] or one in (Outcome.PASSED, Outcome.FAILED)]
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("CHAPTER", no_wrap=True)
    for outcome in columns:
        table.add_column(outcome.upper(), justify="right")
    table.add_column("TIME", justify="right", no_wrap=True)

    def row(title: str, results: list[Result], style: str) -> None:
        count = report.count(results)
        numbers = [
            Text(str(count[one]), _OUTCOME_STYLES[one] if count[one] else "dim") for one in columns
        ]
        seconds = sum(result.seconds for result in results)
        table.add_row(Text(title, style), *numbers, f"{seconds:.1f} s")

    chapters = report.chapters()
    for name, results in chapters.items():
        row(name, results, "cyan")
    if len(chapters) > 1:
        row("all", report.results, "bold")
    to.print(table)


def _render_failure(result: Result, to: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    to.print()
    to.print(Text.assemble(("FAILED ", "bold red"), (result.id, "bold"), f"  {result.title}"))
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True, style="dim")
    facts.add_column(overflow="fold")
    facts.add_row("chapter", result.chapter)
    if result.capability:
        facts.add_row("capability", f"{result.capability}, which the backend declares")
    facts.add_row("call", result.call)
    facts.add_row("expected", Text(result.expected, "green"))
    facts.add_row("got", Text(result.got, "red"))
    if result.advice:
        facts.add_row("look at", result.advice)
    to.print(Padding(facts, (0, 0, 0, 2)))


def _render_reasons(report: Report, outcome: Outcome, title: str, to: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    found = report.reasons(outcome)
    if not found:
        return
    to.print()
    to.print(Text(title, _OUTCOME_STYLES[outcome]))
    for what, reason in found:
        text = Text(f"{what}: {reason}", overflow="fold")
        to.print(Padding(text, (0, 0, 0, 2)))


def _render_capabilities(report: Report, to: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from rpc_backends_cli import grid
    from rpc_backends_testing.recording import WORDS

    capabilities = report.capabilities()
    if not capabilities:
        return
    to.print()
    to.print(Text("Capabilities", "bold"))
    table = grid("", "", title=False)
    for name, state in capabilities.items():
        table.add_row(name, Text(WORDS.get(state, state), _CAPABILITY_STYLES[state]))
    to.print(Padding(table, (0, 0, 0, 2)))


def _render_verdict(report: Report, files: tuple[Path, ...], to: Console) -> None:
    from rich.text import Text

    from rpc_backends_testing.recording import verdict

    to.print()
    to.print(Text(verdict(report), f"bold {_VERDICT_STYLES[report.verdict]}"))
    for file in files:
        to.print(Text(f"report: {file}", overflow="fold"), soft_wrap=True)
