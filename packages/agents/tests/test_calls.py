"""How calls end: with an answer, a timeout, a lost peer or a shutdown; and what is counted."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest
import torch
from agents_kit import (
    AT_ONCE,
    TIME_LIMIT,
    Wire,
    a_request,
    error_of,
    eventually,
    in_worker,
    make,
    no_current_agent,
    on_wire,
    start,
    tasks,
    two_agents,
    wait_until_gone,
)
from torch.distributed import rpc

from rpc_backends_agents import _C

METRICS = {
    "agent.thread_pool_size",
    "agent.num_idle_threads",
    "agent.client_active_calls",
    "agent.server_active_calls",
    "agent.server_active_async_calls",
    "agent.threads",
    "agent.queued_requests",
    "agent.unanswered_bytes",
    "agent.unfinished_messages",
    "agent.requests_sent",
    "agent.requests_received",
    "agent.bytes_sent",
    "agent.bytes_received",
    "agent.timeouts",
    "agent.late_answers",
    "agent.bad_frames",
    "agent.connections_lost",
    "agent.unsent_answers",
    "agent.refused_requests",
    "agent.contained_errors",
}


def answer_to(frame: list[bytes]) -> list[bytes]:
    """Return another agent's answer to a request."""
    with on_wire() as (_, wire):
        wire.inbox.deliver(1, frame)
        return wire.request()


def count(agent: Any, name: str) -> int:
    return int(agent.get_metrics()[f"agent.{name}"])


def raises() -> None:
    raise ValueError("no such thing")


# --- timeouts -------------------------------------------------------------------------------------


@in_worker
def test_a_call_times_out_and_its_late_answer_is_counted(
    me: Any,
) -> None:
    with on_wire() as (_, wire):
        _, frame = a_request(wire)
    answer = answer_to(frame)
    with on_wire() as (agent, wire):
        future = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=0.05)
        assert "RPC ran for more than set timeout (50 ms)" in error_of(future)
        assert count(agent, "timeouts") == 1
        wire.request()  # it may be sent after it has timed out
        # Both agents give their calls the same ids.
        wire.inbox.deliver(1, answer)
        second, frame = a_request(wire)
        wire.inbox.deliver(1, answer_of(answer, frame))
        assert second.wait().tolist() == [2, 2]
        # Several threads receive, so the second answer may be handled first.
        eventually(lambda: count(agent, "late_answers") == 1, "the late answer is counted")


def answer_of(answer: list[bytes], frame: list[bytes]) -> list[bytes]:
    """Return an answer with the id of another call."""
    number = slice(24, 32)
    return [answer[0][: number.start] + frame[0][number] + answer[0][number.stop :], *answer[1:]]


@in_worker
def test_zero_is_no_timeout_and_tiny_ones_a_millisecond(me: Any) -> None:
    with on_wire(rpc_timeout=0.05) as (_, wire):
        endless = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=0)
        short = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=0.0001)
        usual = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1))
        assert "(1 ms)" in error_of(short)
        assert "(50 ms)" in error_of(usual)
        assert not endless.done()
        wire.inbox.lost(1, "gone")
        assert "gone" in error_of(endless)


@in_worker
def test_a_later_call_with_a_shorter_timeout_ends_first(me: Any) -> None:
    with on_wire():
        later = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=20)
        sooner = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=0.02)
        assert "(20 ms)" in error_of(sooner)
        assert not later.done()


# --- a lost peer ----------------------------------------------------------------------------------


@in_worker
def test_calls_to_a_lost_peer_fail_until_it_is_found(
    me: Any,
) -> None:
    with on_wire() as (agent, wire):
        agent.add_member("c", 2)
        waiting = [a_request(wire)[0] for _ in range(5)]
        to_c = rpc.rpc_async("c", torch.add, args=(torch.ones(2), 1))
        wire.request(5)
        wire.inbox.lost(1, "the cable is cut")
        text = "RPC to 'b' failed: the connection is lost: the cable is cut"
        for future in waiting:
            assert text in error_of(future)
        tried = wire.tried
        assert text in error_of(rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1)))
        assert wire.tried == tried, "nothing more is sent to the lost peer"
        assert not to_c.done()
        assert count(agent, "connections_lost") == 1
        wire.inbox.found(1)
        eventually(lambda: "the cable is cut" not in try_once(), "the peer is found")
        wire.wait_until(lambda: wire.sent[-1][0] == 1)  # it may be sent after it has timed out
        traffic = agent.traffic()
        assert traffic.sent - traffic.answered >= 1


