"""Shutdown, and requests whose functions have returned futures."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

#: Futures and calls that stay alive until their process ends.
kept: list[Any] = []
#: Set when this worker has probably begun to leave.
leaving = threading.Event()
#: Set when this worker runs :func:`answer_soon`.
asked = threading.Event()


@rpc.functions.async_execution
def wait_forever() -> torch.futures.Future[int]:
    """Return a future that never gets a value, as a queue does whose producer has ended."""
    future: torch.futures.Future[int] = torch.futures.Future()
    kept.append(future)
    return future


@rpc.functions.async_execution
def wait_forever_later() -> torch.futures.Future[int]:
    """Do the same, but only when this worker has probably begun to leave."""
    assert leaving.wait(60)
    return wait_forever()


@rpc.functions.async_execution
def answer_soon() -> torch.futures.Future[int]:
    """Return a future that gets its value when this worker has probably begun to shut down."""
    future: torch.futures.Future[int] = torch.futures.Future()
    threading.Timer(0.5, future.set_result, [3]).start()
    asked.set()
    return future


def wait_until_asked(me: WorkerContext) -> None:
    """Wait for the call: a worker that has left before it arrives cannot answer."""
    assert asked.wait(60)


def time_out(me: WorkerContext, *names: str, called: Any = wait_forever) -> None:
    """Make a call to each worker whose future never gets a value."""
    for name in names:
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            rpc.rpc_sync(name, called, timeout=0.2)


def return_soon(me: WorkerContext) -> None:
    """Let the running function return its future when this worker has probably begun to leave."""
    threading.Timer(0.5, leaving.set).start()


def call_soon(me: WorkerContext) -> None:
    """Make a call, and do not wait for its answer."""
    kept.append(rpc.rpc_async("worker1", answer_soon))


def answer_when_there(me: WorkerContext) -> int:
    """Wait for the answer of the call, and return it."""
    value: int = kept[-1].wait()
    return value


def answer(me: WorkerContext) -> int:
    """Return the answer of the call."""
    value: int = kept[-1].value()
    return value


@pytest.mark.parametrize(
    ("backend", "size"), [("TENSORPIPE", 2), ("ZEROMQ", 2), ("UCX", 2), ("ZEROMQ", None)]
)
def test_shutdown_leaves_futures_whose_callers_have_gone(
    tmp_path: Path, backend: str, size: int | None
) -> None:
    with Workers(2, seconds=90) as workers:
        url = f"file://{tmp_path}/store"
        workers.run(steps.join, url, backend=backend, world_size=size, rpc_timeout=3600)
        workers[0].call(time_out, "worker0", "worker1")
        workers.run(steps.leave)
        assert [worker.end() for worker in workers] == [0, 0]


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_leaving_a_group_does_not_wait_for_callers_that_have_timed_out(
    tmp_path: Path, backend: str
) -> None:
    """The caller stays in the group, so its connection says nothing about its call."""
    with Workers(2, seconds=90) as workers:
        workers.run(steps.join_dynamic, f"file://{tmp_path}/store", backend=backend)
        workers[0].call(time_out, "worker1")
        # Longer than the whole test may take: the end of this wait would be a failure.
        workers[1].call(steps.leave, timeout=600)
        workers[0].call(steps.leave)


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_leaving_a_group_does_not_wait_for_a_future_that_comes_later(
    tmp_path: Path, backend: str
) -> None:
    with Workers(2, seconds=30) as workers:
        workers.run(steps.join_dynamic, f"file://{tmp_path}/store", backend=backend)
        workers[0].call(time_out, "worker1", called=wait_forever_later)
        workers[1].call(return_soon)
        workers[1].call(steps.leave, timeout=600)
        workers[0].call(steps.leave)


def note_questions(me: WorkerContext) -> None:
    """Note the calls that this worker makes, and the threads of its agent that it starts, from now on."""
    call, start = rpc.rpc_async, threading.Thread.start
    monkeypatch = pytest.MonkeyPatch()

    def note_call(*args: Any, **more: Any) -> torch.futures.Future[Any]:
        kept.append("call")
        return call(*args, **more)

    def note_thread(thread: threading.Thread) -> None:
        target = getattr(getattr(thread, "_target", None), "__qualname__", "")
        if "Agent." in target:
            kept.append(target)
        start(thread)

    monkeypatch.setattr(rpc, "rpc_async", note_call)
    monkeypatch.setattr(threading.Thread, "start", note_thread)


def noted(me: WorkerContext) -> list[Any]:
    """Return what was noted."""
    return [what for what in kept if isinstance(what, str)]


@pytest.mark.parametrize("unanswered", [False, True])
def test_leaving_a_group_asks_callers_only_about_unanswered_calls(
    tmp_path: Path, *, unanswered: bool
) -> None:
    with Workers(2, seconds=90) as workers:
        workers.run(steps.join_dynamic, f"file://{tmp_path}/store", backend="ZEROMQ")
        if unanswered:
            workers[0].call(time_out, "worker1")
        else:
            workers[0].call(call_soon)
            assert workers[0].call(answer_when_there) == 3
        workers[1].call(note_questions)
        workers[1].call(steps.leave, timeout=600)
        assert set(workers[1].call(noted)) == ({"call"} if unanswered else set())
        workers[0].call(steps.leave)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_leaving_a_group_does_not_wait_for_a_caller_that_has_left(
    tmp_path: Path, backend: str, *, ends: bool
) -> None:
    """The caller hosts the store, and leaves before its process ends, or is still there."""
    with steps.meeting("tcp", tmp_path) as where, Workers(2, seconds=90, env=where.env) as workers:
        for worker in workers:
            worker.call(steps.join_dynamic, where.url, backend=backend)
        workers[0].call(time_out, "worker1")
        workers[0].call(steps.leave)
        if ends:
            workers[0].end()
        workers[1].call(steps.leave, timeout=600)


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_leaving_a_group_waits_for_futures_that_get_values(tmp_path: Path, backend: str) -> None:
    with Workers(2, seconds=90) as workers:
        workers.run(steps.join_dynamic, f"file://{tmp_path}/store", backend=backend)
        workers[0].call(call_soon)
        workers[1].call(wait_until_asked)
        workers[1].call(steps.leave)
        # The answer was sent before the other worker left; the caller may not have read it yet.
        assert workers[0].call(answer_when_there) == 3
        workers[0].call(steps.leave)


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_leaving_a_group_does_not_wait_for_own_calls(tmp_path: Path, backend: str) -> None:
    """A worker's calls to itself that have timed out wait for nothing, so nor does it."""
    with Workers(1, seconds=60) as workers:
        workers.run(steps.join_dynamic, f"file://{tmp_path}/store", backend=backend)
        workers[0].call(time_out, "worker0")
        workers.run(steps.leave, timeout=600)


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_shutdown_waits_for_futures_that_get_values(tmp_path: Path, backend: str) -> None:
    with Workers(2, seconds=90) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend=backend)
        workers[0].call(call_soon)
        workers.run(steps.leave)
        assert workers[0].call(answer) == 3
