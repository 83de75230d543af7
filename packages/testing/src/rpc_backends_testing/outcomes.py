"""Converts pytest's report of a test to the result of a requirement."""

from __future__ import annotations

import inspect
import re
import traceback
import unittest
from dataclasses import asdict

import pytest

from rpc_backends_processes import WorkerError
from rpc_backends_testing.checks import DeviationError
from rpc_backends_testing.exclusions import reason_to_exclude
from rpc_backends_testing.marks import REQUIREMENT, DoesNotApplyError
from rpc_backends_testing.results import Outcome, Result, settle
from rpc_backends_testing.subject import Subject
from rpc_backends_testing.suite import BACKEND, SUITE_VERSION
from rpc_backends_testing.time_limits import TimeLimits

#: The key of a result in pytest's report, also between processes.
PROPERTY = "rpc_requirement"

#: Parts of the paths of modules whose frames a failure does not show.
_OWN = ("/rpc_backends_testing/", "/rpc_backends_processes/", "/_pytest/", "/pluggy/")
#: A part of torch's text for a call without an answer.
_TIMEOUT = "RPC ran for more than set timeout"

_LIMITS = pytest.StashKey[dict[str, TimeLimits]]()

#: The page with the contract, which has a heading for each chapter.
CONTRACT = "docs/how-to/write-a-backend.md"


def subject_of(item: pytest.Item) -> tuple[Subject, int] | None:
    """Return the backend under test and the version of the suite that counts, or None.

    They come from the nearest mark (:func:`~.suite.conformance` sets it), else from the command line,
    else from pytest's configuration file.
    """
    mark = item.get_closest_marker(BACKEND)
    if mark is not None:
        subject, version = mark.args
        assert isinstance(subject, Subject)
        return subject, item.config.getoption("rpc_suite_version") or int(version)
    name = item.config.getoption("rpc_backend") or item.config.getini("rpc_backend")
    if not name:
        return None
    given = item.config.getoption("rpc_suite_version") or item.config.getini("rpc_suite_version")
    return Subject(name, item.config.getoption("rpc_option") or {}), int(given or SUITE_VERSION)


def limits_of(config: pytest.Config, backend: str) -> TimeLimits:
    """Return the time limits for tests of a backend, which all its tests in this process share."""
    limits = config.stash.setdefault(_LIMITS, {})
    return limits.setdefault(backend, TimeLimits(config.getoption("rpc_timeout_factor")))


