"""The report of a run: its data, its summary and its page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rpc_backends_testing import badge, command
from rpc_backends_testing.recording import summary, verdict
from rpc_backends_testing.report_page import render
from rpc_backends_testing.results import Outcome, Report, Result, settle


def result(
    name: str, outcome: Outcome = Outcome.PASSED, capability: str | None = None, **more: Any
) -> Result:
    facts: dict[str, Any] = {
        "id": name,
        "chapter": name.partition(".")[0],
        "title": f"title of {name}",
        "advice": "",
        "capability": capability,
        "since": 1,
        "outcome": outcome,
        "seconds": 0.5,
    }
    return Result(**{**facts, **more})


def failed(name: str, **more: Any) -> Result:
    facts = {
        "call": "rpc_sync('a', f)",
        "expected": "<two>",
        "got": "3 & 4",
        "detail": "<b>trace</b>",
    }
    return result(name, Outcome.FAILED, **{**facts, **more})


def report(*results: Result, **more: Any) -> Report:
    facts: dict[str, Any] = {
        "suite_version": 3,
        "counted_version": 3,
        "backend": {
            "name": "PIGEON",
            "distribution": "rpc-backend-pigeon",
            "version": "1.2",
            "description": "messages by <bird>",
            "options": {"birds": 3},
        },
        "machine": {"rpc-backends-core": "0.1.0", "torch": "2.13.0", "processors": 2},
        "declared": [],
        "started": "2026-11-21T15:00:00+00:00",
        "seconds": 61.0,
        "complete": True,
        "results": list(results),
    }
    return Report(**{**facts, **more})


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("works", "declared", "since", "outcome"),
    [
        (True, True, 1, Outcome.PASSED),
        (True, True, 9, Outcome.PASSED),
        (False, True, 2, Outcome.FAILED),
        (False, True, 3, Outcome.FAILS_NEWER),
        (True, False, 1, Outcome.WORKS_UNDECLARED),
        (False, False, 1, Outcome.NOT_DECLARED),
        (False, False, 3, Outcome.NOT_DECLARED),
    ],
)
def test_the_outcome_depends_on_result_and_declaration(
    works: bool, declared: bool, since: int, outcome: Outcome
) -> None:
    assert settle(works, declared=declared, since=since, suite_version=2) is outcome


@pytest.mark.parametrize(("works", "outcome"), [(True, Outcome.FAILED), (False, Outcome.EXCLUDED)])
@pytest.mark.parametrize("declared", [True, False])
def test_an_excluded_requirement_has_to_fail(works: bool, outcome: Outcome, declared: bool) -> None:
    settled = settle(works, declared=declared, since=1, suite_version=2, excluded=True)
    assert settled is outcome


@pytest.mark.parametrize(
    ("results", "complete", "expected"),
    [
        ([result("a.x")], True, "conforms"),
        ([result("a.x")], False, "partial"),
        ([result("a.x"), failed("a.y")], True, "does not conform"),
        ([failed("a.y")], False, "does not conform"),
        ([result("a.x", Outcome.FAILS_NEWER)], True, "conforms"),
        ([result("a.x", Outcome.NOT_DECLARED, "c")], True, "conforms"),
        ([result("a.x", Outcome.EXCLUDED)], True, "conforms with exclusions"),
        ([result("a.x", Outcome.EXCLUDED), failed("a.y")], True, "does not conform"),
    ],
)
def test_the_verdict_depends_on_outcomes_and_completeness(
    results: list[Result], complete: bool, expected: str
) -> None:
    assert report(*results, complete=complete).verdict == expected


@pytest.mark.parametrize(
    ("results", "declared", "expected"),
    [
        ([result("transport.x", Outcome.NOT_RUN)], [], "conforms; transport not tested"),
        (
            [result("transport.x"), result("transport.y", Outcome.NOT_RUN)],
            [],
            "conforms; transport tested in part",
        ),
        (
            [result("devices.x", Outcome.NOT_RUN, "devices")],
            ["devices"],
            "conforms; devices not tested",
        ),
        ([result("devices.x", Outcome.NOT_RUN, "devices")], [], "conforms"),
        ([result("transport.x", Outcome.NOT_APPLICABLE)], [], "conforms"),
        ([result("torch.x", Outcome.NOT_RUN)], [], "conforms"),
        (
            [
                result("transport.x", Outcome.NOT_RUN),
                result("data.x", Outcome.EXCLUDED),
                result("data.y", Outcome.NOT_RUN),
                result("security.x", Outcome.NOT_RUN, "encryption"),
            ],
            ["encryption"],
            "conforms with exclusions; transport, encryption not tested; data tested in part",
        ),
        ([failed("a.y"), result("b.x", Outcome.NOT_RUN)], [], "does not conform"),
    ],
)
def test_the_verdict_names_what_counts_and_was_not_tested(
    results: list[Result], declared: list[str], expected: str
) -> None:
    made = report(*results, declared=declared)

    assert made.verdict == expected
    assert made.to_json()["verdict"] == expected
    assert verdict(made) == f"PIGEON {expected} (suite version 3)"
    assert badge.message(made) == f"{expected} (suite 3)"
    assert f"<title>PIGEON {expected}</title>" in render(made)
    assert command._status(made, strict=False) == (1 if expected.startswith("does") else 0)
    strict = {"conforms": 0, "does not conform": 1}.get(expected, 3)
    assert command._status(made, strict=True) == strict


def test_a_qualified_verdict_has_a_badge_of_its_own_colour() -> None:
    plain, qualified = (
        json.loads(badge.endpoint(report(result("transport.x", outcome))))["color"]
        for outcome in (Outcome.PASSED, Outcome.NOT_RUN)
    )

    assert plain != qualified


def test_a_report_counts_what_was_not_tested() -> None:
    made = report(result("transport.x"), result("transport.y", Outcome.NOT_RUN, reason="no socket"))

    assert made.to_json()["not_tested"] == {"transport": {"not run": 1, "of": 2}}


def test_a_stopped_run_is_partial() -> None:
    """It may have stopped among torch's tests, after all requirements of the suite."""
    stopped = report(result("a.x"), complete=True, stopped="interrupted during test_y")

    assert stopped.verdict == "partial"


