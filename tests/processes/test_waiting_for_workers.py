"""Workers wait for each other in `init_rpc` and `shutdown` quietly, and learn why a wait is in vain."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import rpc

from support import steps
from support.steps import Meeting
from support.workers import WorkerContext, Workers

# UCX has the same agent as ZEROMQ.
BACKENDS = ["TENSORPIPE", "ZEROMQ", pytest.param("UCX", marks=pytest.mark.thorough)]
LONGER_THAN_A_SLICE, LONG = 1.5, 20.0


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Meeting]:
    with steps.meeting("tcp", tmp_path) as place:
        yield place


def timeout(me: WorkerContext) -> float:
    """Return the default timeout of this worker's calls."""
    return rpc.get_rpc_timeout()


def set_timeout(me: WorkerContext, seconds: float) -> None:
    """Set the default timeout of this worker's calls."""
    rpc._set_rpc_timeout(seconds)


def fail_to_shut_down(me: WorkerContext) -> None:
    """Shut down, and fail after all workers have arrived."""

    def refuse(*_: object) -> None:
        raise ValueError("the disk is full")

    rpc.api._delete_all_user_and_unforked_owner_rrefs = refuse
    rpc.shutdown()


def wait_quietly(workers: Workers, waiting: int, seconds: float) -> None:
    """Let a worker wait for so long; check that torch's store client writes nothing meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert "waitForInput" not in workers[waiting].output
        time.sleep(0.1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "seconds", [LONGER_THAN_A_SLICE, pytest.param(LONG, marks=pytest.mark.thorough)]
)
def test_waiting_for_a_worker_writes_nothing_of_the_store(
    where: Meeting, backend: str, seconds: float
) -> None:
    with Workers(2) as workers:
        step = workers[0].start(steps.join, where.url, backend=backend)
        wait_quietly(workers, 0, seconds)
        workers[1].call(steps.join, where.url, backend=backend)
        step.result()
        step = workers[0].start(steps.leave)
        wait_quietly(workers, 0, seconds)
        if seconds > 10:
            assert "has waited" in workers[0].output
            assert "for rank 1" in workers[0].output
        workers[1].call(steps.leave)
        step.result()
        for worker in workers:
            assert "waitForInput" not in worker.output


@pytest.mark.parametrize("backend", BACKENDS)
def test_shutdown_names_a_worker_that_was_killed(where: Meeting, backend: str) -> None:
    with Workers(3, seconds=60) as workers:
        workers.run(steps.join, where.url, backend=backend)
        workers.run(steps.call_all)
        workers[1].kill()
        leaving = [workers[index].start(steps.leave) for index in (0, 2)]
        for step in leaving:
            error = step.error().text
            assert error.startswith("RPC worker 'worker1' (rank 1) has ended"), error
        for index in (0, 2):
            assert "_all_gather" not in workers[index].output
            assert "Exception raised from" not in workers[index].output


def stop_after_an_error(me: WorkerContext) -> None:
    """Stop RPC without the others, as a program does that handles an error of its own."""
    try:
        int("the program's own error")
    except ValueError:
        rpc.shutdown(graceful=False)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_shutdown_names_a_worker_that_stopped_alone(
    where: Meeting, backend: str, ends: bool
) -> None:
    with Workers(3, seconds=60) as workers:
        workers.run(steps.join, where.url, backend=backend)
        workers[1].call(stop_after_an_error)
        if ends:
            workers[1].end()
        leaving = [workers[index].start(steps.leave) for index in (0, 2)]
        for step in leaving:
            error = step.error().text
            assert error.startswith("RPC worker 'worker1' (rank 1) has stopped RPC"), error


@pytest.mark.parametrize("backend", BACKENDS)
def test_shutdown_names_the_lost_host_of_the_store(where: Meeting, backend: str) -> None:
    with Workers(3, seconds=60) as workers:
        workers.run(steps.join, where.url, backend=backend)
        workers[0].kill()
        leaving = [workers[index].start(steps.leave) for index in (1, 2)]
        for step in leaving:
            error = step.error().text
            assert "the group's store at 127.0.0.1:" in error
            assert "hosts it ('worker0' (rank 0), or the launcher) has probably ended" in error
            assert "\n" not in error
        for index in (1, 2):
            assert "Exception raised from" not in workers[index].output


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failing_shutdown_ends_that_of_the_others(where: Meeting, backend: str) -> None:
    with Workers(2, seconds=60) as workers:
        workers.run(steps.join, where.url, backend=backend)
        leaving = workers[0].start(steps.leave)
        assert "the disk is full" in workers[1].start(fail_to_shut_down).error().text
        error = leaving.error().text
        assert error.startswith("RPC worker 'worker1' (rank 1) failed in shutdown()"), error
        assert error.endswith("ValueError: the disk is full")


@pytest.mark.parametrize("seconds", [float("inf"), pytest.param(1e10, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_endless_timeout_is_the_longest_that_torch_accepts(
    url: str, backend: str, seconds: float
) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url, backend=backend, rpc_timeout=seconds)
        workers.run(steps.call_all)
        assert {*workers.run(timeout)} == {2147483.0}
        workers.run(set_timeout, seconds)
        workers.run(steps.call_all)
        assert {*workers.run(timeout)} == {2147483.0}
        workers.run(steps.leave)