def try_once() -> str:
    """Call "b", which does not answer; return the error."""
    future = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=0.05)
    return error_of(future)


@in_worker
def test_a_failed_send_fails_the_calls_to_that_peer(
    me: Any,
) -> None:
    with on_wire() as (_, wire):
        wire.fail = OSError("no route to host")
        future = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1))
        assert "RPC to 'b' failed: the connection is lost: OSError: no route" in error_of(future)


def seconds_until_another_loss() -> float:
    """Return how long a call takes to fail while the callback of another lost call blocks."""
    entered, released = threading.Event(), threading.Event()

    def block(_: Any) -> None:
        entered.set()
        released.wait(TIME_LIMIT)

    with on_wire() as (agent, wire):
        agent.add_member("c", 2)
        first, second = (rpc.rpc_async(to, torch.add, args=(torch.ones(2), 1)) for to in ("b", "c"))
        first.then(block)
        wire.wait_until(lambda: len(wire.sent) == 2)
        wire.inbox.lost(1, "gone")
        assert entered.wait(TIME_LIMIT)
        begin = time.monotonic()
        wire.inbox.lost(2, "gone")
        assert "gone" in error_of(second)
        took = time.monotonic() - begin
        released.set()
    return took


@in_worker
def test_a_slow_callback_of_a_lost_call_delays_no_other_loss(me: Any) -> None:
    # An event that waits for an earlier one does so for a second, each time; see
    # csrc/agent/event_order.h. A busy machine may be slow once.
    assert any(seconds_until_another_loss() < 0.9 for _ in range(5))


@in_worker
def test_after_a_failed_send_the_next_call_is_tried(
    me: Any,
) -> None:
    # Two threads handle the loss and the return of a peer, and the return may be handled first.
    with on_wire() as (_, wire):
        wire.fail = OSError("no route to host")
        for _ in range(300):
            tried, until = wire.tried, time.monotonic() + AT_ONCE
            # The next call is tried at once, or as soon as the return was handled.
            while wire.tried == tried:
                assert time.monotonic() < until, "the peer stays lost"
                error_of(rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1)))


@in_worker
def test_an_answer_from_another_peer_is_ignored(me: Any) -> None:
    with on_wire() as (_, wire):
        _, frame = a_request(wire)
    answer = answer_to(frame)
    with on_wire() as (agent, wire):
        future, frame = a_request(wire)
        right = answer_of(answer, frame)
        wire.inbox.deliver(2, right)
        eventually(lambda: count(agent, "late_answers") > 0, "the answer is ignored")
        assert not future.done()
        wire.inbox.deliver(1, right)
        assert future.wait().tolist() == [2, 2]


# --- shutdown -------------------------------------------------------------------------------------


@in_worker
def test_shutdown_ends_calls_the_transport_and_all_threads(
    me: Any,
) -> None:
    before = tasks()
    with on_wire() as (agent, wire):
        future, _ = a_request(wire)
        agent.shutdown()
        assert "RPC to 'b' failed: the RPC agent of this worker has been shut down" in error_of(
            future
        )
        assert wire.closed
        with pytest.raises(RuntimeError, match=r"cannot call 'b': RPC is no longer running"):
            rpc.rpc_sync("b", torch.add, args=(torch.ones(2), 1))
        agent.shutdown()  # a second call does nothing
    wait_until_gone(before)


@in_worker
def test_an_agent_that_was_never_started_closes_its_transport(me: Any) -> None:
    wire = Wire()
    agent = make(wire)
    agent.listen()
    agent.shutdown()
    assert wire.closed


@in_worker
def test_join_waits_for_active_calls_up_to_its_timeout(
    me: Any,
) -> None:
    with on_wire() as (agent, wire):
        future, _ = a_request(wire)
        with pytest.raises(
            RuntimeError, match=r"'a' still had active calls after .*graceful=False"
        ):
            agent.join(True, 0.05)
        ended = threading.Thread(target=agent.join, args=(True, AT_ONCE))
        ended.start()
        wire.inbox.lost(1, "gone")
        error_of(future)
        ended.join(AT_ONCE)
        assert not ended.is_alive()


# --- memory ---------------------------------------------------------------------------------------


