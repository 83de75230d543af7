"""The record that a worker publishes in the store, and the proofs that workers of UCX show each other."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from rpc_backend_ucx.options import BACKEND
from rpc_backend_ucx.processes import Process
from rpc_backends_agents.engine import canonical, publication, sealed
from rpc_backends_agents.engine.canonical import MalformedError
from rpc_backends_agents.engine.host import MAX_PID
from rpc_backends_agents.engine.secret import Secret

_PURPOSE = "ucx greeting"
_CONNECTION = "ucx connection"
_MAX_TEXT = 256
_MAX_ADDRESS = 8192


@dataclass(frozen=True, kw_only=True)
class Publication(publication.Publication):
    """One worker of one group, and how UCX reaches it.

    :ivar process: the worker's process.
    :ivar address: the address of UCX's worker, in base 64.
    :ivar device_memory: the types of devices whose memory UCX moves, sorted, with commas between them.
    """

    FORM = sealed.Form(BACKEND, "ucx", 4, "rpc-backend-ucx")

    process: Process
    address: str
    device_memory: str

    @property
    def address_bytes(self) -> bytes:
        """The address in the form that UCX uses."""
        return base64.b64decode(self.address)

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the fields that only UCX has.

        :raises MalformedError: a value is invalid.
        """
        process = canonical.fields(fields["process"], "its 'process'", Process)
        address = canonical.text(fields, "address", _MAX_ADDRESS)
        try:
            base64.b64decode(address, validate=True)
        except (ValueError, binascii.Error) as error:
            raise MalformedError("its 'address' is not base 64") from error
        return {
            "process": Process(
                pid=canonical.number(process, "pid", MAX_PID),
                start=canonical.number(process, "start", 2**63 - 1),
                namespace=canonical.text(process, "namespace", _MAX_TEXT),
                ipc_namespace=canonical.text(process, "ipc_namespace", _MAX_TEXT),
                user_namespace=canonical.text(process, "user_namespace", _MAX_TEXT),
                network_namespace=canonical.text(process, "network_namespace", _MAX_TEXT),
            ),
            "address": address,
            "device_memory": canonical.text(fields, "device_memory", _MAX_TEXT),
        }


def encoded(address: bytes) -> str:
    """Return an address of UCX as base 64 text."""
    return base64.b64encode(address).decode("ascii")


def greetings(mine: Publication, peer: Publication, secret: Secret | None) -> tuple[bytes, bytes]:
    """Return the proofs in the greetings of two workers, 32 bytes each: this worker's, the peer's."""
    return (
        mine.proof(_PURPOSE, "greeting", peer, secret),
        peer.proof(_PURPOSE, "greeting", mine, secret),
    )


def statements(mine: Publication, peer: Publication) -> tuple[bytes, bytes]:
    """Return what the owners of certificates sign in greetings: this worker, and the peer.

    The greeting itself follows, whose numbers are used once; see ``identity.h``.
    """
    return _statement(mine, peer), _statement(peer, mine)


def _statement(of: Publication, to: Publication) -> bytes:
    both = [[worker.worker_id, worker.name, worker.session] for worker in (of, to)]
    return json.dumps([Publication.FORM.word, "greeting", of.group, *both]).encode()


def connection_key(group: str, secret: Secret | None) -> bytes:
    """Return the key (32 bytes) with which workers of a group prove themselves on TCP connections.

    :param group: the group's token.
    """
    return sealed.group_key(Publication.FORM, _CONNECTION, group, secret)
