"""How a run is judged, and that all of its processes end."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_faults.explore import invariants, problems
from rpc_backends_faults.explore.diagnosis import diagnose, waits
from rpc_backends_faults.explore.invariants import Invariant
from rpc_backends_faults.explore.processes import Program, RunningProgram
from rpc_backends_faults.explore.runs import Run
from rpc_backends_faults.explore.verdicts import judge

LEAVES_A_PROCESS = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
"""


def finished(folder: Path, code: str, hang: float = 60.0, timeout: float = 60.0) -> Run:
    """Run Python code as a program."""
    program = Program((sys.executable, "-c", textwrap.dedent(code)), hang, timeout, diagnose=False)
    running = RunningProgram(program, folder / "run", "")
    try:
        while (run := running.poll()) is None:
            time.sleep(0.02)
        assert running.processes() == []
    finally:
        running.stop()
    return run


def with_output(folder: Path, output: str, status: int = 1) -> Run:
    folder.mkdir(exist_ok=True)
    (folder / "output.txt").write_text(textwrap.dedent(output))
    return Run(folder, status, 1.0)


def test_a_program_that_ends_well_has_no_cause(tmp_path: Path) -> None:
    assert judge(finished(tmp_path, "print('done')")) == []


def test_an_accepted_status_has_no_cause(tmp_path: Path) -> None:
    run = finished(tmp_path, "raise SystemExit(3)")

    assert judge(run, accepted=(0, 3)) == []
    assert [cause.kind for cause in judge(run)] == ["exit"]


def test_an_exception_is_named_with_its_function(tmp_path: Path) -> None:
    (cause,) = judge(finished(tmp_path, "def train():\n  raise ValueError('no 7')\ntrain()"))

    assert cause.kind == "exit"
    assert cause.title == "ValueError in train: no 7"


def test_the_error_of_a_worker_is_named_before_the_launchers(tmp_path: Path) -> None:
    output = """\
        Traceback (most recent call last):
          File "/x/train.py", line 12, in main
            mp.spawn(work)
        torch.multiprocessing.spawn.ProcessRaisedException:

        Traceback (most recent call last):
          File "/x/train.py", line 8, in work
            call()
          File "/x/lib/python3.11/site-packages/torch/api.py", line 842, in rpc_sync
            return fut.wait()
        RuntimeError: RPC ran for more than 1500 ms
        """
    (cause,) = judge(with_output(tmp_path, output))

    assert cause.title == "RuntimeError in work: RPC ran for more than 1500 ms"


def test_failures_that_differ_in_numbers_have_one_cause(tmp_path: Path) -> None:
    first, second = (
        judge(with_output(tmp_path / name, f"lost {number} of 9\n"))[0].key
        for name, number in (("a", 1), ("b", 2))
    )

    assert first == second


def test_a_signal_is_a_cause(tmp_path: Path) -> None:
    (cause,) = judge(finished(tmp_path, "import os; os.kill(os.getpid(), 11)"))

    assert (cause.kind, cause.title) == ("signal", "a process was ended by SIGSEGV")


def test_a_program_without_progress_hangs_and_is_ended(tmp_path: Path) -> None:
    run = finished(tmp_path, "import time; print(1, flush=True); time.sleep(600)", hang=0.5)

    assert run.status is None
    assert [cause.kind for cause in judge(run)] == ["hang"]


def thread(*places: str) -> dict[str, Any]:
    """Return a thread as in `rpc-backends inspect --json`; each place is FILE:FUNCTION."""
    frames = [
        {"file": file, "line": 8, "function": function}
        for file, _, function in (place.partition(":") for place in places)
    ]
    return {"thread": 1, "holds_gil": False, "frames": frames}


def test_a_hang_waits_in_the_innermost_functions_of_the_program() -> None:
    library = "/x/site-packages/torch/api.py:rpc_sync"
    ours = "/y/src/rpc_backends_core/_patches.py:call"
    work = thread(library, ours, "/p/group.py:retry", "/p/train.py:work", "/p/train.py:main")
    timer = thread("/usr/lib/python3.12/threading.py:wait")

    assert waits([work, timer]) == {"retry from work"}


def hung(folder: Path, *waiting: str, cause: str = "") -> Run:
    causes = [cause] if cause else []
    return Run(folder, None, 1.0, "no event", causes=causes, waiting=list(waiting))