@in_worker
def test_calls_wait_while_too_many_bytes_are_unanswered(me: Any) -> None:
    with on_wire(max_unanswered_bytes=50_000) as (_, wire):
        first, _ = a_request(wire, torch.zeros(8_000), 1)
        with pytest.raises(Exception, match="RPC ran for more than set timeout"):
            rpc.rpc_sync("b", torch.add, args=(torch.zeros(8_000), 1), timeout=0.05)
        assert len(wire.sent) == 1
        waiting = threading.Thread(
            target=lambda: rpc.rpc_async("b", torch.add, args=(torch.zeros(8_000), 1))
        )
        waiting.start()
        wire.inbox.lost(1, "gone")
        wire.inbox.found(1)
        error_of(first)
        waiting.join(AT_ONCE)
        assert not waiting.is_alive()


def floats(kib: int) -> torch.Tensor:
    return torch.zeros(kib * 256)


@in_worker
def test_timed_out_calls_make_room_for_others(me: Any) -> None:
    with on_wire(max_unanswered_bytes=1 << 20) as (_, wire):
        for number in range(3):
            future = rpc.rpc_async("b", torch.add, args=(floats(300), 1), timeout=0.05)
            wire.request(number)
            assert "RPC ran for more than" in error_of(future)
        rpc.rpc_async("b", torch.add, args=(floats(300), 1), timeout=AT_ONCE)
        wire.request(3)


@in_worker
def test_a_timed_out_call_that_was_not_sent_makes_no_room(me: Any) -> None:
    with on_wire(max_unanswered_bytes=1 << 20) as (_, wire):
        wire.gate.clear()
        for _ in range(3):
            late = rpc.rpc_async("b", torch.add, args=(floats(300), 1), timeout=0.05)
            assert "RPC ran for more than" in error_of(late)
        with pytest.raises(Exception, match="RPC ran for more than set timeout"):
            rpc.rpc_sync("b", torch.add, args=(floats(300), 1), timeout=0.05)
        wire.gate.set()
        rpc.rpc_async("b", torch.add, args=(floats(300), 1), timeout=AT_ONCE)
        wire.request(3)


def seconds_with_a_wait_for_room() -> float:
    """Return how long a call takes to time out after 2 s, if it gets room after 1.5 s and no answer.

    :returns: infinity if the room came too late, so that the call was not sent.
    """
    with on_wire(max_unanswered_bytes=50_000) as (_, wire):
        _, frame = a_request(wire)
    answer = answer_to(frame)
    with on_wire(max_unanswered_bytes=50_000) as (_, wire):
        _, first = a_request(wire, floats(40), 1)
        free = threading.Timer(1.5, lambda: wire.inbox.deliver(1, answer_of(answer, first)))
        free.start()
        began = time.monotonic()
        with pytest.raises(Exception, match=r"set timeout \(2000 ms\)"):
            rpc.rpc_sync("b", torch.add, args=(floats(40), 1), timeout=2)
        took = time.monotonic() - began
        free.join()
        return took if len(wire.sent) == 2 else math.inf


@in_worker
def test_waiting_for_room_counts_towards_the_timeout(me: Any) -> None:
    # The two waits do not add up. A busy machine may be slow once.
    assert any(seconds_with_a_wait_for_room() < 1.5 + 2 for _ in range(5))


@in_worker
def test_small_calls_count_for_more_than_their_bytes(me: Any) -> None:
    fitting = 10
    with on_wire() as (_, wire):
        _, frame = a_request(wire)
    counted = len(frame[0]) + 1024
    with on_wire(max_unanswered_bytes=fitting * counted) as (_, wire):
        for _ in range(fitting):
            a_request(wire)
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            rpc.rpc_sync("b", torch.add, args=(torch.ones(2), 1), timeout=0.05)
        assert len(wire.sent) == fitting


released = threading.Event()
entered = threading.Event()


def wait_for_release() -> None:
    entered.set()
    assert released.wait(60)