@pytest.mark.parametrize(
    ("declared", "outcomes", "state"),
    [
        (True, [Outcome.PASSED, Outcome.PASSED], "kept"),
        (True, [Outcome.PASSED, Outcome.NOT_APPLICABLE], "kept"),
        (True, [Outcome.PASSED, Outcome.NOT_RUN], "kept, tested in part"),
        (True, [Outcome.PASSED, Outcome.FAILED], "broken"),
        (True, [Outcome.NOT_RUN], "declared, not tested"),
        (True, [], "declared, not tested"),
        (False, [Outcome.WORKS_UNDECLARED, Outcome.WORKS_UNDECLARED], "works, not declared"),
        (False, [Outcome.WORKS_UNDECLARED, Outcome.NOT_DECLARED], "not declared"),
        (False, [Outcome.NOT_RUN], "not declared"),
    ],
)
def test_the_state_of_a_capability_depends_on_outcomes(
    declared: bool, outcomes: list[Outcome], state: str
) -> None:
    results = [result(f"life.{n}", outcome, "c") for n, outcome in enumerate(outcomes)]

    assert report(*results, declared=["c"] if declared else []).capabilities() == {"c": state}


def test_unknown_chapters_come_last() -> None:
    made = report(*map(result, ("zzz.a", "life.a", "calls.a", "data.a", "calls.b")))

    assert list(made.chapters()) == ["calls", "data", "life", "zzz"]
    assert [chapter.id for chapter in made.chapters()["calls"]] == ["calls.a", "calls.b"]


def test_a_report_comes_back_from_its_json() -> None:
    made = report(result("calls.a"), failed("data.b"), declared=["c"], complete=False)

    data = json.loads(json.dumps(made.to_json()))

    assert Report.from_json(data) == made
    assert data["verdict"] == "does not conform"
    assert data["chapters"] == {"calls": {"passed": 1}, "data": {"failed": 1}}
    assert data["capabilities"] == {"c": "declared, not tested"}


# --- the summary ---------------------------------------------------------------------------------


def test_the_summary_counts_outcomes_by_chapter() -> None:
    lines = list(
        summary(
            report(
                result("calls.a"),
                failed("calls.b"),
                result("life.c", Outcome.WORKS_UNDECLARED, "rejoin"),
                result("life.d", Outcome.NOT_RUN, reason="no accelerator"),
                result("life.e", Outcome.FAILS_NEWER, reason="new in version 3"),
                counted_version=2,
            )
        )
    )

    numbers = {line.split()[0]: line.split()[1:5] for line in lines if line[:5].strip()}
    assert lines[0].split() == ["passed", "failed", "other", "not", "run"]
    assert numbers["calls"] == ["1", "1", "0", "0"]
    assert numbers["life"] == ["0", "0", "2", "1"]
    assert numbers["all"] == ["1", "1", "2", "1"]
    begin = lines.index("FAILED calls.b: title of calls.b")
    assert [line.split(None, 1)[1] for line in lines[begin + 1 : begin + 4]] == [
        "rpc_sync('a', f)",
        "<two>",
        "3 & 4",
    ]
    assert "  life.d: no accelerator" in lines
    assert "  life.e: new in version 3" in lines
    assert any(re.match(r"capability rejoin +works, and is not declared", line) for line in lines)
    assert lines[-1] == "PIGEON does not conform (suite version 3; only version 2 counts)"


