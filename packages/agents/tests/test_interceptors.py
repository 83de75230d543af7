"""Interceptors: what they see, what they decide, and their order."""

from __future__ import annotations

import contextlib
import importlib
import operator
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from agents_kit import (
    AT_ONCE,
    HEAD,
    a_request,
    change,
    error_of,
    eventually,
    identity,
    in_worker,
    make,
    no_current_agent,
    on_wire,
    start,
)
from recorder import Recorder, WrongCapsule, build
from torch.distributed import rpc

from rpc_backends_agents import _C, intercept
from support import steps
from support.packages import write_package
from support.workers import WorkerContext, Workers

DONE: list[Any] = []
TIMEOUT = "RPC ran for more than set timeout"
CALL = "PYTHON_CALL"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("recorder"))


def do(what: Any) -> Any:
    """Leave a trace."""
    DONE.append(what)
    return what


@contextlib.contextmanager
def two_agents(
    front: dict[str, tuple[Recorder, int]], behind: dict[str, tuple[Recorder, int]] | None = None
) -> Iterator[tuple[Any, Any]]:
    """Yield agents "a" and "b" with interceptors in front; "a" makes this process's calls."""
    DONE.clear()
    agents = make(_C.MemoryTransport(), "a", 0), make(_C.MemoryTransport(), "b", 1)
    addresses = [agent.listen() for agent in agents]
    for agent, peer in ((0, 1), (1, 0)):
        agents[agent].learn(peer, "ab"[peer], addresses[peer])
        agents[agent].add_member("ab"[peer], peer)
    agent_a, agent_b = (wrapped(agents[0], front), wrapped(agents[1], behind or {}))
    start(agent_b)
    start(agent_a)
    try:
        yield agent_a, agent_b
    finally:
        no_current_agent()
        agent_a.shutdown()
        agent_b.shutdown()


def wrapped(agent: Any, interceptors: dict[str, tuple[Recorder, int]]) -> Any:
    for name, (recorder, order) in interceptors.items():
        agent = intercept(agent, recorder, name=name, order=order)
    return agent


def alone(recorder: Recorder) -> dict[str, tuple[Recorder, int]]:
    return {"recorder": (recorder, 0)}


def seen(recorder: Recorder, begin: str) -> list[str]:
    return [event for event in recorder.events() if event.startswith(begin)]


# --- what they see --------------------------------------------------------------------------------


@in_worker
def test_an_outgoing_request_is_seen_with_its_head(me: WorkerContext, library: Path) -> None:
    recorder = Recorder(library)
    with two_agents(alone(recorder)):
        assert rpc.rpc_sync("b", do, args=(1,)) == 1
        rpc.rpc_sync("b", torch.add, args=(torch.ones(3), 1))
        tensor = torch.zeros(2, dtype=torch.float64)
        assert rpc.rpc_sync("b", identity, args=(tensor,)).tolist() == [0, 0]
    assert seen(recorder, "outgoing") == [
        f"outgoing {CALL} {__name__}.do a b '' 0 0",
        "outgoing SCRIPT_CALL torch.ops.aten.add a b '' 1 12",
        f"outgoing {CALL} agents_kit.identity a b '' 1 16",
    ]
    assert (recorder.events()[0], recorder.events()[-1]) == ("start a", "stop")


@in_worker
def test_an_incoming_request_is_seen_with_its_sender(me: WorkerContext, library: Path) -> None:
    recorder = Recorder(library, observe="")
    with two_agents({}, alone(recorder)):
        assert rpc.rpc_sync("b", do, args=(1,)) == 1
    assert seen(recorder, "incoming") == [f"incoming {CALL} {__name__}.do b a '' 0 0"]
    assert seen(recorder, "answer") == ["answer 515"]  # PYTHON_RET
    assert seen(recorder, "end") == ["end answer "]


