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

from rpc_backends_faults.explore.processes import Program, RunningProgram
from rpc_backends_faults.explore.progress import Waiting
from rpc_backends_faults.explore.runs import Run
from rpc_backends_faults.explore.search import Plan, Search

PLANTED = Path(__file__).parent / "planted"
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


def test_time_in_which_all_threads_sleep_counts() -> None:
    with running("import time; time.sleep(600)") as pids:
        assert counted(pids, 1.5) > 1.0


def test_time_in_which_a_thread_polls_counts_on_a_busy_machine() -> None:
    with busy(), running("import time\nwhile True: time.sleep(0.002)") as pids:
        assert counted(pids, 2.0) > 1.2


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


def searched(tmp_path: Path, on_run: str, hang: float = 60.0) -> Search:
    """Search with one fault, in a program that knows how often it was run."""
    program = tmp_path / "train.py"
    lines = (PLANTED / "leaked_rref.py").read_text().split('if __name__ == "__main__":')
    begin = f"""
if __name__ == "__main__":
    import sys, time
    from pathlib import Path
    counter = Path({str(tmp_path / "count")!r})
    number = len(counter.read_text()) if counter.exists() else 0
    with counter.open("a") as file:
        file.write("x")
    print("begin", flush=True)
    {on_run}
"""
    program.write_text(lines[0] + begin + lines[1])
    out = tmp_path / "out"
    (out / "runs").mkdir(parents=True)
    command = (sys.executable, str(program))
    path = os.pathsep.join((str(PLANTED), os.environ.get("PYTHONPATH", "")))
    plan = Plan(
        Program(command, hang, 300.0, {"PYTHONPATH": path}),
        out,
        ("duplicate",),
        runs=1,
        confirmations=2,
        jobs=1,
    )
    search = Search(plan)
    search.run()
    return search


@pytest.mark.slow
def test_a_failure_that_also_comes_without_faults_is_a_note(tmp_path: Path) -> None:
    search = searched(tmp_path, "if number: sys.exit('the machine is too busy')")

    assert search.findings.failures == []
    (note, *_) = search.findings.notes
    assert "the machine is too busy (a run without faults failed so, too)" in note
    assert list((tmp_path / "out/doubtful").iterdir())


@pytest.mark.slow
def test_a_hang_that_does_not_repeat_is_a_note(tmp_path: Path) -> None:
    search = searched(tmp_path, "if number == 1: time.sleep(600)", hang=6.0)

    assert search.findings.failures == []
    assert "more runs with the same faults did not hang so" in search.findings.notes[0]


@pytest.mark.slow
def test_a_hang_that_repeats_is_a_failure(tmp_path: Path) -> None:
    hangs = "if 'duplicate' in Path(__import__('os').environ['RPC_BACKENDS_FAULTS']).read_text():"
    search = searched(tmp_path, f"{hangs} time.sleep(600)", hang=6.0)

    (found,) = search.findings.failures
    assert found.cause.kind == "hang"
    assert (found.shrunk.failed, found.shrunk.of) == (2, 2)
