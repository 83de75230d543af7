"""Random decisions depend on the seed and the message, not on threads; a replay repeats them."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

from . import fault_steps

RULES = """
seed = {seed}

[[rule]]
name = "sometimes"
what = "fail"
function = "*.fault_steps.do"
probability = 0.4

[[rule]]
name = "slow"
what = "reply_delay"
function = "*.fault_steps.do"
probability = 0.2
seconds = {{ exponential = 0.002 }}
"""
CALLS = 60


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES.format(seed=7))
    return path


def run(
    tmp_path: Path,
    rules: Path | None,
    step: Any,
    *args: Any,
    backend: str = "TENSORPIPE",
    **env: str,
) -> tuple[Any, Workers]:
    """Run a step on worker0 of two; return its result and worker0's output."""
    run.number += 1  # type: ignore[attr-defined]
    variables = {"RPC_BACKENDS_FAULTS": str(rules)} if rules else {}
    with Workers(2, env={**variables, **env}, seconds=180) as workers:
        workers.run(steps.join, f"file://{tmp_path}/{run.number}", backend=backend)  # type: ignore[attr-defined]
        result = workers[0].call(step, *args)
        workers.run(steps.leave)
        for worker in workers:
            worker.finish()  # both processes end at the same time
        assert [worker.end() for worker in workers] == [0, 0]
        output = workers[0].output
    return result, output


run.number = 0  # type: ignore[attr-defined]


def call_from_threads(me: WorkerContext, threads: int, load: int) -> dict[str, list[str]]:
    """Make each call twice, from several threads, while ``load`` threads keep the processor busy."""
    end = threading.Event()

    def spin() -> None:
        while not end.is_set():
            sum(range(1000))

    def attempt(call: str) -> tuple[str, list[str]]:
        outcomes = []
        for _ in range(2):
            try:
                outcomes.append(str(rpc.rpc_sync("worker1", fault_steps.do, args=(call,))))
            except RuntimeError as error:
                outcomes.append("failed" if "'sometimes'" in str(error) else str(error))
        return call, outcomes

    spinning = [threading.Thread(target=spin) for _ in range(load)]
    for thread in spinning:
        thread.start()
    with ThreadPoolExecutor(threads) as pool:
        outcomes = dict(pool.map(attempt, [f"call {number}" for number in range(CALLS)]))
    end.set()
    for thread in spinning:
        thread.join()
    return outcomes


def faults_in(log: Path) -> dict[tuple[Any, ...], list[Any]]:
    """Return the faults of each message in a log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {
        (line["to"], line["type"], line["digest"], line["nth"]): line.get("faults", [])
        for line in lines
        if line["event"] == "request" and line.get("function", "").endswith(".do")
    }


@pytest.mark.slow
def test_the_same_seed_decides_the_same_with_any_threads_and_load(
    tmp_path: Path, rules: Path
) -> None:
    outcomes, logs = [], []
    for number, (threads, load) in enumerate([(1, 0), (2, 0), (8, 0), (3, 1), (16, 2)]):
        log = tmp_path / f"log {number}"
        outcome, _ = run(
            tmp_path, rules, call_from_threads, threads, load, RPC_BACKENDS_FAULTS_LOG=str(log)
        )
        outcomes.append(outcome)
        logs.append(faults_in(log / "worker0.jsonl"))

    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert all(log == logs[0] for log in logs)
    failed = sum(outcome.count("failed") for outcome in outcomes[0].values())
    assert 0 < failed < 2 * CALLS
    assert len(logs[0]) == 2 * CALLS


def test_another_seed_decides_differently(tmp_path: Path, rules: Path) -> None:
    outcome, _ = run(tmp_path, rules, call_from_threads, 1, 0)
    reseeded, _ = run(tmp_path, rules, call_from_threads, 1, 0, RPC_BACKENDS_FAULTS_SEED="8")

    assert outcome != reseeded


def test_another_rule_changes_no_decision(tmp_path: Path, rules: Path) -> None:
    outcome, _ = run(tmp_path, rules, call_from_threads, 1, 0)
    more = '[[rule]]\nname = "more"\nwhat = "delay"\nseconds = 0.001\nprobability = 0.5\n'
    seed, first = rules.read_text().split("[[rule]]", 1)
    rules.write_text(f"{seed}{more}[[rule]]{first}")

    assert run(tmp_path, rules, call_from_threads, 1, 0)[0] == outcome


# --- replays --------------------------------------------------------------------------------------


def train(me: WorkerContext, begin: int = 0) -> tuple[int, str]:
    """Make calls until one fails; return its number and its error."""
    for number in range(begin, 1000):
        try:
            rpc.rpc_sync("worker1", fault_steps.do, args=(f"step {number}",))
        except RuntimeError as error:
            return number, str(error)
    return -1, ""


#: With this seed the first calls of `train` work.
RARE = """
seed = 6

[[rule]]
name = "rare"
what = "reply_fail"
function = "*.fault_steps.do"
probability = 0.03
"""


@pytest.mark.parametrize("backend", ["TENSORPIPE", "ZEROMQ"])
def test_a_replay_fails_where_the_recorded_run_failed(tmp_path: Path, backend: str) -> None:
    rules, log = tmp_path / "rules.toml", tmp_path / "log"
    rules.write_text(RARE)
    recorded, _ = run(tmp_path, rules, train, backend=backend, RPC_BACKENDS_FAULTS_LOG=str(log))

    # Rules and seed come from the log only.
    replayed, output = run(
        tmp_path, None, train, backend=backend, RPC_BACKENDS_FAULTS_REPLAY=str(log)
    )

    assert recorded[0] > 0
    assert replayed == recorded
    assert "diverged" not in output


def test_a_replay_reports_where_the_program_diverged(tmp_path: Path) -> None:
    rules, log = tmp_path / "rules.toml", tmp_path / "log"
    rules.write_text(RARE)
    (last, _), _ = run(tmp_path, rules, train, RPC_BACKENDS_FAULTS_LOG=str(log))
    assert last > 0

    again = tmp_path / "again"
    (reached, _), output = run(
        tmp_path,
        None,
        train,
        -1,
        RPC_BACKENDS_FAULTS_REPLAY=str(log),
        RPC_BACKENDS_FAULTS_LOG=str(again),
    )

    assert reached == last
    assert (
        "the replay on RPC worker 'worker0' diverged: 1 messages were not in the log (first: "
        in output
    )
    [said] = [
        json.loads(line)
        for line in (again / "worker0.jsonl").read_text().splitlines()
        if '"divergence"' in line
    ]
    assert said["new"] == 1
    assert "fault_steps.do to 'worker1'" in said["first_new"]
    assert said["missing"] == 0


def test_a_replay_of_an_invalid_log_is_refused(url: str, tmp_path: Path) -> None:
    (tmp_path / "worker0.jsonl").write_text("{}\n")
    with Workers(1, env={"RPC_BACKENDS_FAULTS_REPLAY": str(tmp_path)}) as workers:
        [error] = workers.errors(steps.join, url)

    assert "this is not an event log of fault injection" in error.text


def test_a_replay_without_a_log_for_the_worker_is_refused(url: str, tmp_path: Path) -> None:
    with Workers(1, env={"RPC_BACKENDS_FAULTS_REPLAY": str(tmp_path)}) as workers:
        [error] = workers.errors(steps.join, url)

    assert "there is no log to replay for RPC worker 'worker0'" in error.text