@in_worker
def test_requests_are_refused_if_too_many_bytes_wait(me: Any) -> None:
    released.clear()
    entered.clear()
    few = {"max_unanswered_bytes": 100_000, "num_worker_threads": 1}
    with two_agents(others=few) as (_, agent_b):
        first = rpc.rpc_async("b", wait_for_release)
        assert entered.wait(AT_ONCE)
        waiting = [rpc.rpc_async("b", torch.add, args=(floats(40), 1)) for _ in range(10)]
        # Several threads receive, so any two of the requests may have found room.
        eventually(lambda: sum(future.done() for future in waiting) >= 8, "eight are refused")
        refused = [future for future in waiting if future.done()]
        assert count(agent_b, "refused_requests") == 8
        for text in map(error_of, refused):
            assert "worker 'b' is overloaded" in text
            assert "num_worker_threads" in text
            assert "max_unanswered_bytes" in text
        released.set()
        first.wait()
        served = [future.wait().sum() for future in waiting if future not in refused]
        assert served == [10240, 10240]
        assert rpc.rpc_sync("b", torch.add, args=(floats(40), 1)).sum() == 10240


# --- texts and counts -----------------------------------------------------------------------------


@in_worker
def test_an_exception_of_a_function_keeps_its_type(me: Any) -> None:
    with two_agents(), pytest.raises(ValueError, match=r"(?s)On WorkerInfo\(.*no such thing"):
        rpc.rpc_sync("b", raises)


@in_worker
def test_an_unknown_worker_is_an_error_with_the_known_names(me: Any) -> None:
    with two_agents() as (agent, _):
        for who in ("c", 7):
            with pytest.raises(RuntimeError, match=rf"Unknown destination worker {who}.*\(a, b\)"):
                agent.get_worker_info(who)


@in_worker
def test_only_unknown_workers_are_looked_up(me: Any) -> None:
    asked = []
    with two_agents() as (agent, _):
        agent.on_unknown_member(lambda: asked.append(agent.add_member("c", 2)))
        assert agent.get_worker_info("b").id == agent.get_worker_info(1).id == 1
        assert not asked
        assert agent.get_worker_info("c").id == 2
        assert agent.get_worker_info(2).name == "c"
        assert len(asked) == 1


@in_worker
def test_calls_to_a_member_that_left_fail(me: Any) -> None:
    with on_wire() as (agent, wire):
        future, _ = a_request(wire)
        agent.remove_member(1, "worker 'b' has left the group")
        assert "failed: worker 'b' has left the group" in error_of(future)
        assert [info.name for info in agent.get_worker_infos()] == ["a"]


@in_worker
def test_a_call_to_a_worker_found_before_it_left_says_that_it_has_left(me: Any) -> None:
    """The transport has forgotten the worker, and refuses the message."""
    with two_agents() as (agent, _):
        worker = agent.get_worker_info("b")
        agent.remove_member(1, "worker 'b' has left the group")
        error = error_of(rpc.rpc_async(worker, abs, args=(-1,)))
        assert error.startswith("RPC to 'b' failed: worker 'b' has left the group"), error


@in_worker
def test_the_metrics_count_calls_and_bytes(me: Any) -> None:
    with two_agents() as (agent_a, agent_b):
        assert set(agent_a.get_metrics()) == METRICS
        for _ in range(3):
            rpc.rpc_sync("b", torch.add, args=(torch.ones(2), 1))
        rpc.rpc_sync("a", torch.add, args=(torch.ones(2), 1))
        assert count(agent_a, "requests_sent") == 3, "calls of a worker to itself are not sent"
        assert count(agent_b, "requests_received") == 3
        assert count(agent_a, "client_active_calls") == 0
        assert count(agent_a, "thread_pool_size") == 4
        assert count(agent_a, "bytes_sent") == count(agent_b, "bytes_received") > 0
        assert count(agent_a, "threads") >= 2
        traffic = agent_a.traffic()
        assert (traffic.sent, traffic.answered, traffic.received) == (3, 3, 0)


@in_worker
def test_a_memory_transport_without_a_listener_is_an_error(me: Any) -> None:
    with two_agents() as (_, agent_b):
        lonely = make(_C.MemoryTransport(), "lonely", 5)
        lonely.learn(1, "b", "memory:nowhere:0")
        lonely.add_member("b", 1)
        lonely.add_member("c", 2)
        start(lonely)
        try:
            text = "RPC to 'b' failed: no worker listens at memory:nowhere:0"
            assert text in error_of(rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1)))
            text = "RPC to 'c' failed: the address of worker 2 is not known"
            assert text in error_of(rpc.rpc_async("c", torch.add, args=(torch.ones(2), 1)))
        finally:
            no_current_agent()
            lonely.shutdown()
        assert agent_b.get_metrics()["agent.requests_received"] == "0"