@in_worker
def test_answers_and_errors_are_observed(me: WorkerContext, library: Path) -> None:
    recorder = Recorder(library, observe="")
    with two_agents(alone(recorder)):
        rpc.rpc_sync("b", do, args=(1,))
        rpc.rpc_sync("b", torch.add, args=(torch.ones(2), 1))
        assert "ran for more" in error_of(rpc.rpc_async("b", time.sleep, (0.3,), timeout=0.05))
        recorder.wait_for("end error RPCErr:1:" + TIMEOUT)
    assert seen(recorder, "end")[:2] == ["end answer ", "end answer "]
    assert seen(recorder, "answer")[:2] == ["answer 515", "answer 513"]


@in_worker
def test_metrics_have_the_interceptors_name(me: WorkerContext, library: Path) -> None:
    with two_agents(alone(Recorder(library))) as (agent, _):
        assert agent.get_metrics()["recorder.events"] == "many"
        assert "agent.requests_sent" in agent.get_debug_info()


# --- what they decide -----------------------------------------------------------------------------


@in_worker
def test_an_interceptor_answers_in_place_of_the_peer(me: WorkerContext, library: Path) -> None:
    recorder = Recorder(library, observe="")
    with two_agents(alone(recorder)):
        rpc.rpc_sync("b", do, args=("first",))
        recorder.order(outgoing="answer")
        assert rpc.rpc_sync("b", do, args=("second",)) == "first"
    assert DONE == ["first"]


@in_worker
@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
def test_a_request_is_held_until_it_is_passed_on(
    me: WorkerContext, library: Path, direction: str
) -> None:
    recorder = Recorder(library, **{direction: "hold"})
    sides = ({}, alone(recorder)) if direction == "incoming" else (alone(recorder), {})
    with two_agents(*sides):
        future = rpc.rpc_async("b", do, args=(1,))
        recorder.wait_for(direction)
        assert not future.done()
        assert DONE == []
        recorder.release()
        assert future.wait() == 1


@in_worker
@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
def test_a_repeated_request_runs_several_times(
    me: WorkerContext, library: Path, direction: str
) -> None:
    recorder = Recorder(library, **{direction: "repeat"})
    sides = ({}, alone(recorder)) if direction == "incoming" else (alone(recorder), {})
    with two_agents(*sides):
        assert rpc.rpc_sync("b", do, args=(1,)) == 1
        eventually(lambda: DONE == [1, 1, 1], "the request has run three times")


@in_worker
@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
def test_a_dropped_request_times_out(me: WorkerContext, library: Path, direction: str) -> None:
    recorder = Recorder(library, observe="", **{direction: "drop"})
    sides = ({}, alone(recorder)) if direction == "incoming" else (alone(recorder), {})
    with two_agents(*sides):
        assert TIMEOUT in error_of(rpc.rpc_async("b", do, args=(1,), timeout=0.1))
        assert (
            len(recorder.wait_for("end timeout" if direction == "outgoing" else "end dropped")) == 1
        )
    assert DONE == []


@in_worker
@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
def test_a_failed_request_raises_its_text(me: WorkerContext, library: Path, direction: str) -> None:
    recorder = Recorder(library, **{direction: "fail"})
    sides = ({}, alone(recorder)) if direction == "incoming" else (alone(recorder), {})
    with two_agents(*sides):
        assert "RPCErr:2:refused by the recorder" in error_of(rpc.rpc_async("b", do, args=(1,)))
    assert DONE == []


@in_worker
def test_an_answer_is_held_dropped_or_replaced(me: WorkerContext, library: Path) -> None:
    recorder = Recorder(library, observe="", answer="hold")
    with two_agents(alone(recorder)):
        held = rpc.rpc_async("b", do, args=("held",))
        recorder.wait_for("answer")
        assert not held.done()
        recorder.release()
        assert held.wait() == "held"
        recorder.order(answer="fail")
        assert "replaced by the recorder" in error_of(rpc.rpc_async("b", do, args=("replaced",)))
        recorder.order(answer="drop")
        assert TIMEOUT in error_of(rpc.rpc_async("b", do, args=("dropped",), timeout=0.1))
        eventually(lambda: "dropped" in DONE, "the request has run")  # its answer is dropped
    assert DONE == ["held", "replaced", "dropped"]


