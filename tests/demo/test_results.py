"""The reports of both trainers make up an epoch, and a run names its shortcoming."""

from __future__ import annotations

import json

import pytest

from demo.backends import Origin
from demo.plan import Faults
from demo.results import EpochDone, Run

ORIGIN = Origin("TENSORPIPE", "rpc-backend-tensorpipe", "1.0")
FAULTY = Faults(("PYTHON_CALL",), {"PYTHON_REMOTE_CALL": 0.1}, 1)


def report(trainer: int, correct: int = 95, **counts: dict[str, int]) -> EpochDone:
    faults = {"failed": {}, "delayed": {}, **counts}
    loss, seconds = 0.2 * (trainer + 1), 1.0 + trainer
    return EpochDone(f"trainer-{trainer}", 1, loss, correct, 100, **faults, seconds=seconds)


def test_an_epoch_needs_the_reports_of_both_trainers() -> None:
    run = Run(ORIGIN, Faults())

    assert run.add(report(0, 90, failed={"PYTHON_CALL": 2})) is None
    epoch = run.add(report(1, 80, failed={"PYTHON_CALL": 3}, delayed={"PYTHON_CALL": 1}))

    assert epoch is not None
    assert run.epochs == [epoch]
    assert epoch.loss == pytest.approx(0.3)
    assert epoch.accuracy == pytest.approx(0.85)
    assert (epoch.failed, epoch.delayed) == ({"PYTHON_CALL": 5}, {"PYTHON_CALL": 1})
    assert epoch.seconds == 2.0


def test_a_good_run_has_no_shortcoming() -> None:
    run = Run(ORIGIN, Faults())
    run.add(report(0))
    run.add(report(1))

    assert run.shortcoming is None


def test_an_accuracy_equal_to_the_goal_is_too_low() -> None:
    run = Run(ORIGIN, Faults())
    run.add(report(0, 90))
    run.add(report(1, 90))

    assert run.shortcoming == "test accuracy 0.900 is not above 0.9"


def test_a_run_without_training_falls_short() -> None:
    assert Run(ORIGIN, Faults()).shortcoming == "test accuracy 0.000 is not above 0.9"


def test_requested_faults_that_never_occurred_are_a_shortcoming() -> None:
    run = Run(ORIGIN, FAULTY)
    run.add(report(0, failed={"PYTHON_CALL": 1}))
    run.add(report(1))

    assert (
        run.shortcoming
        == "no fault was injected into PYTHON_REMOTE_CALL, so the run proves nothing"
    )


def test_a_result_can_be_written_as_json() -> None:
    run = Run(ORIGIN, FAULTY)
    run.add(report(0, failed={"PYTHON_CALL": 1}))
    run.add(report(1, delayed={"PYTHON_REMOTE_CALL": 4}))

    result = json.loads(json.dumps(run.to_dict()))

    assert result["backend"] == "TENSORPIPE"
    assert result["distribution"] == "rpc-backend-tensorpipe"
    assert result["failed"] == {"PYTHON_CALL": 1}
    assert result["delayed"] == {"PYTHON_REMOTE_CALL": 4}
    assert len(result["epochs"]) == 1