def test_hangs_in_different_functions_have_different_causes(tmp_path: Path) -> None:
    put, barrier = (judge(hung(tmp_path, where))[0].key for where in ("put", "barrier"))

    assert put != barrier


def test_hangs_are_the_same_if_a_worker_could_not_be_asked(tmp_path: Path) -> None:
    (both,), (first_only,), (none,), (different,) = (
        judge(hung(tmp_path, *where)) for where in (("put", "wait"), ("put",), (), ("barrier",))
    )

    assert both.is_same(first_only)
    assert none.is_same(both)
    assert not different.is_same(both)


def test_a_hang_keeps_its_cause_if_the_likely_reason_differs(tmp_path: Path) -> None:
    cycle, threads = (
        judge(hung(tmp_path, "put", cause=text))[0].key for text in ("cycle", "threads")
    )

    assert cycle == threads


@pytest.mark.slow
def test_the_workers_of_a_run_that_hangs_say_where_they_wait(tmp_path: Path) -> None:
    program = Path(__file__).parent / "planted/pool_deadlock.py"
    rules = '[[rule]]\nwhat = "duplicate"\nfunction = "*.put"\nfirst = 1\n'
    running = RunningProgram(
        Program((sys.executable, str(program)), 15.0, 300.0), tmp_path / "run", rules
    )
    try:
        while (run := running.poll()) is None:
            time.sleep(0.05)
    finally:
        running.stop()

    (cause,) = judge(run)
    # On a busy machine, a worker may not answer in time.
    assert {"confirm", "retry from work"} & cause.waiting
    assert cause.waiting <= {"_run from run", "confirm", "put", "retry from work"}


def test_a_program_that_only_prints_is_ended_too(tmp_path: Path) -> None:
    code = "import time\nwhile True: print('.'); time.sleep(0.05)"
    run = finished(tmp_path, code, timeout=1.0)

    assert run.hang == "it had not ended after 1 s"


def test_a_process_that_left_its_group_is_reported_and_ended(tmp_path: Path) -> None:
    run = finished(tmp_path, LEAVES_A_PROCESS)

    (cause,) = judge(run)
    assert cause.kind == "left behind"
    assert "time.sleep(600)" in cause.title


def test_processes_left_behind_do_not_hide_a_broken_invariant(tmp_path: Path) -> None:
    def check(run: Run) -> None:
        raise AssertionError("2 is lost")

    run = with_output(tmp_path, "applied 1", 0)
    run.left_behind = ["7 sleep"]

    kinds = [cause.kind for cause in judge(run, [Invariant("all_applied", check)])]
    assert kinds == ["invariant", "left behind"]


def test_each_signal_is_a_cause(tmp_path: Path) -> None:
    output = """\
        process 0 terminated with signal SIGSEGV
        process 1 terminated with signal SIGABRT
        process 2 terminated with signal SIGSEGV
        """

    keys = [cause.key for cause in judge(with_output(tmp_path, output))]
    assert keys == ["signal SIGSEGV", "signal SIGABRT"]


def test_an_invariant_that_raises_is_a_cause(tmp_path: Path) -> None:
    def check(run: Run) -> None:
        assert "applied 2" in run.output, "2 is lost"

    (cause,) = judge(with_output(tmp_path, "applied 1", 0), [Invariant("all_applied", check)])

    assert (cause.kind, cause.title) == ("invariant", "all_applied: 2 is lost")


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("applied 1\napplied 2", ""),
        ("applied 2", "lost: 1"),
        ("applied 1\napplied 2\napplied 2", r"done again: 2 \(2 times\)"),
        ("applied 1\napplied 2\napplied 3", "not expected: 3"),
    ],
)
def test_exactly_once_names_lost_and_repeated_updates(
    tmp_path: Path, output: str, problem: str
) -> None:
    run = with_output(tmp_path / "run", output, 0)
    run.baseline = with_output(tmp_path / "baseline", "applied 1\napplied 2", 0)

    if not problem:
        invariants.exactly_once(run, r"applied (\d+)")
        return
    with pytest.raises(AssertionError, match=problem):
        invariants.exactly_once(run, r"applied (\d+)")


def test_a_result_is_compared_with_the_fault_free_run(tmp_path: Path) -> None:
    run = with_output(tmp_path / "run", "parameters ab", 0)
    run.baseline = with_output(tmp_path / "baseline", "parameters cd", 0)

    with pytest.raises(AssertionError, match="differs from"):
        invariants.same_as_without_faults(run, r"parameters (\w+)")