@in_worker
def test_a_held_request_ends_by_its_timeout(me: WorkerContext, library: Path) -> None:
    recorder = Recorder(library, observe="", outgoing="hold")
    with two_agents(alone(recorder)):
        future = rpc.rpc_async("b", do, args=("late",), timeout=0.05)
        assert TIMEOUT in error_of(future)
        recorder.release()  # as if the message arrived late
        eventually(lambda: DONE == ["late"], "the request has run")
    assert [event.split()[:2] for event in seen(recorder, "end")] == [["end", "timeout"]]


@in_worker
def test_shutdown_fails_held_requests(me: WorkerContext, library: Path) -> None:
    recorder = Recorder(library, observe="", outgoing="hold")
    with two_agents(alone(recorder)):
        future = rpc.rpc_async("b", do, args=(1,), timeout=0)
        recorder.wait_for("outgoing")
    assert "RPC to 'b' failed: the RPC agent of this worker has been shut down" in error_of(future)
    assert [event.split()[:2] for event in seen(recorder, "end")] == [["end", "shutdown"]]


@in_worker
@pytest.mark.parametrize("verb", ["pass", "hold", "drop", "repeat"])
def test_a_call_after_the_shutdown_fails(me: WorkerContext, library: Path, verb: str) -> None:
    # Another thread may make such a call while the agent shuts down.
    recorder = Recorder(library, outgoing=verb)
    with two_agents({"recorder": (recorder, 0)}) as (agent, _):
        agent.shutdown()
        future = rpc.rpc_async("b", do, args=(1,), timeout=0)
        assert future.done()
        assert "the RPC agent of this worker has been shut down" in error_of(future)
    recorder.release()


@in_worker
def test_join_waits_for_held_requests(me: WorkerContext, library: Path) -> None:
    recorder = Recorder(library, outgoing="hold")
    with two_agents(alone(recorder)) as (agent, _):
        future = rpc.rpc_async("b", do, args=(1,))
        recorder.wait_for("outgoing")
        joining = threading.Thread(target=agent.join)
        joining.start()
        recorder.wait_for("settle")
        assert joining.is_alive()
        recorder.release()
        joining.join(AT_ONCE)
        assert not joining.is_alive()
        assert future.wait() == 1


# --- misuse ---------------------------------------------------------------------------------------


@in_worker
def test_a_second_decision_is_an_error_without_effect(me: WorkerContext, library: Path) -> None:
    recorder = Recorder(library, outgoing="pass twice")
    with two_agents(alone(recorder)):
        assert rpc.rpc_sync("b", do, args=(1,)) == 1
    assert DONE == [1]
    assert seen(recorder, "misuse") == [
        "misuse the interceptor 'recorder' has already decided this message",
        "misuse a request that has been passed on cannot be read any more",
    ]


@in_worker
@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("throw", "failed: the recorder has thrown"),
        ("let go", "released the message without a decision"),
    ],
)
def test_a_bug_in_an_interceptor_fails_the_request(
    me: WorkerContext, library: Path, verb: str, text: str
) -> None:
    with two_agents(alone(Recorder(library, outgoing=verb))):
        error = error_of(rpc.rpc_async("b", do, args=(1,)))
        assert f"the interceptor 'recorder' {text}" in error
    assert DONE == []


@in_worker
def test_interceptors_need_unique_names_before_the_start(me: WorkerContext, library: Path) -> None:
    agent = make(_C.MemoryTransport())
    front = intercept(agent, Recorder(library), name="x")
    assert intercept(front, Recorder(library), name="y") is front
    with pytest.raises(ValueError, match="an interceptor named 'x' is already"):
        intercept(front, Recorder(library), name="x", order=7)
    with pytest.raises(ValueError, match="must have 1 to 63 bytes"):
        intercept(front, Recorder(library), name="n" * 64)
    with pytest.raises(TypeError, match="it must return a capsule named"):
        intercept(front, WrongCapsule(), name="z")
    front.listen()
    start(front)
    with pytest.raises(RuntimeError, match="the agent has already started"):
        intercept(front, Recorder(library), name="z")
    no_current_agent()
    front.shutdown()


