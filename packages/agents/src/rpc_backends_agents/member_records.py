"""One record of the member list of a dynamic group: its kinds, and how it is read.

Any process that reaches the store can write a record, so each one is limited in size and checked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from torch.distributed.rpc import WorkerInfo

from rpc_backends_core.spi import processes, stored

#: In torch, a worker id is a signed 16-bit integer.
MAX_ID = 32767
#: The fields of each kind of record.
_FIELDS: dict[str, dict[str, type]] = {
    "peer": {"name": str, "rank": int, "id": int, "address": str},
    "in": {"number": int},
    "out": {"number": int},
    "lost": {"number": int},
}
#: Bytes of the longest record that is parsed, many times more than any worker writes.
_LARGEST_RECORD = 1 << 16


@dataclass(frozen=True)
class Peer:
    """A worker that is a member, or wants to become one.

    :ivar number: the number of the worker's first record, which is unique in the group.
    :ivar address: the address for the transport; it is not kept after the transport has learned it.
    :ivar devices: what the worker declares of its accelerators; not kept either. None for nothing.
    :ivar process: its process as `this_process` returns it there; empty if it is not on this host.
    """

    number: int
    name: str
    rank: int
    worker_id: int
    address: str
    devices: Any = None
    process: tuple[Any, ...] = ()


def parse(text: bytes) -> dict[str, Any]:
    """Parse and check a record of the list; processes outside the group may have written it.

    :raises ValueError: the record is not valid.
    """
    if len(text) > _LARGEST_RECORD:
        raise ValueError(f"it has {len(text)} bytes; at most {_LARGEST_RECORD} are read")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({type(error).__name__})") from error
    kind = record.get("kind") if isinstance(record, dict) else None
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise ValueError("its kind is unknown")
    for name, wanted in fields.items():
        value = record.get(name)
        if type(value) is not wanted:
            raise ValueError(f"its {name!r} is of type {type(value).__name__}")
        if name in ("rank", "id") and not stored.is_id(value):
            raise ValueError(f"its {name!r} is not from 0 to {MAX_ID}")
    if kind == "peer":
        try:
            WorkerInfo(record["name"], record["id"])
        except (RuntimeError, ValueError) as error:
            raise ValueError("torch does not allow its 'name'") from error
    return dict(record)


def peer_of(number: int, record: dict[str, Any]) -> Peer:
    """Return the worker of a record of the kind ``peer``.

    :param number: the number of the record.
    """
    return Peer(
        number,
        record["name"],
        record["rank"],
        record["id"],
        record["address"],
        record.get("devices"),
        tuple(record["process"]) if processes.is_local(record.get("process")) else (),
    )
