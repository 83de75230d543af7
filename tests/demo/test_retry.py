"""Only calls that were not sent are retried and counted."""

from __future__ import annotations

import time

import pytest

from demo.retry import FaultLog, was_not_sent

INTENDED = RuntimeError("RPCErr:2:Send attempt failed intentionally for torch.ops")


def undecodable(prefix: bytes = b"RPCErr:2:Send attempt failed intentionally for ") -> Exception:
    """Return Python's error for a text of torch that contains bytes that are not UTF-8."""
    with pytest.raises(UnicodeDecodeError) as caught:
        (prefix + b"\x80\x05").decode()
    return caught.value


class Flaky:
    """A call that raises the given errors one after another, then returns 42."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return 42


def test_a_call_that_was_not_sent_is_retried() -> None:
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
def test_a_call_that_may_have_run_is_not_retried(error: Exception) -> None:
    log = FaultLog()
    call = Flaky(error)

    with pytest.raises(type(error)) as caught:
        log.call("PYTHON_CALL", call)

    assert caught.value is error
    assert call.calls == 1
    assert log.take() == ({}, {})


def test_retries_end_with_the_calls_own_error() -> None:
    log = FaultLog(attempts=3, pause=0)
    call = Flaky(*[INTENDED] * 9)

    with pytest.raises(RuntimeError, match="failed intentionally"):
        log.call("PYTHON_CALL", call)

    assert call.calls == 3
    assert log.take() == ({"PYTHON_CALL": 3}, {})


def test_zero_attempts_are_refused() -> None:
    with pytest.raises(ValueError, match="attempts must be at least 1, not 0"):
        FaultLog(attempts=0)


def test_a_delay_counts_only_if_the_send_was_slow() -> None:
    log = FaultLog(delays={"PYTHON_REMOTE_CALL": 0.05})
    now = time.perf_counter()

    log.sent("PYTHON_REMOTE_CALL", now - 0.06)
    log.sent("PYTHON_REMOTE_CALL", now)
    log.sent("PYTHON_CALL", now - 9)

    assert log.take() == ({}, {"PYTHON_REMOTE_CALL": 1})


def test_take_resets_the_counts() -> None:
    log = FaultLog(pause=0)
    log.call("PYTHON_CALL", Flaky(INTENDED))

    assert log.take() == ({"PYTHON_CALL": 1}, {})
    assert log.take() == ({}, {})


def test_only_the_intended_failure_is_recognised() -> None:
    assert was_not_sent(INTENDED)
    assert was_not_sent(undecodable())
    assert not was_not_sent(KeyError("RPCErr:2:Send attempt failed intentionally"))
