"""The texts of errors of calls."""

from __future__ import annotations

import pytest

from rpc_backends_core._bridge import calls

TEXT = "On WorkerInfo(id=1, name=worker1):\nValueError: the cause"
TORCH = "  /somewhere/torch/distributed/rpc/internal.py(200): _handle_exception\n"
PROGRAM = "  /home/me/program.py(7): main\n  <string>(1): <module>\n"


@pytest.mark.parametrize("frames", [TORCH, TORCH * 2, TORCH + PROGRAM])
def test_frames_that_pybind11_appends_are_left_out(frames: str) -> None:
    error = ValueError(f"{TEXT}\n\nAt:\n{frames}")
    calls.explain(error, "worker1", len)
    assert str(error) == TEXT


def test_frames_in_the_text_of_the_callee_stay() -> None:
    error = ValueError(f"{TEXT}\n\nAt:\n{PROGRAM}")
    calls.explain(error, "worker1", len)
    assert str(error) == f"{TEXT}\n\nAt:\n{PROGRAM}"
