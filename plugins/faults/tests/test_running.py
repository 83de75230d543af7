"""Rules of a running program: where they come from, how they change, and how they are reported."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

import rpc_backends_faults as faults
from rpc_backends_faults import marks, watching
from support import steps
from support.workers import WorkerContext, Workers

from . import fault_steps

FAIL = """
[[rule]]
name = "failing"
what = "fail"
function = "*.fault_steps.do"
"""
BACKENDS = ["TENSORPIPE", "ZEROMQ"]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(FAIL)
    return path


def agent_class(me: WorkerContext) -> str:
    """Return the class of the installed agent."""
    return type(rpc.api._get_current_rpc_agent()).__name__


def imported(me: WorkerContext) -> list[str]:
    """Return the imported modules of this package."""
    import sys

    return sorted(name for name in sys.modules if name.startswith("rpc_backends_faults"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_rules_the_agent_is_not_wrapped(url: str, backend: str) -> None:
    with Workers(1) as workers:
        workers.run(steps.join, url, backend=backend)

        assert not workers[0].call(agent_class).startswith("Intercepting")
        assert "rpc_backends_faults.start" not in workers[0].call(imported)
        workers.run(steps.leave)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unmodified_program_gets_the_faults_of_a_file(
    url: str, rules: Path, backend: str
) -> None:
    with Workers(2, env={"RPC_BACKENDS_FAULTS": str(rules)}) as workers:
        workers.run(steps.join, url, backend=backend)

        assert "'failing'" in workers[0].call(fault_steps.attempt, "worker1", 1)[0]
        assert workers[0].call(fault_steps.tensors, "worker1") == [3.0, 3.0]
        assert workers[0].call(fault_steps.metrics)["faults.failing.PYTHON_CALL.worker1"] == "1"
        workers.run(steps.leave)
        assert [worker.end() for worker in workers] == [0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_static_groups_work_with_fault_injection(url: str, backend: str) -> None:
    with Workers(3) as workers:
        workers.run(fault_steps.join, url, backend)
        names = [f"worker{rank}" for rank in range(3)]

        assert workers.run(steps.members) == [{name: i for i, name in enumerate(names)}] * 3
        assert workers.run(steps.call_all) == [{name: name for name in names}] * 3
        assert workers.run(steps.use_rref, "worker2") == [[2.0] * 3] * 3
        assert workers.run(steps.differentiate, "worker2") == [[3.0, 3.0]] * 3
        workers.run(steps.leave)
        assert [worker.end() for worker in workers] == [0, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_dynamic_groups_work_with_fault_injection(url: str, backend: str) -> None:
    with Workers(3) as workers:
        for worker in workers:
            worker.call(fault_steps.join, url, backend, world_size=None)
        names = {"worker0", "worker1", "worker2"}

        assert [set(members) for members in workers.run(steps.members)] == [names] * 3
        assert workers[2].call(fault_steps.attempt, "worker0", "x")[0] == "x"
        workers[1].call(steps.leave)
        assert set(workers[0].call(steps.members)) == {"worker0", "worker2"}
        assert workers[0].call(fault_steps.attempt, "worker2", "y")[0] == "y"
        for index in (0, 2):
            workers[index].call(steps.leave)
        assert [worker.end() for worker in workers] == [0, 0, 0]


def test_torchs_own_dynamic_groups_work_with_fault_injection(url: str) -> None:
    env = {"RPC_BACKENDS_FAULTS": "on", "RPC_BACKENDS_DENY": ""}
    with Workers(2, env=env) as workers:
        for worker in workers:
            worker.call(join_torchs_own, url)

        assert workers[0].call(fault_steps.attempt, "worker1", "x")[0] == "x"
        assert workers[1].call(agent_class).startswith("Intercepting")
        leaving = [worker.start(steps.leave) for worker in workers]
        assert [step.result() for step in leaving] == [None, None]


def join_torchs_own(me: WorkerContext, url: str) -> None:
    """Join a dynamic group with torch's handlers instead of the plugin's."""
    from torch.distributed.rpc import backend_registry

    rpc.backend_registry.register_backend(
        "TORCHS",
        backend_registry._tensorpipe_construct_rpc_backend_options_handler,
        backend_registry._tensorpipe_init_backend_handler,
    )
    options = rpc.TensorPipeRpcBackendOptions(init_method=url)
    rpc.init_rpc(
        me.name, backend=rpc.BackendType.TORCHS, rank=me.index, rpc_backend_options=options
    )


# --- changes while the program runs ---------------------------------------------------------------


def test_a_rule_applies_while_its_block_runs(url: str) -> None:
    with Workers(2) as workers:
        workers.run(fault_steps.join, url, "TENSORPIPE")

        assert workers[0].call(in_and_out) == ["done", "failed", "done"]
        workers.run(steps.leave)


def in_and_out(me: WorkerContext) -> list[str]:
    """Call before, inside and after the block of a rule."""
    outcomes = []

    def attempt() -> None:
        try:
            rpc.rpc_sync("worker1", fault_steps.do, args=("x",))
            outcomes.append("done")
        except RuntimeError:
            outcomes.append("failed")

    attempt()
    with faults.rule(what="fail", function="*.fault_steps.do"):
        attempt()
    attempt()
    return outcomes


def test_a_rule_can_be_added_on_another_worker(url: str) -> None:
    with Workers(3) as workers:
        workers.run(fault_steps.join, url, "TENSORPIPE")

        assert workers[0].call(rule_another) == ["failed", {"there": 1}, "done"]
        workers.run(steps.leave)


def rule_another(me: WorkerContext) -> list[Any]:
    """Make worker1's calls to worker2 fail."""
    there = faults.Worker("worker1")
    with there.rule(what="fail", name="there", function="*.fault_steps.do"):
        results: list[Any] = [rpc.rpc_sync("worker1", call_on, args=("worker2",)), there.counts()]
    results.append(rpc.rpc_sync("worker1", call_on, args=("worker2",)))
    return results


