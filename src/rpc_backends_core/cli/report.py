"""What doctor finds, as data, and how it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

#: ``note``: somebody chose it so; ``warning``: may do harm elsewhere; ``problem``: broken.
Level = Literal["ok", "note", "warning", "problem"]

_STYLES = {"ok": "green", "note": "blue", "warning": "yellow", "problem": "bold red"}
_INDENT = 2
_LEVEL_WIDTH = 7
_ABOUT_WIDTH = 18


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    :ivar about: what, in a word or two.
    :ivar text: what was found and, where something is wrong, what to do.
    :ivar data: the same for programs; times are in seconds.
    """

    level: Level
    about: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """Findings that belong together.

    :ivar key: the section's name in JSON.
    """

    key: str
    title: str
    findings: list[Finding]


def summary(sections: Iterable[Section]) -> dict[str, Any]:
    """Return everything as what JSON can hold, and whether all is well."""
    sections = list(sections)
    counts = Counter(finding.level for section in sections for finding in section.findings)
    return {
        "ok": not counts["problem"],
        "problems": counts["problem"],
        "warnings": counts["warning"],
        "sections": {
            section.key: [asdict(finding) for finding in section.findings] for section in sections
        },
    }


def render(section: Section, to: Console) -> None:
    """Show one section."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(width=_LEVEL_WIDTH)
    table.add_column(min_width=_ABOUT_WIDTH, no_wrap=True)
    table.add_column(overflow="fold")
    for finding in section.findings:
        table.add_row(
            Text(finding.level, _STYLES[finding.level]), Text(finding.about), Text(finding.text)
        )
    to.print(Text(section.title, "bold"))
    to.print(Padding(table, (0, 0, 1, _INDENT)))


def render_verdict(report: dict[str, Any], to: Console) -> None:
    """Show the last line."""
    from rich.text import Text

    problems, warnings = report["problems"], report["warnings"]
    if problems:
        to.print(Text(_count(problems, "problem"), "bold red"), end="")
    else:
        to.print(Text("Nothing is broken", "bold green"), end="")
    to.print(f", {_count(warnings, 'warning')}." if warnings else ".")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def seconds(value: float) -> str:
    """Return a time in words: milliseconds below one second."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"
