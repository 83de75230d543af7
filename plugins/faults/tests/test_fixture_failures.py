"""The report of a failed test that uses the fixture `rpc_faults`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rpc_backends_faults import testing
from support.command import run_module
from support.environments import clean_environ

TESTS = """
import os, threading
from torch.distributed import rpc
from rpc_backends_processes import WorkerError

def update(number):
    return number

def train(me, calls):
    print("these are the words of", me.name)
    for number in range(calls if me.index else 0):
        rpc.rpc_sync("worker0", update, args=(number,))
    if me.index:
        raise ValueError("lost one")

def hang(me):
    if me.index:
        rpc.rpc_sync("worker0", update, args=(1,))
        os.write(1, b"about to hang")
        threading.Event().wait()

TWICE = {"name": "twice", "what": "duplicate", "function": "*.update"}
CRASH = {"name": "boom", "what": "crash", "function": "*.update", "after": 1, "exit_code": 3}

def test_raises(rpc_faults):
    assert rpc_faults(train, 30, rules=[TWICE], backend="ZEROMQ", seed=5)[1].error is None

def test_crashes(rpc_faults):
    assert rpc_faults(train, 3, rules=[CRASH])[1].status is None

def test_hangs(rpc_faults):
    for seconds in (6, 24, 96):  # again, if the time was over before the hang
        try:
            rpc_faults(hang, rules=[TWICE], seconds=seconds)
        except WorkerError:
            if "about to hang" in rpc_faults.runs[-1].outcomes[1].output:
                raise

def test_passes(rpc_faults):
    assert rpc_faults(train, 1)[0].error is None
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the tests above; return pytest's report of each, by name."""
    folder: Path = tmp_path_factory.mktemp("failing")
    (folder / "test_it.py").write_text(TESTS)
    done = run_module(
        "pytest", "-p", "no:cacheprovider", "test_it.py", env=clean_environ(), cwd=folder
    )
    assert "3 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    parts = done.stdout.split("____ test_")[1:]
    return {part.partition(" ")[0]: part for part in parts}


def test_an_error_shows_seed_rules_faults_log_and_traceback(shown: dict[str, str]) -> None:
    output = shown["raises"]

    assert "rpc_faults, run 1 of 1" in output
    assert "train on 2 workers on ZEROMQ" in output
    assert "RPC_BACKENDS_FAULTS_SEED=5 pytest 'test_it.py::test_raises'" in output
    assert "twice (duplicate), fired 30 times: each request that calls *.update is sent" in output
    log = output.partition("log: ")[2].partition("\n")[0]
    assert (Path(log) / "worker1.jsonl").exists()
    assert "faults (the last 20 of 30):" in output
    assert "s twice (duplicate): PYTHON_CALL test_it.update to worker0: answer" in output
    assert "worker1: raised ValueError: lost one" in output
    assert 'raise ValueError("lost one")' in output
    assert "these are the words of worker1" in output


def test_a_crash_shows_the_exit_status(shown: dict[str, str]) -> None:
    output = shown["crashes"]

    assert "worker1: its process ended with status 3 before the function returned" in output
    assert "boom (crash): PYTHON_CALL test_it.update to worker0: never ended" in output
    assert "these are the words of worker1" in output


def test_a_hang_shows_the_faults_and_the_stack(shown: dict[str, str]) -> None:
    output = shown["hangs"]

    assert "the run ended early: WorkerError: worker1 did not finish its step" in output
    worker1 = output.rpartition("worker1: did not finish")[2]
    assert "twice (duplicate): PYTHON_CALL test_it.update to worker0: answer" in worker1
    assert "about to hang" in worker1
    assert "in hang" in worker1  # its stack


def test_a_test_that_passes_shows_nothing(shown: dict[str, str]) -> None:
    assert "passes" not in shown


def test_an_interrupt_reaches_pytest(rpc_faults: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_function: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(testing.Reference, "to", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rpc_faults(print, backend="TENSORPIPE")
