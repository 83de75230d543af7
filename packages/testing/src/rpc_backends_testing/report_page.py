"""The report as a page: one HTML file that needs no other, for an author to publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from rpc_backends_testing.chapters import CHAPTERS
from rpc_backends_testing.results import Outcome, Report, Result

_TEMPLATES = Path(__file__).parent / "templates"

#: The class of each outcome in the style sheet.
_TONES = {
    Outcome.PASSED: "good",
    Outcome.FAILED: "bad",
    Outcome.FAILS_NEWER: "odd",
    Outcome.WORKS_UNDECLARED: "news",
    Outcome.NOT_DECLARED: "quiet",
    Outcome.EXCLUDED: "odd",
    Outcome.NOT_APPLICABLE: "quiet",
    Outcome.NOT_RUN: "odd",
}
_CAPABILITY_TONES = {
    "kept": "good",
    "kept, tested in part": "odd",
    "broken": "bad",
    "declared, not tested": "odd",
    "works, not declared": "news",
    "not declared": "quiet",
}
_UNTESTED = (Outcome.NOT_APPLICABLE, Outcome.NOT_RUN)
_VERDICT_TONES = {
    "conforms": "good",
    "conforms with exclusions": "good",
    "does not conform": "bad",
    "partial": "odd",
}


def render(report: Report) -> str:
    """Return the page of ``report``."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        failures=_of(report, Outcome.FAILED),
        newer=_of(report, Outcome.FAILS_NEWER),
        titles={chapter.name: chapter.title for chapter in CHAPTERS},
        chapters=[
            (name, results, _row(report, results)) for name, results in report.chapters().items()
        ],
        total=_row(report, report.results),
        excluded=_of(report, Outcome.EXCLUDED),
        tested=sum(result.outcome not in _UNTESTED for result in report.results),
        outcomes=_outcomes(report),
        not_run=report.count()[Outcome.NOT_RUN],
        not_applicable=report.count()[Outcome.NOT_APPLICABLE],
        columns=_columns(report),
        capabilities=[_capability(report, *item) for item in report.capabilities().items()],
        tones=_TONES,
        verdict_tone="odd" if report.is_qualified else _VERDICT_TONES[report.conclusion],
        seconds=_seconds,
    )


def _columns(report: Report) -> list[Outcome]:
    """Return the outcomes to count: passed, failed, and others that occurred."""
    there = report.count()
    return [
        outcome
        for outcome in Outcome
        if there[outcome] or outcome in (Outcome.PASSED, Outcome.FAILED)
    ]


def _outcomes(report: Report) -> str:
    """Return how many of the tested requirements have each outcome, in words."""
    columns = [column for column in _columns(report) if column not in _UNTESTED]
    texts = (f"{report.count()[column]} {column}" for column in columns)
    return " · ".join(text.replace(" ", "\N{NO-BREAK SPACE}") for text in texts)


def _of(report: Report, outcome: Outcome) -> list[Result]:
    return [
        result
        for results in report.chapters().values()
        for result in results
        if result.outcome is outcome
    ]


def _row(report: Report, results: list[Result]) -> dict[str, Any]:
    """Return a row of the table of chapters."""
    return {
        "count": report.count(results),
        "seconds": _seconds(sum(result.seconds for result in results)),
    }


def _capability(report: Report, name: str, state: str) -> dict[str, Any]:
    """Return a row of the table of capabilities."""
    results = [result for result in report.results if result.capability == name]
    tested = [result for result in results if result.outcome not in _UNTESTED]
    met = [
        result for result in tested if result.outcome in (Outcome.PASSED, Outcome.WORKS_UNDECLARED)
    ]
    asked = f"{len(met)} of {len(tested)}"
    if not tested:
        asked = "not run" if results else "none in this run"
    return {
        "name": name,
        "state": state,
        "tone": _CAPABILITY_TONES[state],
        "advice": "it can be declared" if state == "works, not declared" else "",
        "asked": asked,
    }


def _seconds(value: float) -> str:
    """Return a duration as text: seconds, or minutes and seconds from one minute on."""
    if value < 60:
        return f"{value:.1f} s"
    return f"{int(value) // 60} min {int(value) % 60:02} s"
