"""Code in a process of its own: a crash, hang or error is reported, and no process is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_processes import isolation

pytestmark = pytest.mark.slow

SOURCE = """
import os, subprocess, sys, time
def main(me, code):
    me.tell(os.getpid())
    exec(code)
"""
Run = Callable[..., list[isolation.Outcome]]
#: Seconds after which a process that hangs is killed. Busy cores may need more until it hangs: then the
#: next limit is tried.
LIMITS = (2.0, 30.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Yield a function that runs each piece of code in a process, which first reports its process id."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "some_module.py").write_text(SOURCE)

    def run_all(*codes: str, limit: float = 60, **settings: Any) -> list[isolation.Outcome]:
        # Each test has its own value of this variable, and each environment its own template, which
        # imports torch.
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("PYTEST_CURRENT_TEST")
            return isolation.run(some_module.main, [(code,) for code in codes], limit, **settings)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(folder)
        import some_module

        monkeypatch.delitem(sys.modules, "some_module")
        yield run_all


def _runs(pid: int) -> bool:
    """Return whether a process still runs after five seconds; a killed process takes a while to end."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


def test_a_process_returns_its_reports(run: Run) -> None:
    (outcome,) = run("print('noise'); me.doing('sums'); me.tell(42)")

    assert outcome.reported[1:] == [42]
    assert outcome.stage == "sums"
    assert outcome.error is None
    assert not _runs(outcome.reported[0])


def test_an_exception_is_returned_with_its_traceback(run: Run) -> None:
    (outcome,) = run("raise ValueError('no')")

    assert outcome.error == "ValueError: no"
    assert "some_module.py" in (outcome.traceback or "")


def test_a_crash_is_reported_with_place_and_output(run: Run) -> None:
    (outcome,) = run("print('last words', flush=True); os.abort()")

    assert outcome.error is not None
    assert "SIGABRT" in outcome.error
    assert "some_module.py:5 (main)" in outcome.error
    assert outcome.error.endswith("last words")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("os._exit(7)", "the process ended with status 7"),
        ("os._exit(0)", "the process ended without a result"),
        ("import atexit; atexit.register(os._exit, 3)", "the process ended with status 3"),
    ],
    ids=["status 7", "status 0", "after the function"],
)
def test_an_exit_without_a_result_is_an_error(run: Run, code: str, error: str) -> None:
    (outcome,) = run(code)

    assert outcome.error == error


def test_a_hanging_process_is_killed_with_its_children(run: Run) -> None:
    for limit in LIMITS:
        (outcome,) = run(
            "me.tell(subprocess.Popen(['sleep', '600']).pid); time.sleep(600)", limit=limit
        )
        if len(outcome.reported) == 2:
            break

    assert outcome.timed_out
    assert "some_module.py:5 (main)" in outcome.at
    assert outcome.error == f"it exceeded the time limit and was killed, at {outcome.at}"
    process, started = outcome.reported
    assert not _runs(process)
    assert not _runs(started)


def test_a_process_that_hangs_at_exit_is_killed(run: Run) -> None:
    code = "import atexit; atexit.register(time.sleep, 600); me.tell('at exit')"
    for limit in LIMITS:
        (outcome,) = run(code, limit=limit)
        if len(outcome.reported) == 2:
            break

    assert outcome.timed_out
    assert not _runs(outcome.reported[0])


def test_the_time_limit_may_apply_to_each_report(run: Run) -> None:
    code = "for _ in range(5): time.sleep({}); me.tell('on')\nif {}: time.sleep(600)"
    for limit in LIMITS:
        codes = [code.format(0.3 * limit, hang) for hang in (False, True)]
        well, hung = run(*codes, limit=limit, each=True)
        if well.error is None:
            break

    assert (well.error, well.reported[1:]) == (None, ["on"] * 5)
    assert (hung.timed_out, hung.reported[1:]) == (True, ["on"] * 5)


def test_after_a_failure_the_others_are_not_awaited(run: Run) -> None:
    run("pass")  # the first run of this file waits for an import of torch
    limit = 60.0
    started = time.monotonic()

    failed, running = run("raise ValueError('no')", "time.sleep(600)", limit=limit)

    assert time.monotonic() - started < limit
    assert failed.error == "ValueError: no"
    assert failed.when < running.when
    assert not _runs(running.reported[0])
