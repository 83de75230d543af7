"""Large tensors on accelerators are sent in pieces; invalid and unfinished pieces are released.

The accelerator is the tests' own; see `support.late_device`.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from agents_kit import (
    error_of,
    eventually,
    identity,
    in_worker,
    logged,
    on_wire,
)
from torch.distributed import rpc

from support import late_device

pytestmark = pytest.mark.slow

#: The bytes of a piece, and the head of a piece; see csrc/wire/frame.h.
PIECE = 4 << 20
PIECE_HEAD = struct.Struct("<IBBBBIQQQQ")
PIECE_FIELDS = (
    *("magic", "version", "kind", "device_type", "device_index", "storage", "call", "session"),
    *("size", "offset"),
)
#: Elements of a float tensor that has two whole pieces and a short one.
ELEMENTS = (2 * PIECE + 4096) // 4


@contextlib.contextmanager
def with_devices(**settings: Any) -> Iterator[tuple[Any, Any]]:
    """Yield an agent and its transport; the peer, worker 1, uses the accelerator too."""
    late_device.load()
    late_device.set_delay(0)
    with on_wire(**settings) as (agent, wire):
        maps = [("late:0", "late:0")]
        agent.set_devices({"b": maps}, {1: maps}, ["late:0"])
        try:
            yield agent, wire
        finally:
            late_device.allow(-1)


def values() -> torch.Tensor:
    return torch.arange(ELEMENTS, dtype=torch.float32)


def frames(wire: Any) -> tuple[Any, list[list[bytes]]]:
    """Make the agent send a large tensor; return the future, the three pieces and the message."""
    before = len(wire.sent)
    future = rpc.rpc_async("b", identity, args=(values().to("late:0"),))
    wire.wait_until(lambda: len(wire.sent) == before + 4)
    return future, [parts for _, parts, _ in wire.sent[before:]]


def fields(piece: list[bytes]) -> dict[str, int]:
    return dict(zip(PIECE_FIELDS, PIECE_HEAD.unpack(piece[0]), strict=True))


def change(piece: list[bytes], **changes: int) -> list[bytes]:
    """Return a piece with changed fields in its head."""
    return [PIECE_HEAD.pack(*{**fields(piece), **changes}.values()), *piece[1:]]


def answers(wire: Any, since: int = 0) -> list[list[bytes]]:
    return [parts for _, parts, reply in wire.sent[since:] if reply]


def unfinished(agent: Any) -> int:
    return int(agent.get_metrics()["agent.unfinished_messages"])


# --- sending ----------------------------------------------------------------------------------------


@in_worker
def test_a_piece_leaves_before_the_next_copy_ends(me: Any) -> None:
    with with_devices() as (_, wire):
        x = values().to("late:0")
        late_device.allow(1)
        rpc.rpc_async("b", identity, args=(x,))
        first = wire.request()
        # Only one operation may run, so the copies of the other pieces cannot have ended.
        assert fields(first)["offset"] == 0
        assert first[1] == values().numpy().tobytes()[:PIECE]
        assert len(wire.sent) == 1
        late_device.allow(-1)
        wire.wait_until(lambda: len(wire.sent) == 4)


@in_worker
def test_a_call_sends_what_the_tensor_has_now(me: Any) -> None:
    with with_devices() as (_, wire):
        x = values().to("late:0")
        late_device.allow(0)
        rpc.rpc_async("b", identity, args=(x,))
        x.fill_(7)
        late_device.allow(-1)
        wire.wait_until(lambda: len(wire.sent) == 4)
        sent = b"".join(parts[1] for _, parts, _ in wire.sent[:3])
        assert sent == values().numpy().tobytes()


@in_worker
def test_a_lost_connection_ends_a_call_between_pieces(me: Any) -> None:
    with with_devices() as (agent, wire):
        x = values().to("late:0")
        late_device.allow(1)
        future = rpc.rpc_async("b", identity, args=(x,))
        wire.request()
        wire.inbox.lost(1, "pulled out")
        assert "pulled out" in error_of(future)
        late_device.allow(-1)
        torch.late.synchronize()  # type: ignore[attr-defined]
        assert len(wire.sent) == 1
        traffic = agent.traffic()
        assert traffic.sent == traffic.answered, "join() would wait for this call"


# --- receiving --------------------------------------------------------------------------------------


@in_worker
def test_a_piece_is_copied_when_it_arrives(me: Any) -> None:
    with with_devices() as (agent, wire):
        _, sent = frames(wire)
        for piece in sent[:3]:
            before = late_device.operations()
            wire.inbox.deliver(1, piece)
            eventually(lambda before=before: late_device.operations() > before, "a copy")
            assert unfinished(agent) == 1
        since = len(wire.sent)
        wire.inbox.deliver(1, sent[3])
        wire.wait_until(lambda: len(wire.sent) == since + 4)
        eventually(lambda: unfinished(agent) == 0, "the message is finished")
        received = b"".join(parts[1] for parts in answers(wire, since)[:3])
        assert received == values().numpy().tobytes()


@in_worker
def test_pieces_may_arrive_in_any_order(me: Any) -> None:
    """Several threads of the agent take them from the transport."""
    with with_devices() as (_, wire):
        _, sent = frames(wire)
        since = len(wire.sent)
        for part in reversed(sent):
            wire.inbox.deliver(1, part)
        wire.wait_until(lambda: len(wire.sent) == since + 4)
        received = b"".join(parts[1] for parts in answers(wire, since)[:3])
        assert received == values().numpy().tobytes()


@in_worker
def test_an_answer_in_pieces_ends_its_call(me: Any) -> None:
    with with_devices() as (agent, wire):
        future, sent = frames(wire)
        since = len(wire.sent)
        for part in sent:
            wire.inbox.deliver(1, part)
        wire.wait_until(lambda: len(wire.sent) == since + 4)
        for part in answers(wire, since):
            wire.inbox.deliver(1, part)
        assert future.wait().cpu().equal(values())
        assert unfinished(agent) == 0


# --- what is refused --------------------------------------------------------------------------------

INVALID: dict[str, tuple[dict[str, int], str]] = {
    "a wrong offset": ({"offset": 1}, "wrong size or place"),
    "an offset behind the end": ({"offset": 1 << 40}, "wrong size or place"),
    "a small storage": ({"size": 10}, "wrong size or place"),
    "another device": ({"device_type": 3}, "does not use for RPC"),
    "too many bytes": ({"size": 1 << 39}, "max_message_bytes"),
}


@in_worker
@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_piece_is_refused(me: Any, name: str) -> None:
    changes, text = INVALID[name]
    with with_devices() as (agent, wire):
        _, sent = frames(wire)
        wire.inbox.deliver(1, change(sent[0], **changes))
        if "wrong size" in text:  # such a piece does not even say to which call it belongs
            eventually(lambda: wire.rejected, "the connection is closed")
            assert text in wire.rejected[0][1]
        else:
            eventually(lambda: answers(wire), "the answer")
            assert text.encode() in answers(wire)[0][0]
        assert unfinished(agent) <= 1


@in_worker
def test_a_piece_that_comes_twice_fails_the_call_once(me: Any) -> None:
    with with_devices() as (agent, wire):
        _, sent = frames(wire)
        for part in (sent[0], sent[0]):
            wire.inbox.deliver(1, part)
        eventually(lambda: len(answers(wire)) == 1, "the answer")
        assert b"came twice" in answers(wire)[0][0]
        wire.inbox.deliver(1, sent[3])
        eventually(lambda: unfinished(agent) == 0, "the message is forgotten")
        assert len(answers(wire)) == 1


@in_worker
def test_pieces_that_fit_no_storage_fail_the_call(me: Any) -> None:
    with with_devices() as (agent, wire):
        _, sent = frames(wire)
        for part in (*(change(piece, storage=5) for piece in sent[:3]), sent[3]):
            wire.inbox.deliver(1, part)
        eventually(lambda: answers(wire), "the answer")
        assert b"differs from its pieces" in answers(wire)[0][0]
        eventually(lambda: unfinished(agent) == 0, "the message is forgotten")


@in_worker
def test_an_answer_from_two_sessions_fails_its_call(me: Any) -> None:
    """A call has one answer; a callee must not reserve memory for several."""
    with with_devices() as (agent, wire):
        future, sent = frames(wire)
        kind = fields(sent[0])["kind"] + 1
        for session in (1, 2):
            wire.inbox.deliver(1, change(sent[0], kind=kind, session=session))
        assert "two sessions" in error_of(future)
        eventually(lambda: unfinished(agent) == 0, "the pieces are released")


@in_worker
def test_an_answer_to_no_call_reserves_nothing(me: Any) -> None:
    with with_devices() as (agent, wire):
        _, sent = frames(wire)
        kind = fields(sent[0])["kind"] + 1
        before = late_device.operations()
        wire.inbox.deliver(1, change(sent[0], kind=kind, call=1 << 40))
        wire.inbox.deliver(1, sent[1])  # of a request
        eventually(lambda: unfinished(agent) == 1, "the request's piece")
        assert late_device.operations() <= before + 1
        assert not wire.rejected


@in_worker
def test_no_mutated_piece_ends_the_process(me: Any) -> None:
    chance = random.Random(4)
    with with_devices(max_message_bytes=1 << 26) as (_, wire), logged():
        _, sent = frames(wire)
        _, pieces = frames(wire)  # the mutated pieces may fail the first call
        last = [sent[2][0], sent[2][1]]  # the short one
        for _ in range(2000):
            head = bytearray(last[0])
            for _ in range(chance.choice((1, 1, 2, 4))):
                head[chance.randrange(5, len(head))] = chance.choice(
                    (0, 1, 0xFF, chance.randrange(256))
                )
            wire.inbox.deliver(1, [bytes(head), *last[1 : chance.choice((1, 2, 2, 2))]])
        since = len(wire.sent)
        for part in pieces:
            wire.inbox.deliver(1, part)
        eventually(lambda: len(answers(wire, since)) >= 1, "an answer")
        assert rpc.rpc_sync("a", torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]


# --- what nobody finishes ---------------------------------------------------------------------------


@in_worker
def test_a_worker_that_leaves_releases_its_pieces(me: Any) -> None:
    with with_devices() as (agent, wire):
        _, sent = frames(wire)
        wire.inbox.deliver(1, sent[0])
        eventually(lambda: unfinished(agent) == 1, "the piece has arrived")
        agent.remove_member(1, "it has left")
        assert unfinished(agent) == 0


@in_worker
def test_a_lost_worker_releases_its_pieces(me: Any) -> None:
    with with_devices() as (agent, wire), logged() as lines:
        _, sent = frames(wire)
        wire.inbox.deliver(1, sent[0])
        eventually(lambda: unfinished(agent) == 1, "the piece has arrived")
        wire.inbox.lost(1, "it was killed")
        eventually(lambda: unfinished(agent) == 0, "the pieces are released")
        eventually(lambda: any("part of a request" in line for line in lines), "a warning")


def call_with_part_of_an_answer(agent: Any, wire: Any, timeout: float) -> Any:
    """Make a call, deliver a piece of its answer, and wait until that is there or the call has ended."""
    before = len(wire.sent)
    future = rpc.rpc_async("b", identity, args=(values().to("late:0"),), timeout=timeout)
    eventually(lambda: len(wire.sent) >= before + 4 or future.done(), "the call is sent")
    first = wire.request(before)
    wire.inbox.deliver(1, change(first, kind=fields(first)["kind"] + 1))
    eventually(lambda: unfinished(agent) == 1 or future.done(), "the piece has arrived")
    return future


@in_worker
def test_a_timeout_releases_the_pieces_of_the_answer(me: Any) -> None:
    with with_devices() as (agent, wire):
        # On a busy machine, the first call may end before the piece arrives.
        for timeout in (1, 5, 25):
            future = call_with_part_of_an_answer(agent, wire, timeout)
            if not future.done():
                break
        assert not future.done()
        assert f"({timeout}000 ms)" in error_of(future)
        eventually(lambda: unfinished(agent) == 0, "the pieces are released")


@in_worker
def test_messages_of_an_earlier_agent_do_not_mix(me: Any) -> None:
    """A worker that was started again counts its calls from the start."""
    with with_devices() as (agent, wire):
        _, sent = frames(wire)
        zeros = [bytes(PIECE)]
        wire.inbox.deliver(1, [change(sent[0], session=12345)[0], *zeros])
        since = len(wire.sent)
        for part in sent:
            wire.inbox.deliver(1, part)
        wire.wait_until(lambda: len(wire.sent) == since + 4)
        received = b"".join(parts[1] for parts in answers(wire, since)[:3])
        assert received == values().numpy().tobytes()
        assert unfinished(agent) == 1
