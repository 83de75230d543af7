"""What counts as a hang: on a busy machine, too, and only if it repeats."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpc_backends_faults.explore import progress
from rpc_backends_faults.explore.plan import Plan
from rpc_backends_faults.explore.processes import Program, RunningProgram
from rpc_backends_faults.explore.progress import Waiting
from rpc_backends_faults.explore.runs import Run
from rpc_backends_faults.explore.search import Search

pytestmark = pytest.mark.slow

LOGGED = Path(__file__).parent / "logged_program.py"
#: How many busy processes share each processor.
LOAD = 4


@contextlib.contextmanager
def running(code: str, number: int = 1) -> Iterator[list[int]]:
    """Run processes with this code; return when all of them have begun."""
    code = f"print(flush=True)\n{code}"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        for _ in range(number)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def busy() -> contextlib.AbstractContextManager[list[int]]:
    """Keep each processor busy with several processes."""
    return running("while True: pass", LOAD * (os.cpu_count() or 1))


def finished(folder: Path, code: str, hang: float, timeout: float = 60.0) -> Run:
    program = Program((sys.executable, "-c", textwrap.dedent(code)), hang, timeout, diagnose=False)
    started = RunningProgram(program, folder / "run", "")
    try:
        while (run := started.poll()) is None:
            time.sleep(0.02)
    finally:
        started.stop()
    return run


def counted(pids: list[int], seconds: float) -> float:
    """Return how many of these seconds count as waiting."""
    waiting = Waiting(lambda: pids, every=0.1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        waiting.look(time.monotonic())
        time.sleep(0.02)
    return waiting.seconds


def test_time_in_which_a_program_computes_hardly_counts() -> None:
    with running("while True: pass") as pids:
        assert counted(pids, 1.5) < 1.0


def test_a_wait_for_a_processor_that_lasts_longer_than_a_look_hardly_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux counts it when it ends: two looks see nothing, and the third one sees all of it."""
    seen = iter([(0.0, 0.0, 0), (0.0, 0.0, 0), (0.0, 0.0, 0), (0.01, 2.99, 1)])
    monkeypatch.setattr(progress, "thread_times", lambda _pids: {(1, 1): next(seen)})
    waiting = Waiting(lambda: [1], every=1.0)
    for now in (10.0, 11.0, 12.0, 13.0, 14.0):
        waiting.look(now)
    first = 1.0  # until the first look at the threads
    assert waiting.seconds - first == pytest.approx(3 * 0.25)  # as if it computed all the time


def test_time_in_which_all_threads_sleep_counts() -> None:
    with running("import time; time.sleep(600)") as pids:
        assert counted(pids, 1.5) > 1.0


def test_time_in_which_a_thread_polls_counts_on_a_busy_machine() -> None:
    with busy(), running("import time\nwhile True: time.sleep(0.002)") as pids:
        assert counted(pids, 2.0) > 1.2


def test_time_in_which_only_tensorpipe_polls_counts() -> None:
    code = """
import threading, time
def poll():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write("TP_SHM_reactor")
    while True: pass
threading.Thread(target=poll, daemon=True).start()
time.sleep(600)
"""
    with running(code) as pids:
        assert counted(pids, 1.5) > 1.0


def test_a_program_that_waits_for_a_processor_does_not_hang(tmp_path: Path) -> None:
    """The program is silent for twice the time of a hang, most of it without a processor."""
    code = """
        import time
        print("begin", flush=True)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            pass
    """
    with busy():
        run = finished(tmp_path, code, hang=2.0)

    assert (run.hang, run.status) == ("", 0)


def test_a_program_that_waits_on_a_busy_machine_hangs(tmp_path: Path) -> None:
    code = "import time; print(1, flush=True); time.sleep(600)"
    with busy():
        run = finished(tmp_path, code, hang=1.0)

    assert run.hang == "no event and no output for 1 s"


def test_a_program_that_spins_for_ever_hangs(tmp_path: Path) -> None:
    run = finished(tmp_path, "print(1, flush=True)\nwhile True: pass", hang=0.5)

    assert run.hang == "no event and no output for 0.5 s"


# --- failures that are not counted


def searched(tmp_path: Path, on_run: str, *, runs: int = 1, hang: float = 1.0) -> Search:
    """Search with one fault a run, in a program that knows how often it was run before (`number`)."""
    counter = tmp_path / "count"
    counter.touch()
    program = tmp_path / "train.py"
    program.write_text(
        f"""
import os, sys, time
from pathlib import Path
number = len(Path({str(counter)!r}).read_text())
with open({str(counter)!r}, "a") as file:
    file.write("x")
print("begin", flush=True)
{on_run}
{LOGGED.read_text()}"""
    )
    plan = Plan(
        Program((sys.executable, str(program)), hang, 300.0),
        tmp_path / "out",
        ("duplicate",),
        runs=runs,
        confirmations=2,
        jobs=1,
    )
    search = Search(plan)
    search.run()
    return search


def test_a_failure_that_also_comes_without_faults_is_a_note(tmp_path: Path) -> None:
    search = searched(tmp_path, "if number: sys.exit('the machine is too busy')")

    assert search.findings.failures == []
    (note, *_) = search.findings.notes
    assert "the machine is too busy (a run without faults failed so, too)" in note
    assert list((tmp_path / "out/doubtful").iterdir())


def test_a_hang_that_does_not_repeat_is_a_note(tmp_path: Path) -> None:
    search = searched(tmp_path, "if number == 1: time.sleep(600)")

    assert search.findings.failures == []
    assert "more runs with the same faults did not hang so" in search.findings.notes[0]


def test_a_hang_that_repeats_is_a_failure(tmp_path: Path) -> None:
    hangs = "if 'duplicate' in Path(os.environ['RPC_BACKENDS_FAULTS']).read_text(): time.sleep(600)"
    search = searched(tmp_path, hangs)

    (failure,) = search.findings.failures
    assert failure.cause.kind == "hang"
    assert (failure.shrunk.failed, failure.shrunk.of) == (2, 2)


def test_with_one_job_no_two_runs_overlap(tmp_path: Path) -> None:
    """The program waits for so long that it needs no processor, and fails if another one runs."""
    alone = f"""
import atexit
lock = {str(tmp_path / "lock")!r}
os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
atexit.register(os.unlink, lock)
time.sleep(5)
"""
    search = searched(tmp_path, alone, runs=2, hang=60.0)

    assert search.findings.explored == 2
    assert search.findings.failing_runs == 0
