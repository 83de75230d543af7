"""docs/backends.md is generated from the reports in docs/reports."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from rpc_backends_core.spi.inspection import default_registry
from rpc_backends_testing import badge

DOCS = Path(__file__).parents[2] / "docs"
INDEX = runpy.run_path(str(DOCS / "_ext" / "backend_index.py"))
OURS = ("FAULTY_TENSORPIPE", "TENSORPIPE", "UCX", "ZEROMQ")


def test_the_page_agrees_with_the_reports() -> None:
    """If the test fails, run `python docs/_ext/backend_index.py`."""
    assert (DOCS / "backends.md").read_text() == INDEX["page"](INDEX["reports"]())


def test_there_is_a_report_of_each_of_our_backends() -> None:
    assert {report.backend["name"] for report in INDEX["reports"]()} >= set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_our_backends_conform_with_what_they_declare(name: str) -> None:
    """If the test fails because a backend's declaration has changed, run `make reports`."""
    (report,) = [each for each in INDEX["reports"]() if each.backend["name"] == name]

    assert report.conclusion == "conforms"
    assert set(report.declared) == set(default_registry().backend(name).capabilities)
    assert "broken" not in report.capabilities().values()


def test_each_badge_agrees_with_its_report() -> None:
    for report in INDEX["reports"]():
        file = DOCS / "reports" / f"{report.backend['name']}.svg"
        assert file.read_text() == badge.svg(report), file.name


def test_a_published_report_has_no_traceback() -> None:
    for report in INDEX["reports"]():
        assert report == INDEX["published"](report)


def test_the_page_is_in_the_index_of_the_site() -> None:
    assert "\nbackends\n" in (DOCS / "index.md").read_text()
