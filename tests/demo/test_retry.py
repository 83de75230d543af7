"""Calls that were not sent are made again and counted; nothing else is."""

from __future__ import annotations

import time

import pytest

from demo.retry import FaultLog, was_not_sent

INTENDED = RuntimeError("RPCErr:2:Send attempt failed intentionally for torch.ops")


def undecodable(prefix: bytes = b"RPCErr:2:Send attempt failed intentionally for ") -> Exception:
    """Return what Python makes of an error text in which torch has put bytes that are no UTF-8."""
    with pytest.raises(UnicodeDecodeError) as caught:
        (prefix + b"\x80\x05").decode()
    return caught.value


class Flaky:
    """A call that raises the given errors, one at a time, and then returns 42."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return 42


def test_a_call_that_was_not_sent_is_made_again_and_each_failure_counted() -> None:
    log = FaultLog()
    call = Flaky(INTENDED, undecodable(), RuntimeError())

    assert log.call("PYTHON_CALL", call) == 42
    assert call.calls == 4
    assert log.take() == ({"PYTHON_CALL": 3}, {})


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("RPCErr:1:RPC ran for more than set timeout (5 ms)"),
        RuntimeError("RPCErr:0:eof"),
        RuntimeError("On WorkerInfo(id=0): RPCErr:2:Send attempt failed intentionally for x"),
        undecodable(b"some other text "),
        ValueError("from the function itself"),
    ],
    ids=["timeout", "lost connection", "failure on the far side", "other bytes", "own error"],
)
def test_a_call_that_may_have_run_is_not_made_again(error: Exception) -> None:
    log = FaultLog()
    call = Flaky(error)

    with pytest.raises(type(error)) as caught:
        log.call("PYTHON_CALL", call)

    assert caught.value is error
    assert call.calls == 1
    assert log.take() == ({}, {})


def test_a_call_that_never_passes_is_given_up_with_its_own_error() -> None:
    log = FaultLog(attempts=3, pause=0)
    call = Flaky(*[INTENDED] * 9)

    with pytest.raises(RuntimeError, match="failed intentionally"):
        log.call("PYTHON_CALL", call)

    assert call.calls == 3
    assert log.take() == ({"PYTHON_CALL": 3}, {})


def test_a_log_that_would_never_call_says_so() -> None:
    with pytest.raises(ValueError, match="attempts must be at least 1, not 0"):
        FaultLog(attempts=0)


def test_a_delay_counts_only_when_the_send_took_that_long() -> None:
    log = FaultLog(delays={"PYTHON_REMOTE_CALL": 0.05})
    now = time.perf_counter()

    log.sent("PYTHON_REMOTE_CALL", now - 0.06)
    log.sent("PYTHON_REMOTE_CALL", now)
    log.sent("PYTHON_CALL", now - 9)

    assert log.take() == ({}, {"PYTHON_REMOTE_CALL": 1})


def test_what_was_taken_is_not_counted_again() -> None:
    log = FaultLog(pause=0)
    log.call("PYTHON_CALL", Flaky(INTENDED))

    assert log.take() == ({"PYTHON_CALL": 1}, {})
    assert log.take() == ({}, {})


def test_only_the_intended_failure_is_recognised() -> None:
    assert was_not_sent(INTENDED)
    assert was_not_sent(undecodable())
    assert not was_not_sent(KeyError("RPCErr:2:Send attempt failed intentionally"))
