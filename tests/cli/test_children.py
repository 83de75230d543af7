"""Children that hang, crash or fail leave a reason and no process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpc_backends_cli import children


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give a module for children to run: it does what its spec says."""
    source = """
import os, subprocess, sys, time
def main(spec, say):
    say(pid=os.getpid())
    exec(spec["code"])
"""
    (tmp_path / "what_a_child_does.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield "what_a_child_does"


def _run(module: str, *codes: str, limit: float = 20) -> list[children.Outcome]:
    return children.run(module, [{"code": code} for code in codes], limit)


def _runs(pid: int) -> bool:
    """Return whether a process still runs a moment from now: one that was killed takes a while."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


def test_what_a_child_says_comes_back(module: str) -> None:
    (outcome,) = _run(module, "print('noise'); say(answer=42)")

    assert outcome.fact("answer") == 42
    assert outcome.error is None


def test_a_failure_comes_back_with_its_traceback(module: str) -> None:
    (outcome,) = _run(module, "raise ValueError('no')")

    assert outcome.error == "ValueError: no"
    assert "what_a_child_does.py" in outcome.fact("traceback")


def test_a_crash_is_named_with_the_place_and_the_last_words(module: str) -> None:
    (outcome,) = _run(module, "print('last words', flush=True); os.abort()")

    assert outcome.error is not None
    assert "SIGABRT" in outcome.error
    assert "what_a_child_does.py:5 (main)" in outcome.error
    assert outcome.error.endswith("last words")


def test_an_exit_without_a_word_is_an_error(module: str) -> None:
    (outcome,) = _run(module, "os._exit(7)")

    assert outcome.error == "the process ended with status 7"


def test_a_child_that_hangs_is_ended_with_what_it_started(module: str) -> None:
    code = "say(other=subprocess.Popen(['sleep', '600']).pid); time.sleep(600)"

    (outcome,) = _run(module, code, limit=1)

    assert outcome.timed_out
    assert "what_a_child_does.py:5 (main)" in outcome.at
    assert not _runs(outcome.fact("pid"))
    assert not _runs(outcome.fact("other"))


def test_a_child_that_cannot_end_itself_is_killed(module: str) -> None:
    code = "import faulthandler; faulthandler.cancel_dump_traceback_later(); time.sleep(600)"

    (outcome,) = _run(module, code, limit=0.5)

    assert outcome.timed_out
    assert not _runs(outcome.fact("pid"))


@pytest.mark.slow
def test_when_one_fails_the_other_is_not_waited_for(module: str) -> None:
    started = time.monotonic()

    failed, other = _run(module, "raise ValueError('no')", "time.sleep(600)", limit=60)

    assert time.monotonic() - started < 30
    assert failed.error == "ValueError: no"
    assert not _runs(other.fact("pid"))
