"""doctor's findings as data, and their output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

#: ``note``: a deliberate setting; ``warning``: may cause trouble; ``problem``: broken.
Level = Literal["ok", "note", "warning", "problem"]

_STYLES = {"ok": "green", "note": "blue", "warning": "yellow", "problem": "bold red"}
_INDENT = 2
_LEVEL_WIDTH = 7
_ABOUT_WIDTH = 18


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    :ivar about: its subject, in a word or two.
    :ivar text: what was found and, if something is wrong, what to do.
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
    """Return all sections as JSON data, and whether nothing is broken."""
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
    """Print one section: one line per finding, or an indented block if it does not fit."""
    from rich.padding import Padding
    from rich.text import Text

    to.print(Text(section.title, "bold"))
    width = max([_ABOUT_WIDTH, *(len(finding.about) for finding in section.findings)])
    for finding in section.findings:
        level = Text(f"{finding.level:{_LEVEL_WIDTH}}  ", _STYLES[finding.level])
        line = Text.assemble(level, f"{finding.about:{width}}  ", finding.text)
        if "\n" not in finding.text and _INDENT + line.cell_len <= to.width:
            to.print(Padding(line, (0, 0, 0, _INDENT)))
            continue
        to.print(Padding(Text.assemble(level, finding.about), (0, 0, 0, _INDENT)))
        block = Text(finding.text, overflow="fold")
        to.print(Padding(block, (0, 0, 0, _INDENT + _LEVEL_WIDTH + 2)))
    to.print()


def render_verdict(report: dict[str, Any], to: Console) -> None:
    """Print the last line."""
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
    """Format a duration; below one second, in milliseconds."""
    return f"{value:.2f} s" if value >= 0.9995 else f"{value * 1000:.3g} ms"


def limit_note(limit: float, *, timed_out: bool) -> str:
    """Return a line that says how to change a time limit; empty if it was not exceeded."""
    return f"\nThe limit was {limit:g} s; change it with --timeout." if timed_out else ""
