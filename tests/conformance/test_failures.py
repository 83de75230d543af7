"""What a failed requirement shows: where to look, and which frames of tracebacks."""

from __future__ import annotations

from typing import Any

import pytest

from rpc_backends_processes import WorkerError
from rpc_backends_testing.checks import DeviationError
from rpc_backends_testing.outcomes import advice_for, without_own_frames
from rpc_backends_testing.results import Outcome, Result

ADVICE = "The strides may be wrong."

TEXT = """worker0 failed
  Traceback (most recent call last):
    File "/site-packages/rpc_backends_processes/worker.py", line 12, in run
      return step(me)
             ^^^^^^^^
    File "/home/ada/pigeon/handlers.py", line 7, in init
      raise RuntimeError("asleep")
    File "/site-packages/rpc_backends_testing/checks.py", line 3, in expect
      check(
          value,
      )
  RuntimeError: asleep
stack of worker1:
  File "/site-packages/rpc_backends_processes/worker.py", line 12 in run
"""


def result(got: str, expected: str = "3") -> Result:
    facts: dict[str, Any] = {"capability": None, "since": 1, "seconds": 1.0}
    made = Result("data.x", "data", "x", ADVICE, outcome=Outcome.FAILED, **facts)
    made.got, made.expected = got, expected
    return made


def test_frames_of_the_suite_are_left_out_and_those_of_the_backend_kept() -> None:
    assert without_own_frames(TEXT).splitlines() == [
        "worker0 failed",
        "  Traceback (most recent call last):",
        '    File "/home/ada/pigeon/handlers.py", line 7, in init',
        '      raise RuntimeError("asleep")',
        "  RuntimeError: asleep",
        "stack of worker1:",
        '  File "/site-packages/rpc_backends_processes/worker.py", line 12 in run',
    ]


@pytest.mark.parametrize(
    ("got", "expected", "error", "words"),
    [
        ("4", "3", DeviationError, ADVICE),
        ("RPC ran for more than set timeout (5 ms)", "3", DeviationError, "No answer came in time"),
        ("no RPC ran", "RPC ran for more than set timeout", DeviationError, ADVICE),
        ("it has not ended", "3", WorkerError, "The stacks below show where each worker waits"),
    ],
)
def test_the_advice_for_a_time_out_is_not_that_of_the_requirement(
    got: str, expected: str, error: type[Exception], words: str
) -> None:
    raised = WorkerError("late", late=True) if error is WorkerError else AssertionError()

    assert advice_for(result(got, expected), raised).startswith(words)
