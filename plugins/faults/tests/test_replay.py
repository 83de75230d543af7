"""Replays: they repeat the faults of a recorded run, and report where the program diverges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import rpc

from rpc_backends_faults import replay
from support import steps
from support.command import wait_until
from support.workers import WorkerContext, Workers

from . import fault_steps

RULE = '[[rule]]\nname = "r"\nwhat = "fail"\nfunction = "*.do"\nevery = 2\n'


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(f"seed = 3\n{RULE}")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Run a step on a worker; the keywords are the endings of environment variables."""
    number = 0

    def run(step: Any, *args: Any, **env: Any) -> Any:
        nonlocal number
        number += 1
        variables = {f"RPC_BACKENDS_FAULTS_{name}": str(value) for name, value in env.items()}
        if "RULES" in env:
            variables["RPC_BACKENDS_FAULTS"] = variables.pop("RPC_BACKENDS_FAULTS_RULES")
        with Workers(1, env=variables, seconds=60) as workers:
            workers.run(steps.join, f"file://{tmp_path}/store{number}", backend="TENSORPIPE")
            result = workers[0].call(step, *args)
            workers.run(steps.leave)
            workers[0].end()
            return result, workers[0].output

    return run


def refusal(tmp_path: Path, **env: Any) -> str:
    """Return the error of a start; the keywords are the endings of environment variables."""
    variables = {f"RPC_BACKENDS_FAULTS{name}": str(value) for name, value in env.items()}
    with Workers(1, env=variables, seconds=60) as workers:
        [error] = workers.errors(steps.join, f"file://{tmp_path}/refused", backend="TENSORPIPE")
    return error.text


