"""Makes the report of a run: the printed summary, and the files."""

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
from rpc_backends_testing import manifest
from rpc_backends_testing.chapters import CHAPTERS
from rpc_backends_testing.results import Outcome, Report, Result
from rpc_backends_testing.suite import SUITE_VERSION


def reports(
    config: pytest.Config, results: Iterable[dict[str, Any]], started: float, stopped: str = ""
) -> Iterator[Report]:
    """Yield a report for each backend that was tested.

    :param results: the results that `outcomes` has added to pytest's reports.
    :param started: the start of the run, in seconds since the epoch.
    :param stopped: why the run ended before its last test; empty if it did not.
    """
    # This import registers torch's own backends. With pytest-xdist, this process has run no test and has
    # not imported it yet.
    import torch.distributed.rpc  # noqa: F401

    by_backend: dict[str, dict[str, Result]] = {}
    about: dict[str, dict[str, Any]] = {}
    for data in results:
        rest = {
            key: value for key, value in data.items() if key not in ("backend", "suite_version")
        }
        result = Result.from_json(rest)
        mine = by_backend.setdefault(data["backend"], {})
        before = mine.get(result.id)
        # A test is reported twice if it passes and its tear-down fails.
        if before is None or before.outcome is not Outcome.FAILED:
            mine[result.id] = result
        about[data["backend"]] = data
    for name, of_backend in by_backend.items():
        yield Report(
            suite_version=SUITE_VERSION,
            counted_version=about[name]["suite_version"],
            backend=_backend(name, config),
            machine=_machine(),
            declared=_declared(name),
            started=datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
            seconds=round(time.time() - started, 1),
            complete=_is_complete(of_backend),
            stopped=stopped,
            results=list(of_backend.values()),
        )


def summary(report: Report) -> Iterator[str]:
    """Yield the lines of the summary."""
    titles = {chapter.name: chapter.title for chapter in CHAPTERS}
    yield f"{'':10}{'passed':>8}{'failed':>8}{'other':>8}{'not run':>8}"
    for name, results in report.chapters().items():
        yield f"{name:10}{_numbers(report, results)}   {titles.get(name, '')}".rstrip()
    yield f"{'all':10}{_numbers(report, report.results)}"
    for result in report.results:
        if result.outcome is Outcome.FAILED:
            yield ""
            yield f"FAILED {result.id}: {result.title}"
            yield f"  call      {result.call}"
            yield f"  expected  {result.expected}"
            yield f"  got       {result.got}"
    yield from _others(report, Outcome.FAILS_NEWER, "Newer than the version that counts")
    yield from _others(report, Outcome.EXCLUDED, "Excluded by the backend")
    yield from _others(report, Outcome.NOT_APPLICABLE, "Does not apply")
    yield from _others(report, Outcome.NOT_RUN, "Not run here")
    capabilities = report.capabilities()
    if capabilities:
        yield ""
    for name, state in capabilities.items():
        yield f"capability {name:20} {WORDS.get(state, state)}".rstrip()
    yield ""
    yield verdict(report)


#: The words of a summary for a capability, if they differ from its state.
WORDS = {"works, not declared": "works, and is not declared: declare it"}


def verdict(report: Report) -> str:
    """Return the last line of a summary."""
    version = f"suite version {report.suite_version}"
    if report.counted_version != report.suite_version:
        version += f"; only version {report.counted_version} counts"
    name = report.backend["name"]
    if report.stopped:
        version += f"; {report.stopped}"
    if report.conclusion == "partial":
        return f"{name}: nothing failed; only a part ran ({version})"
    part = "" if report.complete else "; only a part of the suite ran"
    return f"{name} {report.verdict}{part} ({version})"


def _others(report: Report, outcome: Outcome, title: str) -> Iterator[str]:
    reasons = report.reasons(outcome)
    if reasons:
        yield ""
        yield f"{title}:"
    for what, reason in reasons:
        yield f"  {what}: {reason}"


def _numbers(report: Report, results: Iterable[Result]) -> str:
    count = report.count(results)
    counted = (Outcome.PASSED, Outcome.FAILED, Outcome.NOT_RUN)
    passed, failed, not_run = (count.pop(outcome, 0) for outcome in counted)
    return f"{passed:>8}{failed:>8}{count.total():>8}{not_run:>8}"


def write(report: Report, file: Path) -> tuple[Path, Path]:
    """Write the report as JSON and as HTML, and return the paths.

    :param file: the path, with or without one of the two suffixes.
    """
    from rpc_backends_testing.report_page import render

    stem = file.with_suffix("") if file.suffix in (".json", ".html") else file
    as_json, as_html = (stem.with_name(stem.name + suffix) for suffix in (".json", ".html"))
    as_json.parent.mkdir(parents=True, exist_ok=True)
    as_json.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
    as_html.write_text(render(report), encoding="utf-8")
    return as_json, as_html


def file_of(report: Report, file: Path, among: int) -> Path:
    """Return the path of one of several reports: ``file`` with the backend's name."""
    if among == 1:
        return file
    return file.with_name(f"{file.stem}-{report.backend['name']}{file.suffix}")


def _declared(name: str) -> list[str]:
    from rpc_backends_core.spi.inspection import default_registry

    return sorted(default_registry().backend(name).capabilities)


def _backend(name: str, config: pytest.Config) -> dict[str, Any]:
    from rpc_backends_core.spi.inspection import default_registry

    record = default_registry().find(name)
    return {
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "description": default_registry().backend(name).description,
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


def _is_complete(results: dict[str, Result]) -> bool:
    return manifest.requirements().keys() <= results.keys()
