"""Measure a worker's own time to read what all members of a static group of ZEROMQ have written.

The other members are made up, in this process, so groups may be as large as ids allow. The network and
the store are not part of the measurement.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from rpc_backend_zeromq import ZeroMQRpcBackendOptions, identity
from rpc_backend_zeromq.transport import ZeroMQTransport
from rpc_backends_agents.engine import sealed
from rpc_backends_agents.engine.secret import generate
from rpc_backends_core._group import Group, Member
from rpc_backends_core._group.answers import read_answer
from rpc_backends_core._group.composition import compose, members_of


@dataclass(frozen=True)
class Reading:
    """What one worker does to join a group of ``size``.

    :ivar seconds: processor time of the worker.
    :ivar received: bytes of the names and addresses.
    """

    size: int
    seconds: float
    received: int


def read_group(size: int) -> Reading:
    """Make up a group of ``size`` workers; return what its first worker does to join."""
    names = _names(size)
    began = time.process_time()
    members = _members(size, names)
    seconds = time.process_time() - began
    group = Group(dist.HashStore(), "worker0", 0, size, members, 60.0, 0, secrets.token_hex(32))
    transport = ZeroMQTransport(ZeroMQRpcBackendOptions(secret=generate()), group)
    try:
        transport.listen(0, group.name)
        addresses = _addresses(transport, size)
        began = time.process_time()
        payloads = read_answer("exchange/1/all", addresses, size)["payloads"]
        for member, address in zip(members[1:], payloads, strict=True):
            transport.learn(member.worker_id, member.name, address)
        seconds += time.process_time() - began
    finally:
        transport.close(0)
    return Reading(size, seconds, len(names) + len(addresses))


def table(sizes: Sequence[int]) -> str:
    """Measure groups of ``sizes``; return a table in Markdown."""
    rows = ["| N | a worker reads | its processor time |", "| --- | --- | --- |"]
    for size in sizes:
        reading = min((read_group(size) for _ in range(3)), key=lambda one: one.seconds)
        rows.append(
            f"| {size} | {reading.received / 2**20:.2f} MiB | {reading.seconds * 1000:.0f} ms |"
        )
    return "\n".join(rows)


def _names(size: int) -> bytes:
    arrivals = [
        {
            "name": f"worker{rank}",
            "rank": rank,
            "backend": "ZEROMQ",
            "nonce": secrets.token_hex(16),
            "fixed_id": None,
        }
        for rank in range(size)
    ]
    return json.dumps(compose(arrivals)).encode()


def _members(size: int, names: bytes) -> tuple[Member, ...]:
    _, members = members_of(size, read_answer("group", names, size))
    return tuple(Member(*fields) for fields in members)


def _addresses(transport: Any, size: int) -> bytes:
    mine, secret = transport._mine, transport._settings.policy.secret
    payloads = []
    for rank in range(1, size):
        public, _ = identity.session_keys()
        other = replace(
            mine,
            worker_id=rank,
            name=f"worker{rank}",
            rank=rank,
            public_key=public.decode(),
            session=sealed.new_session(),
        )
        payloads.append(identity.seal(other, secret))
    return json.dumps({"payloads": payloads}).encode()