def test_a_rule_that_changed_is_replayed_as_recorded(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    recorded, _ = run(change_a_rule, LOG=tmp_path / "log")
    replayed, output = run(change_a_rule, REPLAY=tmp_path / "log")

    assert recorded == ["first", "second", "first"]
    assert replayed == recorded
    assert "replay" not in output


def test_a_folder_with_two_runs_is_refused(
    run: Callable[..., Any], rules: Path, tmp_path: Path
) -> None:
    run(call, 1, RULES=rules, LOG=tmp_path / "log")
    _, warned = run(call, 2, RULES=rules, LOG=tmp_path / "log")

    text = refusal(tmp_path, _REPLAY=tmp_path / "log")
    assert "already has a log of RPC worker 'worker0' from another process" in warned
    assert (
        "logs of several processes of RPC worker 'worker0' (worker0.jsonl, worker0.2.jsonl)" in text
    )
    assert "Replay a folder with one run, or a single log" in text
    # A single log can be replayed.
    _, output = run(call, 2, REPLAY=tmp_path / "log" / "worker0.2.jsonl")
    assert "diverged" not in output


def test_rules_that_the_log_does_not_have_are_refused(
    run: Callable[..., Any], rules: Path, tmp_path: Path
) -> None:
    recorded, _ = run(call, 4, RULES=rules, LOG=tmp_path / "log")
    assert run(call, 4, RULES=rules, REPLAY=tmp_path / "log")[0] == recorded

    rules.write_text(f"seed = 3\n{RULE.replace('2', '3')}")
    text = refusal(tmp_path, **{"": rules, "_REPLAY": tmp_path / "log"})
    assert "rules.toml:2: the rule 'r' is not in" in text
    assert "A replay takes its rules from the log" in text


def test_a_seed_that_differs_from_the_log_is_refused(
    run: Callable[..., Any], rules: Path, tmp_path: Path
) -> None:
    run(call, 1, RULES=rules, LOG=tmp_path / "log")
    run(call, 1, SEED=3, REPLAY=tmp_path / "log")

    text = refusal(tmp_path, _SEED=4, _REPLAY=tmp_path / "log")
    assert "the seed 4 differs from the seed 3 of" in text
    assert "RPC_BACKENDS_FAULTS_SEED=3" in text


def test_an_added_rule_that_was_not_recorded_is_a_warning(
    run: Callable[..., Any], rules: Path, tmp_path: Path
) -> None:
    run(call, 1, RULES=rules, LOG=tmp_path / "log")
    _, output = run(add_a_rule, REPLAY=tmp_path / "log")

    assert (
        "the rule 'late' was added on RPC worker 'worker0' during a replay and has no effect"
        in output
    )


def test_divergence_is_reported_at_once_and_in_the_metrics(
    run: Callable[..., Any], rules: Path, tmp_path: Path
) -> None:
    run(call, 4, RULES=rules, LOG=tmp_path / "log")
    with Workers(1, env={"RPC_BACKENDS_FAULTS_REPLAY": str(tmp_path / "log")}) as workers:
        workers.run(steps.join, f"file://{tmp_path}/again", backend="TENSORPIPE")
        assert "diverged" not in workers[0].output
        workers[0].call(call, 2)
        workers[0].call(say, "something else")

        # The report must not wait for the end of the program.
        output = workers[0].output
        metrics = workers[0].call(fault_steps.metrics)
        workers.run(steps.leave)
    assert (
        "the replay on RPC worker 'worker0' diverged after 2 of 4 recorded messages: PYTHON_CALL "
        "plugins.faults.tests.fault_steps.do to 'worker0' (occurrence 1) is not in the log"
    ) in output
    assert metrics["faults.replay_new"] == "1"
    assert metrics["faults.replay_left"] == "2"


def test_a_stalled_replay_names_the_overdue_message(
    run: Callable[..., Any], rules: Path, tmp_path: Path
) -> None:
    run(call, 4, RULES=rules, LOG=tmp_path / "log")
    with Workers(1, env={"RPC_BACKENDS_FAULTS_REPLAY": str(tmp_path / "log")}) as workers:
        workers[0].call(report_overdue_messages_soon)
        workers.run(steps.join, f"file://{tmp_path}/again", backend="TENSORPIPE")
        workers[0].call(call, 2)
        # If the start or a call was slow, the replay has stalled before, too.
        stalled = "has stalled after 2 of 4 recorded messages: PYTHON_CALL"
        wait_until(lambda: stalled in workers[0].output)
        workers.run(steps.leave)
        output = workers[0].output

    assert "fault_steps.do to 'worker0' (occurrence 1) was recorded" in output.partition(stalled)[2]


# --- steps ----------------------------------------------------------------------------------------


def say(me: WorkerContext, what: Any) -> str:
    """Call `do`, and return the outcome."""
    try:
        rpc.rpc_sync(me.name, fault_steps.do, args=(what,))
    except RuntimeError as error:
        return str(error).rpartition(":")[2]
    return "done"


def call(me: WorkerContext, calls: int) -> list[str]:
    """Make calls, and return their outcomes."""
    return [say(me, number) for number in range(calls)]


def change_a_rule(me: WorkerContext) -> list[str]:
    """Call with a rule, with another rule of the same name, and with the first again."""
    import rpc_backends_faults as faults

    outcomes = []
    for text in ("first", "second", "first"):
        with faults.rule(name="r", what="fail", function="*.do", text=text):
            outcomes.append(say(me, 1))
    return outcomes


def add_a_rule(me: WorkerContext) -> str:
    """Call with an added rule that no earlier run had."""
    import rpc_backends_faults as faults

    with faults.rule(name="late", what="fail", function="*.do"):
        return say(me, 0)


def report_overdue_messages_soon(me: WorkerContext) -> None:
    """Shorten the time after which a replay reports an overdue message."""
    replay.STALL_TIMEOUT = 0.4


def test_an_event_may_have_line_separators_of_unicode(tmp_path: Path) -> None:
    text = "before\u2028then\u0085after"
    events = [{"event": "start"}, {"event": "refused", "problems": [text]}, {"event": "end"}]
    log = tmp_path / "worker.jsonl"
    lines = [json.dumps(event, ensure_ascii=False) for event in events]
    log.write_text("\n".join([*lines, '{"event": "cut o']), encoding="utf-8")
    assert replay.events(log) == list(enumerate(events, 1))
