"""Each broken backend fails the chapter that it breaks, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from rpc_broken_backends import Broken, all_broken

# The first test runs all broken backends.
pytestmark = [pytest.mark.slow, pytest.mark.whole_suite, pytest.mark.timeout(3600)]

BROKEN = all_broken()
#: For each chapter, the first backend that breaks it.
FIRST = {broken.chapter: name for name, broken in reversed(BROKEN.items())}


@pytest.mark.parametrize(
    "broken_name",
    [
        name if name in FIRST.values() else pytest.param(name, marks=pytest.mark.thorough)
        for name in BROKEN
    ],
)
def test_a_broken_backend_fails_its_chapter(
    broken_name: str, reports_of_broken: dict[str, dict[str, Any]]
) -> None:
    report = reports_of_broken[broken_name]
    passed = {result["chapter"] for result in report["results"] if result["outcome"] == "passed"}
    assert BROKEN[broken_name].spreads or BROKEN[broken_name].sound in passed
    _assert_fails_only_where_it_is_broken(broken_name, report)


@pytest.mark.thorough
@pytest.mark.parametrize("broken_name", [name for name in BROKEN if not BROKEN[name].spreads])
def test_a_broken_backend_passes_all_other_chapters(
    broken_name: str, whole_reports_of_broken: dict[str, dict[str, Any]]
) -> None:
    _assert_fails_only_where_it_is_broken(broken_name, whole_reports_of_broken[broken_name])


def _assert_fails_only_where_it_is_broken(broken_name: str, report: dict[str, Any]) -> None:
    broken: Broken = BROKEN[broken_name]
    failed = [result for result in report["results"] if result["outcome"] == "failed"]
    shown = "\n".join(f"{r['id']}: {r['call']}: {r['expected']}; {r['got']}" for r in failed)
    assert {result["chapter"] for result in failed} == {broken.chapter}, shown
    assert report["verdict"] == "does not conform"
    assert report["status"] == 1
    assert all(result["call"] and result["expected"] and result["got"] for result in failed), shown
    start, words = broken.tells
    assert any(
        result["id"].startswith(start)
        and words in f"{result['call']} {result['expected']} {result['got']}"
        for result in failed
    ), shown