def with_memory(folder: Path, mebibytes: int) -> Run:
    (folder / "logs").mkdir(parents=True)
    start = '{"t":1.0,"event":"start","worker":"ps","seed":0,"rules":[],"pid":1}\n'
    end = f'{{"t":2.0,"event":"end of log","memory":{mebibytes * 2**20}}}\n'
    (folder / "logs" / "ps.jsonl").write_text(start + end)
    return Run(folder, 0, 1.0)


def test_memory_that_a_worker_does_not_give_back_is_named(tmp_path: Path) -> None:
    run, little = with_memory(tmp_path / "a", 300), with_memory(tmp_path / "b", 110)
    run.baseline = little.baseline = with_memory(tmp_path / "c", 100)

    invariants.memory_back(little)
    with pytest.raises(AssertionError, match="ps has 200 MiB more than without faults"):
        invariants.memory_back(run)


def test_a_loss_outside_its_band_is_refused(tmp_path: Path) -> None:
    run = with_output(tmp_path, "loss 3.5\nloss 0.7", 0)

    invariants.within(run, r"loss (\S+)", 0.0, 1.0)
    with pytest.raises(AssertionError, match=r"0\.7 is not within 0 and 0.5"):
        invariants.within(run, r"loss (\S+)", 0.0, 0.5)


@pytest.mark.parametrize(
    "check",
    [
        lambda run: invariants.exactly_once(run, r"aplied (\d+)"),
        lambda run: invariants.same_as_without_faults(run, r"aplied (\d+)"),
        lambda run: invariants.within(run, r"aplied (\d+)", 0, 1),
    ],
)
def test_a_pattern_without_a_line_fails_in_the_fault_free_run(
    tmp_path: Path, check: Callable[[Run], None]
) -> None:
    run = with_output(tmp_path, "applied 1", 0)

    with pytest.raises(AssertionError, match=r"no line matches 'aplied .* in the output"):
        check(run)


def test_files_in_which_no_line_matches_are_named(tmp_path: Path) -> None:
    run = with_output(tmp_path, "applied 1", 0)

    with pytest.raises(AssertionError, match=r"in the files '\*\.txt'"):
        invariants.exactly_once(run, r"applied (\d+)", file="*.txt")


def test_rrefs_before_a_function_that_nothing_calls_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = [
        {"t": 1.0, "event": "start", "worker": "trainer", "seed": 0, "rules": [], "pid": 1},
        {
            "t": 2.0,
            "event": "request",
            "id": 1,
            "to": "ps",
            "type": "PYTHON_CALL",
            "function": "m.end",
        },
    ]
    (tmp_path / "logs" / "trainer.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in log))
    run = Run(tmp_path, 0, 1.0)

    invariants.rrefs_deleted(run, before="m.end")
    with pytest.raises(
        AssertionError, match=r"no call of 'm\.nosuch'. The functions called are: m\.end"
    ):
        invariants.rrefs_deleted(run, before="m.nosuch")


def test_memory_that_no_log_has_fails_in_the_fault_free_run(tmp_path: Path) -> None:
    run = with_output(tmp_path / "a", "", 0)

    with pytest.raises(AssertionError, match="no event log has the memory of a worker"):
        invariants.memory_back(run)
    run.baseline = with_memory(tmp_path / "b", 100)
    invariants.memory_back(run)


def test_a_written_test_reports_an_invariant_that_fails_without_faults(tmp_path: Path) -> None:
    checks = tmp_path / "checks.py"
    checks.write_text(
        "from rpc_backends_faults.explore import invariants\n"
        "def check_once(run): invariants.exactly_once(run, r'aplied (.*)')\n"
    )
    rules = tmp_path / "rules.toml"
    rules.write_text("")

    (problem,) = problems(
        [sys.executable, "-c", "print('applied 1')"], rules, tmp_path, invariants=checks
    )
    assert problem.startswith("without faults: once: no line matches")


def test_a_file_without_invariants_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text("def other(run): pass\n")

    with pytest.raises(ValueError, match="no function whose name begins with 'check_'"):
        invariants.load(tmp_path / "checks.py")


def test_it_is_said_why_hung_processes_cannot_be_inspected() -> None:
    text = diagnose([os.getpid()]).text  # it records nothing
    assert "no RPC worker" in text