def call_on(to: str) -> str:
    """Call another worker; called by RPC."""
    try:
        rpc.rpc_sync(to, fault_steps.do, args=("x",))
    except RuntimeError:
        return "failed"
    return "done"


def test_a_rule_without_fault_injection_is_an_error_with_a_remedy(url: str) -> None:
    with Workers(1) as workers:
        workers.run(steps.join, url)
        [error] = workers.errors(fault_steps.add, {"what": "drop"})
        workers.run(steps.leave)

    assert error.kinds[0] == "NotWrappedError"
    assert "rpc_backends_faults.enable() before init_rpc" in error.text


def test_an_invalid_rule_is_refused_where_it_is_added(url: str) -> None:
    with Workers(1) as workers:
        workers.run(fault_steps.join, url, "TENSORPIPE")
        [error] = workers.errors(fault_steps.add, {"what": "dorp"})
        workers.run(steps.leave)

    assert "'dorp' is not a kind of fault. Did you mean 'drop'?" in error.text


def test_another_workers_refusal_of_a_rule_is_raised_here(url: str) -> None:
    with Workers(2) as workers:
        workers.run(fault_steps.join, url, "TENSORPIPE")
        error = workers[0].call(refused_by, "worker1")
        workers.run(steps.leave)

    assert "'dorp' is not a kind of fault. Did you mean 'drop'?" in error


def refused_by(me: WorkerContext, to: str) -> str:
    """Add an invalid rule on another worker."""
    try:
        faults.Worker(to).add(what="dorp")
    except ValueError as error:
        return str(error)
    return "taken"


def test_a_changed_file_is_loaded_unless_it_is_invalid(
    url: str, rules: Path, tmp_path: Path
) -> None:
    env = {"RPC_BACKENDS_FAULTS": str(rules), "RPC_BACKENDS_FAULTS_LOG": str(tmp_path / "log")}
    with Workers(2, env=env) as workers:
        workers.run(read_the_file_often)
        workers.run(steps.join, url)
        assert "'failing'" in workers[0].call(fault_steps.attempt, "worker1", 1)[0]

        replace(rules, FAIL.replace('"failing"', '"other"'))
        workers[0].call(wait_for_event, str(tmp_path / "log" / "worker0.jsonl"), "rules")
        assert "'other'" in workers[0].call(fault_steps.attempt, "worker1", 1)[0]

        replace(rules, FAIL.replace('"fail"', '"fial"'))
        workers[0].call(wait_for_event, str(tmp_path / "log" / "worker0.jsonl"), "refused")
        assert "'other'" in workers[0].call(fault_steps.attempt, "worker1", 1)[0]
        assert "Did you mean 'fail'?" in workers[0].output

        replace(rules, "")
        workers[0].call(wait_for_event, str(tmp_path / "log" / "worker0.jsonl"), "rules", 2)
        assert workers[0].call(fault_steps.attempt, "worker1", 1)[0] == "1"
        workers.run(steps.leave)


