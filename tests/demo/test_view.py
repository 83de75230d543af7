"""The console's output on wide terminals, narrow ones and none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from demo.backends import Choice, Origin
from demo.plan import FAULTS, Faults
from demo.results import Epoch, Run, StepDone
from demo.view import View

ORIGINS = [
    Origin("TENSORPIPE", "rpc-backend-tensorpipe", "1.0"),
    Origin("FAULTY_TENSORPIPE", "rpc-backend-faulty-tensorpipe", "2.0"),
    Origin("ZEROMQ", "rpc-backend-zeromq", "3.0"),
]
NOTE = "SMOKE is skipped: it is not installed. To add it: pip install rpc-backend[smoke]"


def shown(accuracy: float = 0.97, width: int = 100, terminal: bool = False) -> str:
    """Return the output of a made-up run of the demo."""
    output = io.StringIO()
    view = View(Console(file=output, width=width, force_terminal=terminal))
    choice = Choice([(origin, FAULTS.get(origin.backend, Faults())) for origin in ORIGINS], [NOTE])
    view.opening("2.13.0", choice, 1437, 360)
    runs = []
    for number, (origin, faults) in enumerate(choice.parts, start=1):
        run = Run(origin, faults)
        failed = dict.fromkeys(run.faults.messages_to_fail, 40)
        delayed = dict.fromkeys(run.faults.messages_to_delay, 7)
        with view.run(run, f"{number}/3") as drawing:
            drawing.advanced(StepDone(1, 1), 1)
            run.epochs.append(Epoch(1, 0.1234, accuracy, failed, delayed, 0.5))
            drawing.epoch(run.epochs[-1])
        runs.append(run)
    view.closing(runs)
    return output.getvalue()


def test_each_backend_is_shown_with_its_package() -> None:
    lines = shown().splitlines()

    assert "  TENSORPIPE         from rpc-backend-tensorpipe 1.0" in lines
    assert "  FAULTY_TENSORPIPE  from rpc-backend-faulty-tensorpipe 2.0" in lines


def test_epochs_and_faults_are_separate_lines() -> None:
    lines = shown().splitlines()

    assert "    1  0.1234     0.970       0        0     0.50" in lines
    assert "    1  0.1234     0.970      80       14     0.50" in lines
    assert "80 failed sends on FAULTY_TENSORPIPE, each retried until it succeeded" in lines
    assert "80 failed sends on ZEROMQ, each retried until it succeeded" in lines
    assert "      40  PYTHON_RREF_FETCH_CALL" in lines


def test_the_package_that_injects_faults_is_named() -> None:
    lines = shown().splitlines()

    assert lines[lines.index("3/3  ZEROMQ") + 1] == "faults injected by rpc-backends-faults:"
    assert "faults by" not in lines[lines.index("2/3  FAULTY_TENSORPIPE") + 1]


def test_notes_on_missing_packages_are_shown() -> None:
    assert NOTE in shown().splitlines()


def test_the_last_line_is_the_verdict() -> None:
    good, bad = shown(), shown(accuracy=0.9)

    names = "TENSORPIPE, FAULTY_TENSORPIPE and ZEROMQ"
    assert good.splitlines()[-1] == f"PASSED  test accuracy above 0.9 on {names}"
    assert bad.splitlines()[-1] == "FAILED  ZEROMQ: test accuracy 0.900 is not above 0.9"


def test_without_a_terminal_there_are_no_control_codes() -> None:
    assert "\x1b" not in shown()
    assert "starting" not in shown()


def test_on_a_terminal_there_is_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert "epoch 1/1" in shown(terminal=True)


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, shown(width=width).splitlines())) <= width
