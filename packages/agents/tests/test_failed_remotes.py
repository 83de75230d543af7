"""torch keeps the RRef of a failed `rpc.remote()` for ever; the agent makes torch release it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from agents_kit import eventually, in_worker, on_wire
from torch._C._distributed_rpc import _rref_context_get_debug_info
from torch.distributed import rpc


def pending_rrefs() -> int:
    return int(_rref_context_get_debug_info()["num_pending_users"])


def create() -> Any:
    return rpc.remote("b", torch.add, args=(torch.ones(2), 1))


@in_worker
def test_a_lost_worker_leaves_no_pending_rref(me: Any) -> None:
    with on_wire() as (_, wire):
        rrefs = [create() for _ in range(3)]
        wire.wait_until(lambda: wire.sent[2:])
        assert pending_rrefs() == 3
        wire.inbox.lost(1, "gone")
        eventually(lambda: pending_rrefs() == 0, "torch has released the RRefs")
        del rrefs


@in_worker
def test_a_remote_that_cannot_be_sent_leaves_no_pending_rref(me: Any) -> None:
    with on_wire() as (_, wire):
        wire.fail = OSError("no route")
        with contextlib.suppress(
            RuntimeError
        ):  # raised if the transport fails before torch returns
            create()
        eventually(lambda: wire.tried, "the transport has failed")
        wire.fail = None
        eventually(lambda: pending_rrefs() == 0, "torch has released the RRef")


@in_worker
def test_a_script_function_leaves_no_pending_rref(me: Any) -> None:
    with on_wire() as (_, wire):
        rref = rpc.remote("b", torch.jit.script(plus_one), args=(torch.ones(2),))
        wire.request()
        wire.inbox.lost(1, "gone")
        eventually(lambda: pending_rrefs() == 0, "torch has released the RRef")
        del rref


def plus_one(value: torch.Tensor) -> torch.Tensor:
    return value + 1
