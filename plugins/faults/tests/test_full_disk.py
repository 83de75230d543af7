"""An event log that cannot be written."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rpc_backends_faults import _native, start
from rpc_backends_faults.engine import Engine
from rpc_backends_faults.errors import RuleError

FULL = "/dev/full"  # a file on a disk without space


@pytest.fixture
def pipeline() -> _native.FaultPipeline:
    pipeline = _native.FaultPipeline("w")
    pipeline.open_log(FULL)
    return pipeline


def test_a_full_disk_is_said_once_and_counted(
    pipeline: _native.FaultPipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        pipeline.log_line('"event":"mark"')

    error = capfd.readouterr().err
    assert error.count("the event log '/dev/full' is cut off: No space left on device") == 1
    assert pipeline.log_failure() == (3, "No space left on device")


def test_a_log_that_is_cut_off_is_an_error_at_the_end(
    pipeline: _native.FaultPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(pipeline, "w", seed=0)
    engine.log_rules()
    engine.close()

    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "the event log of RPC worker 'w' lacks 2 lines: No space left on device" in (
        record.getMessage()
    )


def test_a_log_without_its_first_line_starts_no_program(pipeline: _native.FaultPipeline) -> None:
    pipeline.log_line('"event":"start"')

    with pytest.raises(RuleError, match="event log /dev/full cannot be written: No space left"):
        start._check_written(pipeline, Path(FULL))