def judge(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Add the result of the requirement to ``report``, and adapt the outcome of ``report`` to it."""
    mark = item.get_closest_marker(REQUIREMENT)
    chosen = subject_of(item)
    if mark is None or chosen is None or not _is_last_word(report):
        return
    subject, version = chosen
    capability = mark.kwargs["capability"]
    title, advice = _words(item)
    result = Result(
        id=id_of(item, mark.kwargs["chapter"]),
        chapter=mark.kwargs["chapter"],
        title=title,
        advice=advice,
        capability=capability and str(capability),
        since=mark.kwargs["since"],
        outcome=Outcome.NOT_RUN,
        seconds=report.duration,
    )
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        # pytest begins the text with the name of the exception.
        result.reason = re.sub(r"^(Skipped|[\w.]*\bDoesNotApplyError): ", "", reason)
        if _does_not_apply(item, call):
            result.outcome = Outcome.NOT_APPLICABLE
            path, line, _ = item.location
            report.longrepr = (path, line or 0, f"Skipped: does not apply: {result.reason}")
    else:
        excluded = reason_to_exclude(result.id, subject.excluded)
        result.outcome = settle(
            report.passed,
            excluded=excluded is not None,
            declared=capability is None or capability in subject.capabilities,
            since=result.since,
            suite_version=version,
        )
    error = call.excinfo.value if call.excinfo else None
    hung = isinstance(error, WorkerError) and error.late
    limits_of(item.config, subject.name).record_test(result.chapter, hung)
    if report.failed:
        assert call.excinfo is not None
        explain(result, call.excinfo.value, _trace(call.excinfo.value))
        result.advice = advice_for(result, call.excinfo.value)
        if not item.config.getoption("fulltrace"):
            result.detail = without_own_frames(result.detail)
        _turn(report, item, result, version, excluded or "")
    elif result.outcome is Outcome.FAILED:
        result.call = f"the test of a requirement that {subject.name} excludes"
        result.expected = f"a failure, for the reason given: {excluded}"
        result.got = "it passes; remove it from Backend.excluded_requirements"
        report.outcome, report.longrepr = "failed", text_of(result)
    whose = {"backend": subject.name, "suite_version": version}
    # Plain types only, because pytest-xdist sends the report to another process.
    plain = {**asdict(result), "outcome": str(result.outcome)}
    report.user_properties.append((PROPERTY, {**plain, **whose}))


def _does_not_apply(item: pytest.Item, call: pytest.CallInfo[None]) -> bool:
    """Return whether a test was skipped because its requirement makes no sense here.

    The marks `skipif` of the suite are for what the installed torch does not have.
    """
    error = call.excinfo.value if call.excinfo else None
    return isinstance(error, DoesNotApplyError) or item.get_closest_marker("skipif") is not None


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def without_own_frames(text: str) -> str:
    """Return a text without the frames of this suite in its tracebacks, which say nothing of the backend.

    Stacks of workers that hang keep all frames. pytest's ``--full-trace`` keeps those of tracebacks too.
    """
    kept = []
    own, indent = False, 0
    for line in text.splitlines():
        frame = re.match(r'(\s*)File "([^"]+)", line \d+, in ', line)
        if frame is not None:
            own, indent = any(part in frame[2] for part in _OWN), len(frame[1])
        elif len(line) - len(line.lstrip()) <= indent:
            own = False  # the frame's lines of code are further to the right
        if not own:
            kept.append(line)
    return "\n".join(kept)


def advice_for(result: Result, error: BaseException) -> str:
    """Return where to look. For a time-out, that is not where the requirement says."""
    slow = "--timeout-factor 3 gives a slow machine more time."
    if isinstance(error, WorkerError) and error.late:
        return f"The stacks below show where each worker waits. {slow}"
    if _TIMEOUT in result.got and _TIMEOUT not in result.expected:
        return (
            "No answer came in time: the request or the answer is lost, or the callee does not run the "
            f"call. {slow}"
        )
    return result.advice


def explain(result: Result, error: BaseException, trace: str) -> None:
    """Set the call, the expected and the actual result in ``result``."""
    result.detail = trace
    deviation = error.deviation if isinstance(error, DeviationError) else None
    if isinstance(error, WorkerError):
        deviation = error.details
        result.detail, result.has_stacks = str(error), error.late or error.died
    if deviation is not None:
        result.call, result.expected, result.got = (
            deviation.call,
            deviation.expected,
            deviation.got,
        )
    elif isinstance(error, WorkerError) and error.stuck:
        result.call = "; ".join(f"{what} (in {who})" for who, what in error.stuck.items())
        result.expected = "it returns or raises an error"
        result.got = str(error).partition(";")[0].partition("\n")[0]
    elif isinstance(error, WorkerError) and error.failures:
        first = error.failures[0]
        result.call = f"{first.doing or 'the test'} (in {first.worker})"
        result.expected = "no error"
        result.got = first.error
    else:
        result.call = "the test itself"
        result.expected = "no error"
        result.got = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def text_of(result: Result) -> str:
    """Return the text that pytest shows for a failed requirement."""
    lines = [
        f"chapter   {result.chapter} ({CONTRACT}#{result.chapter})",
        f"required  {result.title}",
        f"call      {result.call}",
        f"expected  {result.expected}",
        f"got       {result.got}",
    ]
    if result.advice:
        lines.append(f"look at   {result.advice}")
    return "\n".join([*lines, "", result.detail])


def _is_last_word(report: pytest.TestReport) -> bool:
    """Return whether a phase decides the outcome: the call, or a set-up or tear-down that failed."""
    return report.when == "call" or not report.passed


def _turn(
    report: pytest.TestReport, item: pytest.Item, result: Result, version: int, excluded: str
) -> None:
    """Give pytest's report the outcome of the requirement."""
    if result.outcome is Outcome.FAILED:
        report.longrepr = text_of(result)
        return
    if result.outcome is Outcome.EXCLUDED:
        reason = excluded
    elif result.outcome is Outcome.FAILS_NEWER:
        reason = (
            f"new in version {result.since} of the suite, and only version "
            f"{version} counts; it would fail: {result.call}: expected {result.expected}, "
            f"got {result.got}"
        )
    else:
        reason = f"{result.capability} is not declared: {result.got}"
    result.reason = reason
    path, line, _ = item.location
    report.outcome = "skipped"
    shown = f"excluded: {reason}" if result.outcome is Outcome.EXCLUDED else reason
    report.longrepr = (path, line or 0, f"Skipped: {shown}")


def id_of(item: pytest.Item, chapter: str) -> str:
    """Return the id of a requirement: its chapter, and its test's name."""
    name = item.name.removeprefix("test_")
    # Several classes of torch's suites have tests of the same name.
    class_ = getattr(item, "cls", None)
    if isinstance(class_, type) and issubclass(class_, unittest.TestCase):
        return f"{chapter}.{class_.__name__}.{name}"
    return f"{chapter}.{name}"


def _words(item: pytest.Item) -> tuple[str, str]:
    text = inspect.cleandoc(getattr(getattr(item, "obj", None), "__doc__", None) or item.name)
    first, _, rest = text.partition("\n\n")
    title = re.sub(r"\s+", " ", first).strip().removesuffix(".")
    callspec = getattr(item, "callspec", None)
    if callspec is not None:
        title += f" ({callspec.id})"
    return title, re.sub(r"\s+", " ", rest).strip()
