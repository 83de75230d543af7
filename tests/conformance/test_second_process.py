"""The pipe between the tests of a transport and the process that has the other transports."""

from __future__ import annotations

import multiprocessing

import pytest

from rpc_backends_testing.transports.second_process import _Pipe


def test_a_call_to_a_process_that_has_just_ended_says_so() -> None:
    ours, theirs = multiprocessing.Pipe()
    pipe = _Pipe(ours, print)
    theirs.close()

    with pytest.raises(EOFError):
        pipe.call("begin")
    assert not pipe._waiting
    pipe.serve()


def test_a_response_to_a_process_that_has_just_ended_is_dropped() -> None:
    ours, theirs = multiprocessing.Pipe()
    pipe = _Pipe(ours, print)
    theirs.close()

    pipe._run(0, ["an event"])
