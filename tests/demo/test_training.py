"""The demo with four real processes, real data and real faults. It leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.dataset import prepare
from demo.plan import FAULTS, GOAL, PACKAGES, SERVER, TRAINERS, WORKERS, Plan
from demo.results import EpochDone, StepDone
from demo.training import WorkerFailedError, start, train
from support.children import started

pytestmark = pytest.mark.slow

DEMO = [sys.executable, "-m", "demo"]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def demo_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the demo on the path of child processes, as `make demo` does."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    """Return a function that lists the processes started by this test that still run."""
    mark = f"DEMO_TEST={uuid.uuid4()}"
    monkeypatch.setenv(*mark.split("="))

    def running() -> list[int]:
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    pids.append(int(folder.name))
            except OSError:  # the process has ended, or belongs to another user
                continue
        return pids

    yield running
    for process in running():
        os.kill(process, signal.SIGKILL)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    prepare(tmp_path, seed=0)
    return Plan("TENSORPIPE", str(tmp_path), str(tmp_path), epochs=1000)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    "backend",
    [
        "ZEROMQ",
        pytest.param("TENSORPIPE", marks=pytest.mark.thorough),
        pytest.param("FAULTY_TENSORPIPE", marks=pytest.mark.thorough),
    ],
)
def test_training_reaches_the_goal(backend: str, processes: Callable[[], list[int]]) -> None:
    ended = subprocess.run(
        [*DEMO, "--quick", "--json", "--backend", backend],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    (run,) = result["runs"]
    assert result["passed"]
    assert run["backend"] == backend
    assert run["distribution"] == PACKAGES[backend]
    assert run["accuracy"] > GOAL
    assert run["epochs"][-1]["loss"] < run["epochs"][0]["loss"]
    assert bool(run["failed"]) == bool(run["delayed"]) == (backend in FAULTS)
    assert result["notes"] == []
    assert processes() == []


@pytest.mark.parametrize(
    "backend", ["ZEROMQ", pytest.param("FAULTY_TENSORPIPE", marks=pytest.mark.thorough)]
)
def test_each_call_fails_as_often_as_planned(tmp_path: Path, backend: str) -> None:
    prepare(tmp_path, seed=0)
    faults = FAULTS[backend]
    folder = str(tmp_path)
    plan = Plan(backend, folder, folder, epochs=1, faults=faults)
    with start(plan) as workers:
        reports = list(train(workers, plan))
    parts = [report for report in reports if isinstance(report, EpochDone)]
    steps = sum(isinstance(report, StepDone) for report in reports)

    assert [part.worker for part in sorted(parts, key=lambda part: part.worker)] == list(TRAINERS)
    steps //= len(TRAINERS)
    # Plain calls: one rendezvous before each step, one after the epoch, one for the parameters.
    calls = steps + 2
    contexts = steps
    # Rules also affect autograd contexts: one call in each step, and one context of the optimizer.
    if faults.by:
        calls += steps
        contexts += 1
    for part in parts:
        assert part.failed == {
            "PYTHON_CALL": calls * faults.num_fail_sends,
            "PYTHON_RREF_FETCH_CALL": faults.num_fail_sends,
        }
        assert part.delayed == {
            "CLEANUP_AUTOGRAD_CONTEXT_REQ": contexts,
            "PYTHON_REMOTE_CALL": 3,
        }


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_losses(tmp_path: Path) -> None:
    losses = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        prepare(folder, seed=7)
        plan = Plan("TENSORPIPE", str(folder), str(folder), epochs=2, seed=7)
        with start(plan) as workers:
            parts = [part for part in train(workers, plan) if isinstance(part, EpochDone)]
        losses.append([part.loss for part in sorted(parts, key=lambda p: (p.epoch, p.worker))])

    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_plan_wins_over_the_environment(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPC_BACKENDS_OVERRIDE", "NO_SUCH_BACKEND")
    monkeypatch.setenv("RPC_BACKENDS_FAULTS", "no-such-file.toml")

    with start(plan) as workers:
        assert any(isinstance(report, StepDone) for report in train(workers, plan))


def test_the_error_shows_a_failing_workers_traceback(
    tmp_path: Path, processes: Callable[[], list[int]]
) -> None:
    plan = Plan("TENSORPIPE", str(tmp_path), str(tmp_path / "nowhere"))

    with pytest.raises(WorkerFailedError) as caught, start(plan) as workers:
        list(train(workers, plan))

    assert "trainer-" in str(caught.value)
    assert "Traceback (most recent call last)" in str(caught.value)
    assert "FileNotFoundError" in str(caught.value)
    assert processes() == []


@pytest.mark.parametrize("name", [SERVER, pytest.param("trainer-1", marks=pytest.mark.thorough)])
def test_a_killed_worker_ends_the_run(
    plan: Plan, processes: Callable[[], list[int]], name: str
) -> None:
    with pytest.raises(WorkerFailedError) as caught, start(plan) as workers:
        for report in train(workers, plan):
            if isinstance(report, StepDone):
                workers[WORKERS.index(name)].kill()

    assert str(caught.value).startswith(f"{name} ended with status -9")
    assert processes() == []


def test_silence_ends_the_run(plan: Plan, processes: Callable[[], list[int]]) -> None:
    with pytest.raises(WorkerFailedError) as caught, start(plan) as workers:
        list(train(workers, plan, silence=0.01))

    assert str(caught.value) == f"no report for 0.01 s from {', '.join(sorted(WORKERS))}"

    assert processes() == []


@pytest.mark.parametrize(
    ("name", "training"),
    [
        ("SIGINT", False),
        pytest.param("SIGINT", True, marks=pytest.mark.thorough),
        pytest.param("SIGTERM", True, marks=pytest.mark.thorough),
        # `tests/processes/test_workers.py` kills the parent of workers.
        pytest.param("SIGKILL", True, marks=pytest.mark.thorough),
    ],
)
def test_no_worker_outlives_the_console(
    name: str, training: bool, processes: Callable[[], list[int]]
) -> None:
    # the console, the process that the workers are forked from, and the workers
    size = 2 + len(WORKERS)
    with started(
        [*DEMO, "--epochs", "1000", "--backend", "TENSORPIPE"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as console:
        assert console.stdout is not None
        # Two imports of torch, one after the other, which take a minute on busy cores.
        assert wait_until(lambda: len(processes()) == size, 240)
        while training and b" 1  " not in (line := console.stdout.readline()):
            assert line, "the demo ended before its first epoch was done"
        assert len(processes()) == size
        console.send_signal(getattr(signal, name))
        assert console.wait(timeout=60) != 0

    assert wait_until(lambda: processes() == [])