def read_the_file_often(me: WorkerContext) -> None:
    """Make this worker notice changes of the rule file sooner."""
    watching.INTERVAL = 0.05


def replace(path: Path, text: str) -> None:
    """Write a file as editors do: a new file replaces the old one."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def wait_for_event(me: WorkerContext, log: str, event: str, times: int = 1) -> None:
    """Wait until a log has an event."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if Path(log).read_text().count(f'"event":"{event}"') >= times:
            return
        time.sleep(0.02)
    raise AssertionError(Path(log).read_text())


# --- reports --------------------------------------------------------------------------------------


def test_a_rule_for_an_unknown_worker_fails_the_start(url: str, rules: Path) -> None:
    rules.write_text(FAIL + 'receiver = "wroker1"\n')
    with Workers(2, env={"RPC_BACKENDS_FAULTS": str(rules)}) as workers:
        errors = workers.errors(steps.join, url)

    for error in errors:
        assert error.kinds[0] == "RefusedError"
        assert f"{rules}:2: the rule 'failing' names 'wroker1'" in error.text
        assert "Did you mean 'worker1'?" in error.text


def test_an_invalid_file_fails_the_start(url: str, rules: Path) -> None:
    rules.write_text(FAIL + "probability = 2\n")
    with Workers(1, env={"RPC_BACKENDS_FAULTS": str(rules)}) as workers:
        [error] = workers.errors(steps.join, url)

    assert f"{rules}:6: the probability is 2; it must be a number from 0 to 1." in error.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[rule]]\nwhat = ["drop", "delay"]\n', "'what' is ['drop', 'delay']"),
        (f'[[rule]]\nwhat = "drop"\nprobability = {"9" * 401}\n', "the probability is 999"),
        (f"rule = {'[' * 5000}", "the values are nested too deeply"),
        (None, "is not a regular file"),
    ],
)
def test_a_file_outside_the_limits_fails_the_start(
    url: str, tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "rules.toml"
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text)
    with Workers(1, env={"RPC_BACKENDS_FAULTS": str(path)}, seconds=60) as workers:
        [error] = workers.errors(steps.join, url)

    assert error.kinds[0] == "RefusedError"
    assert said in error.text


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("RPC_BACKENDS_FAULTS", "1", "must be 'on' or the path of a rule file"),
        ("RPC_BACKENDS_FAULTS_LOGS", "logs", "Did you mean RPC_BACKENDS_FAULTS_LOG?"),
    ],
)
def test_an_invalid_variable_fails_the_start(
    url: str, variable: str, value: str, said: str
) -> None:
    with Workers(1, env={variable: value}) as workers:
        [error] = workers.errors(steps.join, url)

    assert error.kinds[0] == "RefusedError"
    assert said in error.text


