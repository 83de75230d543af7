"""FAULTY_TENSORPIPE fails and delays the same messages as torch's own."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

INTENDED = "RPCErr:2:Send attempt failed intentionally for "


def join(me: WorkerContext, url: str, **options: Any) -> None:
    steps.join(me, url, backend="FAULTY_TENSORPIPE", **options)


def answer(value: int) -> int:
    """Return ``value``; called by RPC."""
    return value


def attempt(me: WorkerContext, *values: int) -> list[str]:
    """Call `answer` on the other worker with each value; return the outcome of each call."""
    outcomes = []
    for value in values:
        try:
            outcomes.append(str(rpc.rpc_sync("worker1", answer, args=(value,))))
        except (RuntimeError, UnicodeDecodeError) as error:
            text = text_of(error)
            outcomes.append("failed" if text.startswith(INTENDED) else text)
    return outcomes


def text_of(error: RuntimeError | UnicodeDecodeError) -> str:
    """Return the text of an error. Torch appends a pickled call to it, which may not be valid UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="replace")
    return str(error)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_without_faults_every_worker_calls_every_other(url: str, size: int) -> None:
    names = [f"worker{rank}" for rank in range(size)]
    with Workers(size) as workers:
        workers.run(join, url)

        assert workers.run(steps.members) == [{name: i for i, name in enumerate(names)}] * size
        assert workers.run(steps.call_all) == [{name: name for name in names}] * size
        assert workers.run(steps.use_rref, names[-1]) == [[2.0] * 3] * size
        assert workers.run(steps.differentiate, names[-1]) == [[3.0, 3.0]] * size

        workers.run(steps.leave)
        assert [worker.end() for worker in workers] == [0] * size


def test_each_distinct_call_fails_the_given_times_then_succeeds(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join, url, messages_to_fail=["PYTHON_CALL"], num_fail_sends=2)

        assert workers[0].call(attempt, 1, 1, 1, 1) == ["failed", "failed", "1", "1"]
        assert workers[0].call(attempt, 2, 2, 2) == ["failed", "failed", "2"]

        workers.run(steps.leave, False)


def test_a_failed_send_fails_the_future_and_sends_nothing(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join, url, messages_to_fail=["PYTHON_CALL"], num_fail_sends=1)

        assert workers[0].call(call_and_count) == (True, "0")

        workers.run(steps.leave, False)


def call_and_count(me: WorkerContext) -> tuple[bool, str]:
    future = rpc.rpc_async("worker1", answer, args=(1,))
    with pytest.raises((RuntimeError, UnicodeDecodeError)):
        future.wait()
    metrics = rpc.api._get_current_rpc_agent().get_metrics()
    return future.done(), metrics["agent.client_active_calls"]


def test_messages_of_other_types_do_not_fail(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join, url, messages_to_fail=["PYTHON_REMOTE_CALL"], num_fail_sends=1)

        assert workers[0].call(attempt, 1) == ["1"]
        assert workers[0].call(steps.call, "worker1", torch.add, 1, 2) == 3

        workers.run(steps.leave, False)


def test_no_sends_fail_when_the_count_is_zero(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join, url, messages_to_fail=["PYTHON_CALL"])

        assert workers[0].call(attempt, 1) == ["1"]

        workers.run(steps.leave, False)


def test_a_delay_sleeps_on_the_calling_thread(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join, url, messages_to_delay={"PYTHON_CALL": 0.4})

        started, done = workers[0].call(time_async_calls, 2)
        assert started >= 0.8
        assert done >= started
        assert workers[0].call(time_builtin) < 0.4

        workers.run(steps.leave, False)


def time_async_calls(me: WorkerContext, count: int) -> tuple[float, float]:
    begin = time.monotonic()
    futures = [rpc.rpc_async("worker1", answer, args=(number,)) for number in range(count)]
    started = time.monotonic() - begin
    torch.futures.wait_all(futures)
    return started, time.monotonic() - begin


def time_builtin(me: WorkerContext) -> float:
    """Time a call of another type (SCRIPT_CALL): the fastest of several, because the machine is busy."""
    times = []
    for _ in range(5):
        begin = time.monotonic()
        rpc.rpc_sync("worker1", torch.add, args=(1, 2))
        times.append(time.monotonic() - begin)
    return min(times)


def test_a_call_in_an_autograd_context_has_another_type(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join, url, messages_to_fail=["PYTHON_CALL"], num_fail_sends=1)

        assert workers[0].call(call_in_context) == 3.0

        workers.run(steps.leave, False)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def call_in_context(me: WorkerContext) -> float:
    with dist_autograd.context():
        x = torch.full((1,), 1.5, requires_grad=True)
        return float(rpc.rpc_sync("worker1", double, args=(x,)))


@pytest.mark.parametrize("again", [{0: 0, 1: 1}, {0: 1, 1: 0}], ids=["same ranks", "other ranks"])
def test_each_group_has_its_own_faults(url: str, again: dict[int, int]) -> None:
    with Workers(2) as workers:
        workers.run(join, url, messages_to_fail=["PYTHON_CALL"], num_fail_sends=1)
        assert workers[0].call(attempt, 1) == ["failed"]
        workers.run(steps.leave, False)

        workers.run(join, url, only={index: {"rank": rank} for index, rank in again.items()})

        assert workers[0].call(attempt, 1) == ["1"]
        workers.run(steps.leave)
