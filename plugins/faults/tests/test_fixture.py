"""The fixture for users' tests, which runs functions on workers with faults."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_faults import RuleError
from rpc_backends_faults.testing import Runner
from rpc_backends_processes import WorkerContext

_total = torch.zeros(1)
_lock = threading.Lock()


def update(by: torch.Tensor) -> float:
    """Add to this worker's value; called by RPC, and not idempotent."""
    with _lock:
        return float(_total.add_(by))


def train(me: WorkerContext, steps: int) -> float:
    """On worker1, add 1 to worker0's total ``steps`` times; return the largest result."""
    if me.index == 0:
        return 0.0
    return max(rpc.rpc_sync("worker0", update, args=(torch.ones(1),)) for _ in range(steps))


TWICE = {"name": "twice", "what": "duplicate", "function": "*.update", "every": 2}


@pytest.mark.parametrize("backend", ["TENSORPIPE", "ZEROMQ"])
def test_a_test_sees_the_effect_of_a_fault(rpc_faults: Runner, backend: str) -> None:
    sound = rpc_faults(train, 4, backend=backend)
    faulty = rpc_faults(train, 4, rules=[TWICE], backend=backend)

    assert [result.result for result in sound] == [0.0, 4.0]
    assert sound[1].faults == []
    # The second copy of the last call may arrive after the reply to the first.
    assert faulty[1].result in {5.0, 6.0}
    assert faulty[1].faults == [("twice", "PYTHON_CALL", "worker0")] * 2


def test_errors_and_crashes_are_outcomes(rpc_faults: Runner) -> None:
    failed = rpc_faults(train, 1, rules=[{"what": "fail", "function": "*.update"}])
    crashed = rpc_faults(
        train, 1, rules=[{"what": "crash", "function": "*.update", "exit_code": 3}]
    )

    assert failed[0].error is None
    assert failed[1].error is not None
    assert failed[1].error.startswith("RuntimeError: RPCErr:2:Send attempt failed intentionally")
    assert (crashed[1].status, crashed[1].result, crashed[1].error) == (3, None, None)
    assert crashed[0].result == 0.0


def crash_with_empty_log(me: WorkerContext) -> None:
    """End this process as if it had been killed before it wrote the first line of its log."""
    if me.index == 1:
        Path(os.environ["RPC_BACKENDS_FAULTS_LOG"], f"{me.name}.jsonl").write_text("")
        os._exit(3)


def test_a_worker_with_an_empty_log_has_an_outcome(rpc_faults: Runner) -> None:
    outcomes = rpc_faults(crash_with_empty_log)

    assert [outcome.status for outcome in outcomes] == [None, 3]
    assert [outcome.log == [] for outcome in outcomes] == [False, True]


def test_rules_can_be_a_file_and_a_run_can_be_replayed(rpc_faults: Runner, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'seed = 1\n[[rule]]\nwhat = "fail"\nfunction = "*.update"\nprobability = 0.2\n'
    )

    first = rpc_faults(train, 50, rules=rules)
    log = rpc_faults.log
    again = rpc_faults(train, 50, replay=log)

    assert first[1].error is not None
    assert again[1].error == first[1].error
    calls = [
        [event for event in run[1].log if event["event"] == "request"] for run in (first, again)
    ]
    assert len(calls[0]) == len(calls[1])


def test_invalid_rules_are_an_error_before_anything_starts(rpc_faults: Runner) -> None:
    with pytest.raises(RuleError, match="Did you mean 'drop'"):
        rpc_faults(train, 1, rules=[{"what": "dorp"}])
