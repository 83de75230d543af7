"""A short run of the fuzzer on the installed extension, without sanitizers: no frame ends the process.

The frames are answers with tensors of all kinds, with some bytes changed. The agent handles them like any
message that arrives: it counts an invalid frame, and closes the connection if the head is invalid. Frames
that are still valid answer no call of this process.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from agents_kit import a_request, eventually, in_worker, logged, on_wire
from torch.distributed import rpc

pytestmark = pytest.mark.slow

FRAMES = 20_000
AT_A_TIME = 1000


def seeds() -> list[list[bytes]]:
    """Return the frames of answers."""
    matrix = torch.arange(24, dtype=torch.float32).view(4, 6)
    values: list[Any] = [
        7,
        "x" * 5000,
        matrix,
        [matrix.t(), matrix[:, ::2], matrix[1]],
        [torch.arange(600), torch.arange(600)[5:9]],
        [torch.empty(0, 3), torch.tensor(7)],
        [matrix.bfloat16(), matrix.bool(), matrix.to(torch.complex64).conj()],
        [matrix.to_sparse(), matrix.to_sparse(1)],
        [
            torch.quantize_per_tensor(matrix, 0.5, 3, torch.quint8),
            torch.ones(2, requires_grad=True),
        ],
    ]
    with on_wire() as (_, wire):
        for request in [a_request(wire, value)[1] for value in values]:
            wire.inbox.deliver(1, request)
        answers = wire.wait_until(
            lambda: (
                len(wire.sent) == 2 * len(values)
                and [frame for _, frame, reply in wire.sent if reply]
            )
        )
        assert not wire.rejected
    return list(answers)


def mutated(parts: list[bytes], chance: random.Random) -> list[bytes]:
    """Return a copy of the frame with a few random changes to its bytes, lengths or parts."""
    parts = list(parts)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        which = chance.randrange(len(parts)) if parts else 0
        part = bytearray(parts[which]) if parts else bytearray()
        at = chance.randrange(len(part)) if part else 0
        kind = chance.randrange(8)
        if kind <= 3 and part:
            part[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind == 4:
            part[at : at + 8] = chance.choice((b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f"))
        elif kind == 5:
            del part[at : at + chance.choice((1, 8, 100))]
        elif kind == 6:
            part[at:at] = chance.randbytes(chance.choice((1, 8, 16)))
        elif chance.random() < 0.5:
            parts.insert(which, bytes(part))
        elif parts:
            del parts[which]
            continue
        if parts:
            parts[which] = bytes(part)
    return parts


@in_worker
def test_no_frame_ends_the_process_and_bad_ones_are_counted(me: Any) -> None:
    chance, frames = random.Random(4), seeds()
    with on_wire() as (agent, wire), logged() as lines:
        for seen in range(AT_A_TIME, FRAMES + 1, AT_A_TIME):
            for _ in range(AT_A_TIME):
                wire.inbox.deliver(1, mutated(chance.choice(frames), chance))
            eventually(lambda seen=seen: handled(agent, wire) >= seen, "all frames are handled")
        refused = int(agent.get_metrics()["agent.bad_frames"])
        assert FRAMES / 2 < refused < FRAMES
        assert 0 < len(wire.rejected) < refused
        assert lines
        assert rpc.rpc_sync("a", torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]


def handled(agent: Any, wire: Any) -> int:
    """Return how many frames were refused, were answers to no call, or were answered."""
    return int(agent.get_metrics()["agent.late_answers"]) + len(wire.rejected) + len(wire.sent)