def test_the_last_line_names_a_partial_run() -> None:
    assert verdict(report(complete=False)) == (
        "PIGEON: nothing failed; only a part ran (suite version 3)"
    )
    assert verdict(report(failed("a.b"), complete=False)) == (
        "PIGEON does not conform; only a part of the suite ran (suite version 3)"
    )


# --- the page ------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Parses a page: its texts by tag, and its attributes. All tags must be closed."""

    VOID = ("meta", "br", "link", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append((self.open[-1] if self.open else "", " ".join(data.split())))

    def texts(self, tag: str) -> list[str]:
        return [text for where, text in self.words if where == tag]


EVERYTHING = report(
    result("calls.a"),
    failed("calls.b", advice="the pipe"),
    result("data.c", Outcome.FAILS_NEWER, call="newer()", expected="1", got="2"),
    result("life.d", Outcome.WORKS_UNDECLARED, "rejoin"),
    result("life.e", Outcome.NOT_DECLARED, "devices", reason="devices is not declared: no"),
    result("life.f", Outcome.NOT_RUN, "device-maps", reason="no accelerator"),
    declared=["device-maps"],
    counted_version=2,
)


def test_the_page_has_everything() -> None:
    page = Page(render(EVERYTHING))
    everything = " ".join(text for _, text in page.words)

    assert page.texts("title") == ["PIGEON does not conform"]
    for text in (
        "rpc-backend-pigeon 1.2",
        "messages by <bird>",
        "birds=3",
        "version 3; only version 2 counts",
        "5 tested in 1 min 01 s",
        "1 failed · 1 not declared",
        "; 1 not run",
        "torch 2.13.0",
        "processors 2",
        "2026-11-21 15:00:00 UTC",
        "1 min 01 s",
        "works, not declared",
        "no accelerator",
        "the pipe",
        *(f"title of {result.id}" for result in EVERYTHING.results),
    ):
        assert text in everything, text


def test_the_page_begins_with_the_failures() -> None:
    text = render(EVERYTHING)
    page = Page(text)

    assert page.texts("h2")[0] == "Failures"
    assert text.index("title of calls.b") < text.index("title of calls.a")
    begin = text.index('id="calls.b"')
    card = Page(text[text.rindex("<article", 0, begin) : text.index("</article>", begin) + 10])
    assert card.texts("dt") == ["call", "expected", "got", "look at"]
    assert card.texts("code")[-1:] == ["rpc_sync('a', f)"]
    assert card.texts("dd") == ["<two>", "3 & 4", "the pipe"]
    assert card.texts("pre") == ["<b>trace</b>"]
    assert ("details", "open", "") not in card.attributes


def test_the_page_loads_nothing() -> None:
    text = render(EVERYTHING)

    assert not [
        attribute
        for attribute in Page(text).attributes
        if attribute[1] in ("src", "href", "srcset")
    ]
    assert not re.search(r"https?://|@import|url\(|<script", text)
    assert "prefers-color-scheme: dark" in text


def test_a_conforming_page_has_no_empty_parts() -> None:
    page = Page(render(report(result("calls.a"))))

    assert page.texts("title") == ["PIGEON conforms"]
    assert page.texts("h2") == ["Chapters", "Requirements"]
    assert [text for text in page.texts("th") if text in list(Outcome)] == ["passed", "failed"]


@pytest.mark.parametrize("option", ["--report", "--badge"])
def test_a_report_is_shown_if_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    made = report(result("calls.x"))
    monkeypatch.setattr(command, "_run", lambda *_: (made.to_json(), 0))
    (tmp_path / "full.json").symlink_to("/dev/full")
    for more in ((), ("--json",)):
        arguments = ["PIGEON", option, str(tmp_path / "full.json"), *more]
        ended = CliRunner().invoke(command.command, arguments)

        assert ended.exit_code == 1
        assert "PIGEON" in ended.output
        assert "Error: the report cannot be written: " in ended.output
        assert "No space left on device" in ended.output
