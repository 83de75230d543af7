"""Worker processes for tests: failures are reported in time, and no process is left behind."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rpc_backends_processes import Done, Ended, Failure, News, Template
from support.command import wait_until
from support.workers import WorkerContext, WorkerError, Workers, template
from support.zeromq import eventually


def identity(me: WorkerContext) -> tuple[int, str, int, int]:
    return me.index, me.name, me.size, os.getpid()


def fail_on_the_second(me: WorkerContext) -> str:
    if me.index == 1:
        raise KeyError("the second fails")
    return "fine"


def sleep(me: WorkerContext) -> None:
    me.tell("sleeping")
    time.sleep(1000)


def fail_on_the_second_and_wait_on_the_others(me: WorkerContext, waits: Path) -> None:
    """Fail, once the other worker has reported what it does; busy cores may start it late."""
    me.doing("wait for the second")
    if me.index == 1:
        wait_until(waits.exists)
        fail_on_the_second(me)
    waits.touch()
    time.sleep(1000)


def add_up(me: WorkerContext, value: int) -> int:
    me.memory["sum"] = me.memory.get("sum", 0) + value
    return int(me.memory["sum"])


def variable(me: WorkerContext) -> str | None:
    return os.environ.get("SOME_VARIABLE")


def threads(me: WorkerContext) -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def end_abruptly(me: WorkerContext) -> None:
    print("last words")
    os._exit(3)


def count(me: WorkerContext, *pauses: float) -> int:
    for pause in pauses:
        time.sleep(pause)
        me.tell(me.index)
    return me.index


def tell_after(me: WorkerContext, turns: list[Path]) -> int:
    """Tell the number of each turn when its file is there."""
    for turn in turns:
        eventually(turn.exists, lambda: "the next turn")
        me.tell(int(turn.name))
    return me.index


def start_something(me: WorkerContext) -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def end_in_time(*pids: int) -> bool:
    """Return whether all of these processes end within ten seconds; a killed one takes a while."""
    deadline = time.monotonic() + 10
    while any(map(runs, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    """Return whether a process runs: one that was killed and not yet reaped does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
        return False


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
def test_steps_run_in_separate_processes_that_keep_state(fresh: bool) -> None:
    with Workers(3, env={"SOME_VARIABLE": "x"}, fresh=fresh) as workers:
        seen = workers.run(identity)
        assert seen == [(i, f"worker{i}", 3, workers[i].pid) for i in range(3)]
        assert workers.run(variable) == ["x"] * 3
        assert workers.run(threads) == [1, 1, 1]
        assert workers.run(add_up, 2) == [2, 2, 2]
        assert workers[1].call(add_up, 3) == 5
        assert workers.run(add_up, 0, on=[2, 1]) == [2, 5]


def test_an_error_shows_the_workers_traceback() -> None:
    with Workers(2) as workers, pytest.raises(WorkerError) as caught:
        workers.run(fail_on_the_second)

    assert "--- worker1" in str(caught.value)
    assert "in fail_on_the_second" in str(caught.value)
    assert "KeyError: 'the second fails'" in str(caught.value)
    assert "--- worker0" not in str(caught.value)


def test_an_expected_error_that_is_missing_is_an_error() -> None:
    with Workers(2) as workers, pytest.raises(WorkerError, match="worker0 returned 'fine'"):
        workers.errors(fail_on_the_second)


def test_a_timeout_shows_where_each_worker_is() -> None:
    with Workers(2) as workers:
        steps = [worker.start(sleep) for worker in workers]
        assert [step.news() for step in steps] == ["sleeping"] * 2
        with workers.within(0.5), pytest.raises(WorkerError) as caught:
            steps[0].result()

    assert str(caught.value).startswith("worker0 did not finish its step in time")
    assert str(caught.value).count(" in sleep\n") == 2


def test_a_failure_is_not_hidden_by_workers_that_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rpc_backends_processes.workers._GRACE_PERIOD", 0.2)
    with Workers(2) as workers, pytest.raises(WorkerError) as caught:
        workers.run(fail_on_the_second_and_wait_on_the_others, tmp_path / "waits")

    text = str(caught.value)
    assert [failure.worker for failure in caught.value.failures] == ["worker1"]
    assert "KeyError: 'the second fails'" in text
    assert "--- worker0 had not finished: wait for the second\n" in text
    assert "in fail_on_the_second_and_wait_on_the_others\n" in text


def test_the_error_of_an_exited_worker_shows_its_output() -> None:
    with Workers(1) as workers, pytest.raises(WorkerError) as caught:
        workers.run(end_abruptly)

    assert "worker0 ended during a step, exit status 3\nlast words" in str(caught.value)


def test_workers_can_be_interrupted_killed_and_ended() -> None:
    with Workers(3) as workers:
        step = workers[0].start(sleep)
        assert step.news() == "sleeping"
        workers[0].interrupt()
        assert step.error().kinds[0] == "KeyboardInterrupt"

        workers[1].kill()
        assert workers[1].status == -signal.SIGKILL
        assert workers[2].end() == 0
        assert len(workers.run(identity)) == 1


def test_no_process_is_left_after_a_failed_test() -> None:
    pids = []
    with pytest.raises(ZeroDivisionError), Workers(2) as workers:
        pids = [worker.pid for worker in workers]
        workers[0].start(sleep)
        raise ZeroDivisionError

    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_workers_interrupted_while_starting_are_cleaned_up() -> None:
    workers = Workers(2)
    started = []

    def fork(*arguments: Any) -> Any:
        if started:
            raise KeyboardInterrupt
        started.append(template().fork(*arguments))
        return started[0]

    workers.template = SimpleNamespace(fork=fork)
    with pytest.raises(KeyboardInterrupt):
        workers.__enter__()
    workers.__exit__()

    ((pid, _),) = started
    assert not Path(f"/proc/{pid}").exists()


