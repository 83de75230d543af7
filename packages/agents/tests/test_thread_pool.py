"""The threads of an agent: one of them always receives answers, even if all others are blocked."""

from __future__ import annotations

import sys
import threading
import time
from queue import SimpleQueue
from typing import Any

import torch
from agents_kit import AT_ONCE, eventually, in_worker, two_agents
from torch.distributed import rpc

released = threading.Event()
entered = threading.Semaphore(0)
#: For each callback, whether it blocks.
in_callback: SimpleQueue[bool] = SimpleQueue()


def wait_for_release() -> str:
    entered.release()
    assert released.wait(60)
    return "released"


def wait_in_callback(_: Any) -> None:
    # If a call ends before it has its callback, torch runs that on the main thread, which must go on.
    blocks = threading.current_thread() is not threading.main_thread()
    in_callback.put(blocks)
    if blocks:
        assert released.wait(60)


def call_back(depth: int) -> int:
    """Call the other worker, which calls back, ``depth`` times."""
    here = threading.current_thread()
    assert here is not threading.main_thread()
    return 1 + rpc.rpc_sync("b", call_back, args=(depth - 1,)) if depth else 0


@in_worker
def test_answers_arrive_while_all_request_threads_are_blocked(me: Any) -> None:
    released.clear()
    with two_agents(num_worker_threads=2) as (_, agent_b):
        blocked = [rpc.rpc_async("b", wait_for_release) for _ in range(2)]
        for _ in blocked:
            assert entered.acquire(timeout=AT_ONCE)
        # The third request waits and does not start.
        third = rpc.rpc_async("b", wait_for_release)
        # Each agent has its own threads; those of "a" are free and serve its calls to itself.
        assert rpc.rpc_sync("a", torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]
        assert not entered.acquire(blocking=False)
        eventually(
            lambda: agent_b.get_metrics()["agent.server_active_calls"] == "3",
            "the third request has arrived",
        )
        released.set()
        assert [future.wait() for future in (*blocked, third)] == ["released"] * 3
        assert entered.acquire(timeout=AT_ONCE)


@in_worker
def test_nested_calls_get_their_answers(me: Any) -> None:
    with two_agents(num_worker_threads=40):
        assert rpc.rpc_sync("b", call_back, args=(20,)) == 20


@in_worker
def test_a_burst_leaves_few_threads(me: Any) -> None:
    may_run, burst = 8, 400
    # The pool keeps as many waiting threads as running ones, and four more.
    most = 2 * may_run + 4
    released.clear()
    with two_agents(num_worker_threads=may_run) as (_, agent_b):

        def metric(name: str) -> int:
            return int(agent_b.get_metrics()[f"agent.{name}"])

        futures = [rpc.rpc_async("b", wait_for_release) for _ in range(burst)]
        for _ in range(may_run):
            assert entered.acquire(timeout=AT_ONCE)
        eventually(lambda: metric("server_active_calls") == burst, "all requests have arrived")
        # While requests arrive, there may be more threads for a moment.
        eventually(lambda: may_run < metric("threads") <= most, "few threads during the burst")
        released.set()
        torch.futures.wait_all(futures)
        eventually(lambda: metric("threads") <= most, "few threads after the burst")
        while entered.acquire(blocking=False):
            pass


@in_worker
def test_slow_callbacks_leave_few_threads(me: Any) -> None:
    """The callbacks of calls that time out run on threads of their own."""
    may_run, slow = 2, 30
    # As many threads as running requests and four more wait for messages, and as many for such work.
    most = 2 * (may_run + 4) + may_run
    released.clear()
    with two_agents(num_worker_threads=may_run) as (agent, _):

        def threads() -> int:
            assert rpc.rpc_sync("a", abs, args=(-1,)) == 1  # so that no thread is idle for long
            return int(agent.get_metrics()["agent.threads"])

        futures = []
        blocked = 0
        while blocked < slow:
            call = rpc.rpc_async("b", wait_for_release, timeout=0.05)
            futures.append(call.then(wait_in_callback))
            blocked += in_callback.get(timeout=AT_ONCE)
        assert threads() > slow
        released.set()
        torch.futures.wait_all(futures)
        eventually(lambda: threads() <= most, "few threads after the callbacks")
        while entered.acquire(blocking=False):
            pass


@in_worker
def test_no_message_needs_the_gil(me: Any) -> None:
    """This thread holds the GIL from the call to its answer, since traffic() does not release it."""
    usual = sys.getswitchinterval()
    with two_agents() as (agent_a, agent_b):
        # The first call also does what is done only once.
        rpc.rpc_sync("b", torch.add, args=(torch.ones(2), 1))
        agent_a.on_unknown_member(lambda: None)
        agent_b.on_unknown_member(lambda: None)
        sys.setswitchinterval(1000)
        try:
            future = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1))
            until = time.monotonic() + AT_ONCE
            while agent_a.traffic().answered < 2:
                assert time.monotonic() < until, "something waits for the GIL"
        finally:
            sys.setswitchinterval(usual)
        assert future.wait().tolist() == [2, 2]


@in_worker
def test_calls_to_itself_need_few_threads(me: Any) -> None:
    callers, calls = 4, 500
    with two_agents() as (agent, _):

        def call() -> None:
            for _ in range(calls):
                rpc.rpc_sync("a", torch.add, args=(torch.ones(2), 1))

        threads = [threading.Thread(target=call) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # A separate job answers each call, so each caller needs up to two threads. 8 are for receivers.
        assert int(agent.get_metrics()["agent.threads"]) <= 2 * callers + 8
