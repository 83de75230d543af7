"""An event log that cannot be written."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

import pytest

from rpc_backends_faults import _native, start
from rpc_backends_faults.check import check
from rpc_backends_faults.engine import Engine
from rpc_backends_faults.rules import RuleError
from rpc_backends_faults.settings import Wanted
from support import steps
from support.workers import WorkerContext, Workers

from . import fault_steps

FULL = "/dev/full"  # writing to it fails with "no space left"


@pytest.fixture
def pipeline() -> _native.FaultPipeline:
    pipeline = _native.FaultPipeline("w")
    pipeline.open_log(FULL)
    return pipeline


def test_a_full_disk_is_reported_once_and_counted(
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
    engine = Engine(pipeline, "w", Wanted())
    engine.log_rules()
    engine.close()

    [record] = [logged for logged in caplog.records if logged.levelno == logging.ERROR]
    assert (
        "the event log of RPC worker 'w' is incomplete: 2 lines could not be written "
        "(No space left on device)" in record.getMessage()
    )


def test_a_log_that_cannot_start_is_an_error(pipeline: _native.FaultPipeline) -> None:
    pipeline.log_line('"event":"start"')

    with pytest.raises(RuleError, match="event log /dev/full cannot be written: No space left"):
        start._check_written(pipeline, Path(FULL))


def limit_files(me: WorkerContext, size: int) -> None:
    """Limit the size of this process's files, like a full disk; -1 means no limit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))


def test_doctor_names_a_log_that_is_cut_off(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    with Workers(2, env={"RPC_BACKENDS_FAULTS_LOG": str(logs)}) as workers:
        workers.run(steps.join, url, backend="ZEROMQ")
        workers[1].call(limit_files, (logs / "worker1.jsonl").stat().st_size + 100)
        for worker in (0, 1):
            workers[worker].call(fault_steps.several, f"worker{1 - worker}", list(range(9)), ())
        workers[1].call(limit_files, -1)  # the store is a file, too
        workers.run(steps.leave)
    monkeypatch.setenv("RPC_BACKENDS_FAULTS_LOG", str(logs))

    [finding] = [finding for finding in check().findings if finding.level == "warning"]
    assert finding.about == "event log"
    assert f"{logs / 'worker1.jsonl'} is cut off: it stops in the middle of a line" in finding.text
    assert "the disk was full" in finding.text


def test_doctor_reports_the_log_of_a_killed_worker(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    with Workers(1, env={"RPC_BACKENDS_FAULTS_LOG": str(logs)}) as workers:
        workers.run(steps.join, url, backend="ZEROMQ")
        workers[0].kill()
    monkeypatch.setenv("RPC_BACKENDS_FAULTS_REPLAY", str(logs))

    [finding] = [finding for finding in check().findings if finding.level == "warning"]
    assert (
        "worker0.jsonl is cut off: it stops before its end. Its process was killed" in finding.text
    )


def test_doctor_reports_complete_logs(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    with Workers(2, env={"RPC_BACKENDS_FAULTS_LOG": str(logs)}) as workers:
        workers.run(steps.join, url, backend="ZEROMQ")
        workers.run(steps.leave)
    monkeypatch.setenv("RPC_BACKENDS_FAULTS_LOG", str(logs))

    assert [finding.level for finding in check().findings] == ["note", "ok"]
    assert check().findings[1].text == f"2 logs in {logs}, complete"