def test_is_over_does_not_abort_the_step() -> None:
    with Workers(1) as workers:
        step = workers[0].start(sleep)
        assert step.news() == "sleeping"
        assert not step.is_over(0.01)

        workers[0].interrupt()

        assert step.is_over(30)
        assert step.error().kinds[0] == "KeyboardInterrupt"


def test_is_over_shows_the_output_of_a_dead_worker() -> None:
    with Workers(1) as workers:
        step = workers[0].start(end_abruptly)

        with pytest.raises(WorkerError, match="last words"):
            step.is_over(30)


def test_listen_yields_reports_in_order_of_arrival(tmp_path: Path) -> None:
    turns = [tmp_path / str(turn) for turn in range(3)]
    with Workers(2, seconds=math.inf) as workers:
        steps = [
            workers[0].start(tell_after, turns[0::2]),
            workers[1].start(tell_after, turns[1:2]),
        ]
        turns[0].touch()
        heard = []
        for step, report in workers.listen(steps):
            heard.append((step.worker.index, report))
            if isinstance(report, News) and report.value + 1 < len(turns):
                turns[report.value + 1].touch()

    assert [index for index, report in heard if isinstance(report, News)] == [0, 1, 0]
    assert sorted(report.value for _, report in heard if isinstance(report, Done)) == [0, 1]


def test_listen_ends_after_silence_or_the_time_limit() -> None:
    with Workers(2) as workers:
        steps = [workers[0].start(count, *[0.1] * 1000), workers[1].start(sleep)]
        assert steps[1].news() == "sleeping"

        silent = list(workers.listen(steps[1:], silence=0.5))
        assert steps[0].news() == 0  # it is not silent, and the next limit is that of the block
        with workers.within(2):
            heard = list(workers.listen(steps, silence=60))

        assert silent == []
        assert {report for _, report in heard} == {News(0)}
        assert [step.ending for step in steps] == [None, None]
        assert workers.seconds_left() > 0


def test_after_a_failure_the_others_have_a_grace_period() -> None:
    with Workers(3) as workers:
        steps = [
            workers[0].start(end_abruptly),
            workers[1].start(fail_on_the_second),
            workers[2].start(sleep),
        ]
        assert steps[2].news() == "sleeping"

        for _ in workers.listen(steps, grace=30):
            if steps[0].ending and steps[1].ending and not steps[2].ending:
                workers[2].interrupt()

        ended, failure, interrupted = (step.ending for step in steps)
        assert ended == Ended(3)
        assert isinstance(failure, Failure)
        assert abs(time.monotonic() - failure.when) < 30
        assert isinstance(interrupted, Failure)


def test_listen_ends_after_the_grace_period() -> None:
    with Workers(2) as workers:
        steps = [workers[0].start(sleep), workers[1].start(fail_on_the_second)]
        assert steps[0].news() == "sleeping"

        assert [type(report) for _, report in workers.listen(steps, grace=0.5)] == [Failure]

        assert steps[0].ending is None
        assert workers.seconds_left() > 0


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
def test_workers_start_despite_a_default_timeout_of_sockets(fresh: bool) -> None:
    socket.setdefaulttimeout(0.05)
    try:
        with Template() as own, Workers(2, fresh=fresh, template=own) as workers:
            assert workers.run(count) == [0, 1]
            assert [worker.end() for worker in workers] == [0, 0]
    finally:
        socket.setdefaulttimeout(None)


class Interrupted:
    """A socket on which the first wait for an answer ends by Ctrl-C."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self.is_first = True

    def recv(self, size: int) -> bytes:
        if self.is_first:
            self.is_first = False
            raise KeyboardInterrupt
        return self._requests.recv(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._requests, name)


def test_after_an_interrupted_fork_a_template_gives_each_answer_to_its_request() -> None:
    with Template() as own:
        vars(own)["_requests"] = Interrupted(own._requests)
        with pytest.raises(KeyboardInterrupt), Workers(2, template=own):
            pytest.fail("the workers have started")

        with Workers(2, template=own) as workers:
            assert [pid for *_, pid in workers.run(identity)] == [worker.pid for worker in workers]
            assert [worker.end() for worker in workers] == [0, 0]


def test_after_an_interrupted_wait_for_an_end_all_workers_are_closed() -> None:
    with Template() as own:
        with Workers(2, template=own) as workers:
            vars(own)["_requests"] = Interrupted(own._requests)
            with pytest.raises(KeyboardInterrupt):
                workers[0].end()

        assert [worker.status for worker in workers] == [0, -signal.SIGKILL]


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
def test_child_processes_of_a_worker_end_with_it(fresh: bool) -> None:
    with Workers(2, fresh=fresh) as workers:
        first, second = workers.run(start_something)
        assert workers[0].end() == 0
        assert end_in_time(first)
        assert runs(second)

    assert end_in_time(second)


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
def test_no_worker_outlives_its_killed_parent(fresh: bool, tmp_path: Path) -> None:
    code = f"""if True:
        import os, signal
        from pathlib import Path
        from rpc_backends_processes import Template, Workers
        with Workers(2, fresh={fresh}, template=Template()) as workers:
            Path("pids").write_text(" ".join(str(worker.pid) for worker in workers))
            os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)

    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert end_in_time(*pids)
