"""Refused connections are logged, and refused processes can neither fill nor forge the log."""

from __future__ import annotations

import logging

import pytest

from rpc_backends_agents.engine.admission_control import Refusals


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "rpc_backends.zeromq")
    return caplog


def test_many_refusals_are_one_line_and_a_count(log: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refusals = Refusals("ZEROMQ", "w0", clock=lambda: now[0])

    for _ in range(1000):
        refusals("tcp://10.0.0.9: its key is unknown")
    now[0] = 11.0
    refusals("another")
    now[0] = 30.0
    refusals("a third")

    assert refusals.count == 1002
    assert log.messages == [
        "ZEROMQ worker 'w0' refused a connection: tcp://10.0.0.9: its key is unknown",
        "ZEROMQ worker 'w0' refused a connection: another (999 more since the last such line)",
        "ZEROMQ worker 'w0' refused a connection: a third",
    ]


def test_a_refusal_cannot_forge_log_lines(log: pytest.LogCaptureFixture) -> None:
    Refusals("ZEROMQ", "w0")("x\nERROR: all is lost\x1b[31m" + "y" * 10_000)

    (line,) = log.messages
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 1000