# --- several interceptors -------------------------------------------------------------------------


@in_worker
def test_several_interceptors_see_a_request_in_order(me: WorkerContext, library: Path) -> None:
    first, second, third = (Recorder(library, observe="") for _ in range(3))
    second.order(outgoing="fail")
    chain = {"c": (third, 5), "b": (second, 1), "a": (first, 1)}
    with two_agents(chain):
        assert "refused" in error_of(rpc.rpc_async("b", do, args=(1,)))
    assert [len(seen(recorder, "outgoing")) for recorder in (first, second, third)] == [1, 1, 0]
    # The interceptor nearer to the program sees the error as an answer; the other only the end.
    assert [len(seen(recorder, "answer error")) for recorder in (first, second)] == [1, 0]
    assert [len(seen(recorder, "end error")) for recorder in (first, second)] == [1, 1]


@in_worker
def test_incoming_requests_pass_in_reverse_order(me: WorkerContext, library: Path) -> None:
    near, far = Recorder(library), Recorder(library, incoming="fail")
    with two_agents({}, {"near": (near, 1), "far": (far, 2)}):
        assert "refused" in error_of(rpc.rpc_async("b", do, args=(1,)))
    assert (len(seen(near, "incoming")), len(seen(far, "incoming"))) == (0, 1)


@in_worker
def test_answers_pass_several_interceptors(me: WorkerContext, library: Path) -> None:
    near, far = Recorder(library, observe=""), Recorder(library, observe="", answer="fail")
    with two_agents({"near": (near, 1), "far": (far, 2)}):
        assert "replaced" in error_of(rpc.rpc_async("b", do, args=(1,)))
    assert seen(far, "answer") == ["answer 515"]
    assert seen(near, "answer") == ["answer error replaced by the recorder"]


@in_worker
def test_without_interceptors_the_agent_is_not_wrapped(me: WorkerContext) -> None:
    with two_agents({}) as (agent, _):
        assert type(agent) is _C.TransportAgent


# --- context --------------------------------------------------------------------------------------


@in_worker
def test_context_arrives_at_the_interceptor_with_the_same_name(
    me: WorkerContext, library: Path
) -> None:
    sender, other_sender, receiver, bystander = (Recorder(library) for _ in range(4))
    sender.order(context="abc")
    other_sender.order(context="x" * 255)
    front = {"trace": (sender, 0), "other": (other_sender, 1)}
    with two_agents(front, {"trace": (receiver, 0), "none": (bystander, 1)}):
        assert rpc.rpc_sync("b", do, args=(1,)) == 1
        tensor = torch.arange(5000)
        assert rpc.rpc_sync("b", identity, args=(tensor,)).equal(tensor)
        assert rpc.rpc_sync("a", do, args=(2,)) == 2  # a call to itself
    assert [event.split("'")[1] for event in seen(receiver, "incoming")] == ["abc", "abc"]
    assert [event.split("'")[1] for event in seen(bystander, "incoming")] == ["", ""]
    assert [event.split("'")[1] for event in seen(sender, "incoming")] == ["abc"]


@in_worker
def test_too_much_context_is_refused(me: WorkerContext, library: Path) -> None:
    recorders = {f"r{number}": (Recorder(library, context="x" * 255), 0) for number in range(4)}
    recorders |= {"last": (Recorder(library, context="y"), 1), "big": (Recorder(library), 2)}
    recorders["big"][0].order(context="z" * 256)
    with two_agents(recorders):
        assert rpc.rpc_sync("b", do, args=(1,)) == 1
    misuse = {name: seen(recorder, "misuse") for name, (recorder, _) in recorders.items()}
    refused = [name for name, events in misuse.items() if events]
    assert refused == ["r3", "big"]  # 3 x (255 + 2 + 2), and "y", are within 1024
    assert (
        "attaches 256 bytes; one interceptor may attach 255 and all together 1024"
        in misuse["big"][0]
    )


