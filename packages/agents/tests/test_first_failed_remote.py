"""torch writes to the first RRef of a process with an error whenever another one times out.

The test is alone in its module, and thus in its process.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from agents_kit import eventually, in_worker, on_wire
from torch._C._distributed_rpc import _rref_context_get_debug_info
from torch.distributed import rpc


def create(**settings: Any) -> Any:
    return rpc.remote("b", torch.add, args=(torch.ones(2), 1), **settings)


def call() -> Any:
    return rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=0)


@in_worker
def test_a_timeout_changes_no_other_rref(me: Any) -> None:
    """The first RRef is never deleted; otherwise one of the later ones gets its memory."""
    with on_wire() as (_, wire):
        first = create()
        wire.request()
        wire.inbox.lost(1, "gone")
        eventually(
            lambda: _rref_context_get_debug_info()["num_pending_users"] == "0",
            "torch has released the RRef",
        )
        wire.inbox.found(1)
        eventually(lambda: not call().done(), "calls are sent again")
        del first
        rrefs = [create(timeout=0) for _ in range(20)]
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            create(timeout=0.05)._get_future().wait()
        for rref in rrefs:
            with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
                rref.to_here(timeout=0.05)  # if it is marked: "RRef creation via rpc.remote() ..."
