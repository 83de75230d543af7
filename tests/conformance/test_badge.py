"""The badge of a report says its verdict, as a picture and for shields.io."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from rpc_backends_testing import badge, command
from rpc_backends_testing.results import Outcome, Report, Result

OUTCOMES = {
    "conforms": (Outcome.PASSED, True),
    "conforms with exclusions": (Outcome.EXCLUDED, True),
    "partial": (Outcome.PASSED, False),
    "does not conform": (Outcome.FAILED, True),
}


def report(verdict: str) -> Report:
    outcome, complete = OUTCOMES[verdict]
    facts: dict[str, Any] = {"advice": "", "capability": None, "since": 1, "seconds": 0.5}
    return Report(
        suite_version=2,
        counted_version=1,
        backend={"name": "PIGEON"},
        machine={},
        declared=[],
        started="2026-11-21T15:00:00+00:00",
        seconds=61.0,
        complete=complete,
        results=[Result("calls.a", "calls", "it calls", outcome=outcome, **facts)],
    )


@pytest.mark.parametrize("verdict", OUTCOMES)
def test_a_badge_says_the_verdict_and_the_version(verdict: str, tmp_path: Path) -> None:
    picture = ElementTree.parse(badge.write(report(verdict), tmp_path / "new" / "b.svg")).getroot()
    data = json.loads(badge.write(report(verdict), tmp_path / "b.json").read_text())

    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["rpc-backends", f"{verdict} (suite 1)"]
    assert (data["label"], data["message"]) == tuple(texts)
    assert data["schemaVersion"] == 1


def test_only_a_backend_that_conforms_has_a_green_badge() -> None:
    colours = {
        verdict: json.loads(badge.endpoint(report(verdict)))["color"] for verdict in OUTCOMES
    }

    assert len(set(colours.values())) == len(OUTCOMES)
    assert colours["conforms"] == "2e7d32"


def test_a_badge_of_another_kind_is_refused_before_the_run() -> None:
    done = CliRunner().invoke(command.command, ["TENSORPIPE", "--badge", "badge.png"])

    assert done.exit_code == 2
    assert "--badge is 'badge.png'; the name must end with .svg or .json." in done.output