@in_worker
def test_a_request_without_context_is_not_longer(me: WorkerContext, library: Path) -> None:
    with on_wire() as (_, wire):
        _, frame = a_request(wire, "x")
    assert HEAD.unpack_from(frame[0])[7] == 0
    assert len(frame[0]) == HEAD.size + HEAD.unpack_from(frame[0])[9]


@in_worker
@pytest.mark.parametrize(
    ("context", "size", "reason"),
    [
        (b"", 1 << 31, "2147483648 bytes of context; at most 1088 are allowed"),
        (b"\x05abc", None, "it ends in the middle of a field"),
        (b"\x03abc\x09de", None, "it ends in the middle of a field"),
        (b"\x00\x00", None, "the name of a context is not valid"),
        (b"\x40" + b"n" * 64 + b"\x00", None, "the name of a context is not valid"),
        (b"\x01a\x00\x01a\x00", None, "the name of a context is not valid"),
    ],
)
def test_a_frame_with_an_invalid_context_is_refused(
    me: WorkerContext, context: bytes, size: int | None, reason: str
) -> None:
    with on_wire() as (agent, wire):
        _, frame = a_request(wire, "x")
        first = frame[0][: HEAD.size] + context + frame[0][HEAD.size :]
        hostile = change([first, *frame[1:]], context=len(context) if size is None else size)
        wire.inbox.deliver(1, hostile)
        answer = wire.wait_until(lambda: [parts for _, parts, reply in wire.sent if reply])[0]
        assert reason in answer[0].decode(errors="replace")
        assert agent.get_metrics()["agent.bad_frames"] == "1"


@in_worker
def test_an_answer_with_context_is_refused(me: WorkerContext) -> None:
    with on_wire() as (_, wire):
        future, frame = a_request(wire, "x")
        wire.inbox.deliver(1, change(frame, kind=2, type=515, context=4))
        assert "4 bytes of context; at most 0 are allowed" in error_of(future)


# --- other agents ---------------------------------------------------------------------------------

HOOK = """
    from rpc_backends_core import hookimpl

    RECORDERS = []

    @hookimpl(wrapper=True)
    def rpc_backends_agent():
        from rpc_backends_agents import intercept

        return intercept((yield), RECORDERS[0], name="recorder")
"""


def prepare(me: WorkerContext, library: Path, wheel: Path) -> None:
    steps.put_on_path(me, wheel)
    recorders().append(Recorder(library))


def recorders() -> list[Recorder]:
    """Return the interceptors of the installed package."""
    loaded: list[Recorder] = importlib.import_module("recording").RECORDERS
    return loaded


def call(me: WorkerContext, verb: str) -> tuple[str, list[str]]:
    (recorder,) = recorders()
    recorder.order(outgoing=verb, observe="", context="not carried")
    try:
        outcome = str(rpc.rpc_sync("worker1", operator.add, args=(1, 2), timeout=20))
    except RuntimeError as error:
        outcome = str(error)
    return outcome, recorder.events()


def test_over_tensorpipe_outgoing_requests_are_intercepted(library: Path, tmp_path: Path) -> None:
    wheel = write_package(
        tmp_path,
        "recording",
        modules={"recording.py": HOOK},
        entry_points={"rpc.backends.hooks": {"recording": "recording"}},
    )
    with Workers(2) as workers:
        workers.run(prepare, library, wheel)
        workers.run(steps.join, f"file://{tmp_path}/store", backend="TENSORPIPE")
        assert workers[0].call(call, "pass")[0] == "3"
        assert "refused by the recorder" in workers[0].call(call, "fail")[0]
        events = workers[0].call(call, "repeat")[1]
        assert not [event for event in events if event.startswith(("misuse", "incoming"))]
        workers[0].call(call, "pass")  # torch refuses a repeated request of its shutdown
        workers.run(steps.leave)
        assert [worker.end() for worker in workers] == [0, 0]
