"""From the results of a run to its report: the summary that is printed, and the files."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_core import __version__
from rpc_backends_core.testing import census
from rpc_backends_core.testing.chapters import CHAPTERS
from rpc_backends_core.testing.results import Outcome, Report, Result
from rpc_backends_core.testing.suite import SUITE_VERSION


def reports(
    config: pytest.Config, results: Iterable[dict[str, Any]], started: float
) -> Iterator[Report]:
    """Yield a report for each backend that was tested.

    :param results: what `judging` has written onto pytest's reports.
    :param started: when, in seconds since the epoch.
    """
    by_backend: dict[str, dict[str, Result]] = {}
    about: dict[str, dict[str, Any]] = {}
    for data in results:
        rest = {
            key: value for key, value in data.items() if key not in ("backend", "suite_version")
        }
        result = Result.from_json(rest)
        mine = by_backend.setdefault(data["backend"], {})
        before = mine.get(result.id)
        # A test that passes, and whose tear-down fails, is reported twice.
        if before is None or before.outcome is not Outcome.FAILED:
            mine[result.id] = result
        about[data["backend"]] = data
    for name, found in by_backend.items():
        yield Report(
            suite_version=SUITE_VERSION,
            counted_version=about[name]["suite_version"],
            backend=_backend(name, config),
            machine=_machine(),
            declared=_declared(name),
            started=datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
            seconds=round(time.time() - started, 1),
            complete=_is_complete(found),
            results=list(found.values()),
        )


def summary(report: Report) -> Iterator[str]:
    """Yield the lines that say, by chapter, what came out."""
    titles = {chapter.name: chapter.title for chapter in CHAPTERS}
    yield f"{'':12}{'passed':>7}{'failed':>7}{'other':>7}"
    for name, results in report.chapters().items():
        yield f"{name:12}{_numbers(report, results)}   {titles.get(name, '')}"
    yield f"{'total':12}{_numbers(report, report.results)}"
    yield ""
    for result in report.results:
        if result.outcome is Outcome.FAILED:
            yield f"FAILED {result.id}: {result.title}"
            yield f"    {result.call}: expected {result.expected}; got {result.got}"
        elif result.outcome is Outcome.FAILS_NEWER:
            yield f"newer  {result.id}: {result.reason}"
    for name, word in report.capabilities().items():
        yield f"capability {name}: {word}"
    for result in report.results:
        if result.outcome is Outcome.NOT_RUN:
            yield f"not run: {result.id}: {result.reason}"
    held = "" if report.counted_version == SUITE_VERSION else f", held to {report.counted_version}"
    yield f"{report.backend['name']} {report.verdict} (suite version {SUITE_VERSION}{held})"


def _numbers(report: Report, results: Iterable[Result]) -> str:
    count = report.count(results)
    passed, failed = count.pop(Outcome.PASSED, 0), count.pop(Outcome.FAILED, 0)
    return f"{passed:>7}{failed:>7}{count.total():>7}"


def write(report: Report, file: Path) -> tuple[Path, Path]:
    """Write the report as JSON and as a page of HTML beside it, and return where they are."""
    from rpc_backends_core.testing.report_page import render

    as_json, as_html = file.with_suffix(".json"), file.with_suffix(".html")
    as_json.parent.mkdir(parents=True, exist_ok=True)
    as_json.write_text(json.dumps(report.to_json(), indent=2) + "\n")
    as_html.write_text(render(report))
    return as_json, as_html


def _declared(name: str) -> list[str]:
    from rpc_backends_core.process import default_registry

    return sorted(default_registry().backend(name).capabilities)


def _backend(name: str, config: pytest.Config) -> dict[str, Any]:
    from rpc_backends_core.process import default_registry

    registry = default_registry()
    entry = registry.entry(name)
    record = entry.record()
    return {
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "description": registry.load(entry).description,
        "options": dict(config.getoption("rpc_option") or {}),
    }


def _machine() -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available()
    return {
        "rpc-backends-core": __version__,
        "torch": torch.__version__,
        "python": sys.version.partition(" ")[0],
        "platform": platform.platform(),
        "processors": len(os.sched_getaffinity(0)),
        "accelerators": torch.cuda.device_count() if cuda else 0,
    }


def _is_complete(found: dict[str, Result]) -> bool:
    return census.requirements().keys() <= found.keys()
