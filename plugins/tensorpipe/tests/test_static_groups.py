"""Static groups: all workers start and stop together."""

from __future__ import annotations

import string
import threading
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc

from support import steps
from support.steps import AT_ONCE, Meeting
from support.workers import WorkerContext, Workers

# All characters that torch documents for a name, at the longest length that it allows.
LONGEST_NAME = (string.ascii_letters + string.digits + "_:-" * 30)[:127]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_worker_calls_every_other(where: Meeting, size: int) -> None:
    names = [f"worker{rank}" for rank in range(size)]
    with Workers(size, env=where.env) as workers:
        workers.run(steps.join, where.url)

        assert workers.run(steps.members) == [{name: i for i, name in enumerate(names)}] * size
        assert workers.run(steps.call_all) == [{name: name for name in names}] * size

        workers.run(steps.leave)
        assert workers.run(steps.is_running) == [False] * size
        assert [worker.end() for worker in workers] == [0] * size


def test_calls_work_as_soon_as_init_returns(where: Meeting) -> None:
    """The first worker whose init returns finds the others ready for calls and gathers."""
    with Workers(4, env=where.env) as workers:
        everybody = [f"worker{rank}" for rank in range(4)]
        for _ in range(3):
            results = workers.run(join_and_call, where.url)

            assert results == [({name: name for name in everybody}, sorted(everybody))] * 4
            workers.run(steps.leave)


def join_and_call(me: WorkerContext, url: str) -> tuple[dict[str, str], list[str]]:
    steps.join(me, url)
    return steps.call_all(me), sorted(steps.gather(me, None))


def test_rrefs_and_distributed_autograd_work(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)

        assert workers[0].call(steps.use_rref, "worker1") == [2.0, 2.0, 2.0]
        assert workers[1].call(steps.use_rref, "worker1") == [2.0, 2.0, 2.0]
        assert workers.run(steps.differentiate, "worker1") == [[3.0, 3.0]] * 2

        workers.run(steps.leave)


def test_a_start_warns_of_nothing_and_makes_no_gloo_group(url: str) -> None:
    """Stock torch makes a Gloo group with a function that it has deprecated (pytorch issue 149393)."""
    with Workers(2) as workers:
        workers.run(start_strictly, url)
        workers.run(steps.leave)

        assert [worker.output for worker in workers] == ["", ""]


def start_strictly(me: WorkerContext, url: str) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a Gloo process group was made")

    dist.ProcessGroupGloo = refuse
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps.join(me, url)


def test_names_may_use_all_documented_characters_and_lengths(url: str) -> None:
    names = ["a-b:c_D9", LONGEST_NAME]
    with Workers(2) as workers:
        workers.run(steps.join, url, only={i: {"name": name} for i, name in enumerate(names)})

        assert workers.run(steps.call_all) == [{name: name for name in names}] * 2

        workers.run(steps.leave)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", LONGEST_NAME + "x"])
def test_other_names_are_refused_at_once(url: str, name: str) -> None:
    with Workers(2) as workers:
        failure = workers[0].start(steps.join, url, name=name).error()

        assert "Worker name must" in failure.text
        assert not workers[0].call(steps.is_running)


def test_a_timeout_of_zero_means_that_calls_never_time_out(where: Meeting) -> None:
    """Stock torch also passes the 0 to the store, and fails at once."""
    with Workers(2, env=where.env) as workers:
        workers.run(steps.join, where.url, rpc_timeout=0)

        assert workers.run(default_timeout) == [0.0, 0.0]
        waiting = workers[0].start(steps.call, "worker1", wait_for_release)
        assert workers[1].call(release)
        assert waiting.result() == "released"

        workers.run(steps.leave)


def default_timeout(me: WorkerContext) -> float:
    return float(rpc.get_rpc_timeout())


RELEASED = threading.Event()
WAITING = threading.Event()


def wait_for_release() -> str:
    WAITING.set()
    assert RELEASED.wait(60)
    return "released"


def release(me: WorkerContext) -> bool:
    arrived = WAITING.wait(60)
    RELEASED.set()
    return arrived


def test_worker_infos_are_found_by_name_and_rank(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)

        everybody = [("worker0", 0), ("worker1", 1)]
        assert workers.run(known_workers) == [[who, *everybody] for who in everybody]
        assert [workers[0].call(steps.call, to).split()[0] for to in (0, 1)] == [
            "worker0",
            "worker1",
        ]

        workers.run(steps.leave)


