"""The report that ``rpc-backends conformance`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rpc_backends_testing.results import Outcome, Report, Result

if TYPE_CHECKING:
    from rich.console import Console

_OUTCOME_STYLES = {
    Outcome.PASSED: "green",
    Outcome.FAILED: "bold red",
    Outcome.NOT_DECLARED: "dim",
    Outcome.WORKS_UNDECLARED: "cyan",
    Outcome.FAILS_NEWER: "yellow",
    Outcome.EXCLUDED: "yellow",
    Outcome.NOT_APPLICABLE: "dim",
    Outcome.NOT_RUN: "yellow",
}
_CAPABILITY_STYLES = {
    "kept": "green",
    "kept, tested in part": "yellow",
    "broken": "bold red",
    "declared, not tested": "yellow",
    "works, not declared": "bold cyan",
    "not declared": "dim",
}
_VERDICT_STYLES = {
    "conforms": "green",
    "conforms with exclusions": "green",
    "does not conform": "red",
    "partial": "yellow",
}


def render(report: Report, files: tuple[Path, ...], to: Console) -> None:
    """Print a report; the verdict is last."""
    _render_chapters(report, to)
    for results in report.chapters().values():
        for result in results:
            if result.outcome is Outcome.FAILED:
                _render_failure(result, to)
    _render_reasons(report, Outcome.FAILS_NEWER, "Newer than the version that counts", to)
    _render_reasons(report, Outcome.EXCLUDED, "Excluded by the backend", to)
    _render_reasons(report, Outcome.NOT_APPLICABLE, "Does not apply", to)
    _render_reasons(report, Outcome.NOT_RUN, "Not run here", to)
    _render_capabilities(report, to)
    _render_verdict(report, files, to)


def _render_chapters(report: Report, to: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    there = report.count()
    columns = [
        outcome
        for outcome in Outcome
        if there[outcome] or outcome in (Outcome.PASSED, Outcome.FAILED)
    ]
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("CHAPTER", no_wrap=True)
    for outcome in columns:
        table.add_column(outcome.upper(), justify="right")
    table.add_column("TIME", justify="right", no_wrap=True)

    def row(title: str, results: list[Result], style: str) -> None:
        count = report.count(results)
        numbers = [
            Text(str(count[column]), _OUTCOME_STYLES[column] if count[column] else "dim")
            for column in columns
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

    reasons = report.reasons(outcome)
    if not reasons:
        return
    to.print()
    to.print(Text(title, _OUTCOME_STYLES[outcome]))
    for what, reason in reasons:
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
    style = "yellow" if report.is_qualified else _VERDICT_STYLES[report.conclusion]
    to.print(Text(verdict(report), f"bold {style}"), soft_wrap=True)
    for file in files:
        to.print(Text(f"report: {file}", overflow="fold"), soft_wrap=True)