def test_the_error_of_a_setting_is_short_and_has_its_text_once(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_FAULTS": "1"}) as workers:
        [error] = workers.errors(steps.join, url)

    assert error.trace.count("must be 'on' or the path of a rule file") == 1
    assert "rpc_backends_faults" not in error.trace


def test_a_recording_without_a_seed_fails_the_start(url: str, tmp_path: Path) -> None:
    (tmp_path / "worker0.jsonl").write_text('{"event": "start", "rules": []}\n{"event": "x"}\n')
    with Workers(1, env={"RPC_BACKENDS_FAULTS_REPLAY": str(tmp_path)}) as workers:
        [error] = workers.errors(steps.join, url)

    assert error.kinds[0] == "RefusedError"
    assert "worker0.jsonl:1: 'seed' is missing" in error.text


def test_a_log_that_is_cut_off_affects_no_call(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {"RPC_BACKENDS_FAULTS": "on", "RPC_BACKENDS_FAULTS_LOG": str(log)}
    with Workers(2, env=env) as workers:
        workers.run(steps.join, url)
        result = workers[0].call(call_with_small_files, str(log / "worker0.jsonl"))
        workers.run(steps.leave)
        output = workers[0].output

    assert result == [["1", "2", "3"], True]
    assert output.count("is cut off: File too large") == 1
    assert "the event log of RPC worker 'worker0' is incomplete" in output
    kept = (log / "worker0.jsonl").read_text().splitlines()[:-1]
    assert all(json.loads(line) for line in kept)


def call_with_small_files(me: WorkerContext, log: str) -> list[Any]:
    """Make calls while the log cannot grow, and look at the metrics."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(log).stat().st_size + 50, before[1]))
    try:
        answers = [fault_steps.attempt(me, "worker1", number)[0] for number in (1, 2, 3)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return [answers, int(fault_steps.metrics(me)["faults.log_failures"]) >= 3]


def test_rules_that_never_fired_are_named_at_the_end(url: str, rules: Path) -> None:
    rules.write_text(
        FAIL
        + """
[[rule]]
name = "idle"
what = "drop"
message = "RREF_USER_DELETE"
sender = "worker0"
[[rule]]
name = "improbable"
what = "drop"
function = "*.fault_steps.also_do"
probability = 0
"""
    )
    with Workers(2, env={"RPC_BACKENDS_FAULTS": str(rules)}) as workers:
        workers.run(steps.join, url)
        workers[0].call(fault_steps.attempt, "worker1", 1)
        workers[0].call(call_also, "worker1")
        workers.run(steps.leave)
        output0, output1 = (worker.output for worker in workers)

    assert (
        "fault rules that never fired on RPC worker 'worker0': 'idle' (no matching message"
        in output0
    )
    assert "'improbable' (1 matching messages were sent; none was selected)" in output0
    assert "'failing'" not in output0.split("never fired")[1]
    assert "'idle'" not in output1


def call_also(me: WorkerContext, to: str) -> None:
    """Make a call."""
    rpc.rpc_sync(to, fault_steps.also_do, args=(1,))


def test_the_log_is_complete_up_to_a_crash(url: str, rules: Path, tmp_path: Path) -> None:
    rules.write_text(FAIL.replace('"fail"', '"crash"') + "after = 2\n")
    log = tmp_path / "log"
    env = {"RPC_BACKENDS_FAULTS": str(rules), "RPC_BACKENDS_FAULTS_LOG": str(log)}
    with Workers(2, env=env) as workers:
        workers.run(steps.join, url)
        step = workers[0].start(call_several, "worker1", 5)
        assert workers[0].end() == -9
        del step
        workers[1].call(steps.leave, False)

    lines = [json.loads(line) for line in (log / "worker0.jsonl").read_text().splitlines()]
    calls = [event for event in lines if event.get("function", "").endswith(".fault_steps.do")]
    ends = {event["id"]: event["outcome"] for event in lines if event["event"] == "end"}
    assert lines[0]["event"] == "start"
    assert lines[0]["workers"] == ["worker0", "worker1"]
    assert [call["nth"] for call in calls] == [1, 2, 3]
    assert [ends.get(call["id"]) for call in calls] == ["answer", "answer", None]
    assert [fault["what"] for fault in calls[2]["faults"]] == ["crash"]


def call_several(me: WorkerContext, to: str, many: int) -> None:
    """Make the same call several times."""
    for _ in range(many):
        rpc.rpc_sync(to, fault_steps.do, args=("x",))


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_held_messages_are_sent_before_a_worker_leaves(url: str, backend: str) -> None:
    with Workers(2) as workers:
        workers.run(fault_steps.join, url, backend)
        workers[0].call(
            start_and_forget, {"what": "delay", "seconds": 0.5, "function": "*.fault_steps.do"}
        )
        workers.run(steps.leave)

        assert workers[1].call(fault_steps.seen) == ["forgotten"]


def start_and_forget(me: WorkerContext, rule: dict[str, Any]) -> None:
    """Start a call and do not wait for it."""
    faults.add(**rule)
    rpc.rpc_async("worker1", fault_steps.do, args=("forgotten",))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lost_call_fails_when_its_worker_shuts_down(url: str, backend: str) -> None:
    with Workers(2) as workers:
        workers.run(fault_steps.join, url, backend)
        error = workers[0].call(lose_and_leave)
        workers[1].call(steps.leave, False)

    assert "the RPC agent of this worker has been shut down" in error


def lose_and_leave(me: WorkerContext) -> str:
    """Make a call without a timeout, which a rule drops, and leave."""
    faults.add(what="drop", function="*.fault_steps.do")
    lost = rpc.rpc_async("worker1", fault_steps.do, args=("lost",), timeout=0)
    rpc.shutdown(graceful=False)
    try:
        lost.wait()
    except RuntimeError as error:
        return str(error)
    return "an answer"


def test_no_thread_and_no_open_file_is_left(url: str, rules: Path, tmp_path: Path) -> None:
    env = {"RPC_BACKENDS_FAULTS": str(rules), "RPC_BACKENDS_FAULTS_LOG": str(tmp_path / "log")}
    with Workers(1, env=env) as workers:
        workers.run(steps.join, url)
        workers[0].call(hold_some)
        workers.run(steps.leave)
        left = workers[0].call(look_around, str(tmp_path / "log"))

    assert left == {"threads": ["MainThread"], "log": False, "listeners": 0}


def test_a_failed_start_leaves_nothing(url: str, rules: Path, tmp_path: Path) -> None:
    """A hook that runs after that of the faults refuses the agent."""
    log = tmp_path / "log"
    env = {
        "RPC_BACKENDS_FAULTS": str(rules),
        "RPC_BACKENDS_FAULTS_LOG": str(log),
        "RPC_BACKENDS_OTEL": "maybe",
    }
    with Workers(1, env=env) as workers:
        [error] = workers.errors(steps.join, url)
        left = workers[0].call(look_around, str(log))
        [counting] = workers.errors(count)
    last_line = (log / "worker0.jsonl").read_text().splitlines()[-1]

    assert "RPC_BACKENDS_OTEL is 'maybe'" in error.text
    assert left == {"threads": ["MainThread"], "log": False, "listeners": 0}
    assert counting.kinds[0] == "NotWrappedError"
    assert json.loads(last_line)["event"] == "end of log"


def test_a_log_that_cannot_be_opened_leaves_nothing(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Workers(1, env={"RPC_BACKENDS_FAULTS_LOG": str(tmp_path / "file")}) as workers:
        [error] = workers.errors(steps.join, url)
        left = workers[0].call(look_around, str(tmp_path / "file"))

    assert "the event log cannot be written" in error.text
    assert left == {"threads": ["MainThread"], "log": False, "listeners": 0}


def count(me: WorkerContext) -> dict[str, int]:
    return faults.counts()


def hold_some(me: WorkerContext) -> None:
    """Hold some calls, so that the agent starts its threads."""
    with faults.rule(what="delay", seconds=0.01, function="torch.ops.aten.add"):
        rpc.rpc_sync(me.name, torch.add, args=(torch.ones(1), 1))


def look_around(me: WorkerContext, log: str) -> dict[str, Any]:
    """Return the Python threads, whether the log is open, and how many engines marks are told to."""
    files = [
        str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
    ]
    return {
        "threads": [thread.name for thread in threading.enumerate()],
        "log": any(file.startswith(log) for file in files),
        "listeners": len(marks._listeners),
    }


# --- FAULTY_TENSORPIPE ----------------------------------------------------------------------------


def test_the_options_of_faulty_tensorpipe_accept_rules(url: str, rules: Path) -> None:
    with Workers(2) as workers:
        workers.run(
            steps.join,
            url,
            backend="FAULTY_TENSORPIPE",
            rules=str(rules),
            messages_to_delay={"SCRIPT_CALL": 0.1},
        )

        assert workers[0].call(agent_class).startswith("Intercepting")
        assert "'failing'" in workers[0].call(fault_steps.attempt, "worker1", 1)[0]
        workers.run(steps.leave)


def test_faulty_tensorpipe_without_rules_is_not_wrapped(url: str) -> None:
    with Workers(1) as workers:
        workers.run(steps.join, url, backend="FAULTY_TENSORPIPE")

        assert workers[0].call(agent_class) == "FaultyTensorPipeStaticAgent"
        workers.run(steps.leave)


def test_invalid_rules_in_options_are_refused(url: str) -> None:
    with Workers(1) as workers:
        [error] = workers.errors(
            steps.join, url, backend="FAULTY_TENSORPIPE", rules=[{"what": "dorp"}]
        )

    assert "'dorp' is not a kind of fault. Did you mean 'drop'?" in error.text