def known_workers(me: WorkerContext) -> list[tuple[str, int]]:
    infos = [rpc.get_worker_info(), rpc.get_worker_info("worker0"), rpc.get_worker_info("worker1")]
    return [(info.name, info.id) for info in infos]


def test_rank_and_world_size_may_be_any_integer(url: str) -> None:
    """Torch accepts every ``numbers.Integral``; programs read these values from arrays."""
    with Workers(2) as workers:
        workers.run(join_with_numpy, url)

        assert workers.run(steps.members) == [{"worker0": 0, "worker1": 1}] * 2
        workers.run(steps.leave)


def join_with_numpy(me: WorkerContext, url: str) -> None:
    import numpy as np

    steps.join(me, url, rank=np.int64(me.index), world_size=np.int32(2))


@pytest.mark.parametrize("absent", ["nobody", 7])
def test_an_absent_worker_is_a_runtime_error(url: str, absent: str | int) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)

        for failure in (
            *workers.errors(look_up, absent),
            *workers.errors(steps.call, absent),
        ):
            assert failure.kinds[0] == "RuntimeError"
            assert "could not find destination" in failure.text

        workers.run(steps.leave)


def look_up(me: WorkerContext, who: Any) -> None:
    rpc.api._get_current_rpc_agent().get_worker_info(who)


def test_shutdown_takes_graceful_and_timeout_by_position(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)

        workers.run(steps.leave, True, 30.0)

        assert workers.run(steps.is_running) == [False, False]


def test_a_shutdown_that_is_not_graceful_does_not_wait(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)

        step = workers[0].start(steps.leave, False)
        assert step.outcome().seconds < AT_ONCE
        step.result()
        assert workers[1].call(steps.is_running)

        workers[1].call(steps.leave, False)
        assert [worker.end() for worker in workers] == [0, 0]


def test_shutdown_without_a_start_is_torchs_error() -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(steps.leave)

        assert failure.kinds[0] == "RuntimeError"
        assert failure.text.startswith("RPC has not been initialized.")


def test_a_program_may_end_without_a_shutdown(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)
        workers.run(steps.call_all)

        assert [worker.end() for worker in workers] == [0, 0]


@pytest.mark.slow
def test_a_graceful_shutdown_times_out_on_a_killed_worker(url: str) -> None:
    with Workers(3) as workers:
        workers.run(steps.join, url)
        workers[1].kill()

        failures = workers.errors(steps.leave, True, 1)

        assert max(failure.seconds for failure in failures) < AT_ONCE
        assert workers.run(steps.is_running) == [False, False]
        # The other two can form a new group.
        workers.run(steps.join, url, world_size=2, only={2: {"rank": 1}})
        assert workers.run(steps.call_all) == [{"worker0": "worker0", "worker2": "worker2"}] * 2
        workers.run(steps.leave)


def test_a_graceful_shutdown_waits_for_all_workers_and_their_work(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)
        workers[0].call(begin_call, "worker1")

        stopping = workers[0].start(steps.leave)
        assert workers[1].call(release)
        workers[1].call(steps.leave)

        stopping.result()
        assert workers[0].call(result_of_begun_call) == "released"


def begin_call(me: WorkerContext, to: str) -> None:
    me.memory["call"] = rpc.rpc_async(to, wait_for_release)
    # Results cannot be unpickled after a shutdown, so this fetches the result when it arrives.
    me.memory["result"] = me.memory["call"].then(lambda done: done.value())


def result_of_begun_call(me: WorkerContext) -> Any:
    return me.memory["result"].wait()


def test_tensors_and_errors_arrive(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)

        assert workers[0].call(steps.call, "worker1", torch.add, torch.ones(2), 1).tolist() == [
            2,
            2,
        ]
        failure = workers[0].start(steps.call, "worker1", int, "not a number").error()
        assert "not a number" in failure.text

        workers.run(steps.leave)


@pytest.mark.thorough
def test_64_workers_on_one_host_start_and_stop(url: str) -> None:
    """64 workers cannot all connect to one worker at the same time; no start or stop may need that."""
    with Workers(64, seconds=300) as workers:
        workers.run(steps.join, url)
        workers.run(steps.leave)
        assert workers.run(steps.is_running) == [False] * 64
