"""The record that a worker publishes in the store: its fields, its canonical JSON, and its seal."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from rpc_backend_ucx.environment import BACKEND
from rpc_backend_ucx.processes import Process
from rpc_backends_agents.common import canonical, sealed
from rpc_backends_agents.common.canonical import MAX_GROUP, MAX_ID, MAX_NAME, MalformedError
from rpc_backends_agents.common.errors import PublicationError
from rpc_backends_agents.common.host import Host
from rpc_backends_agents.common.secret import Secret

_FORM = sealed.Form(BACKEND, "ucx", 2, "rpc-backend-ucx")
_PURPOSE = "ucx greeting"
_CONNECTION = "ucx connection"
_MAX_HOST = 256
_MAX_ADDRESS = 8192
_MAX_PID = 2**22


@dataclass(frozen=True)
class Publication:
    """One worker of one group, and how UCX reaches it.

    :ivar group: the group's token, unique among all groups, past ones included.
    :ivar process: the worker's process.
    :ivar address: the address of UCX's worker, in base 64.
    :ivar session: 32 hexadecimal digits, unique to the session.
    :ivar max_message_bytes: the size in bytes of the longest message that the worker accepts.
    :ivar device_memory: the types of devices whose memory UCX moves, sorted, with commas between them.
    """

    group: str
    worker_id: int
    name: str
    rank: int
    host: Host
    process: Process
    address: str
    session: str
    max_message_bytes: int
    device_memory: str

    @property
    def address_bytes(self) -> bytes:
        """The address in the form that UCX uses."""
        return base64.b64decode(self.address)


def encoded(address: bytes) -> str:
    """Return an address of UCX as base 64 text."""
    return base64.b64encode(address).decode("ascii")


def seal(publication: Publication, secret: Secret | None) -> str:
    """Return the text to write to the store. Without a secret it has no proof."""
    return sealed.seal(_FORM, canonical.dump(publication), secret)


def open_publication(
    text: str,
    secret: Secret | None,
    *,
    reader: str,
    group: str,
    worker_id: int,
    name: str,
    rank: int | None,
) -> Publication:
    """Check and return a record that a worker has written to the store.

    :param secret: this worker's secret.
    :param reader: this worker's name, for messages.
    :param group: the token of the group that both workers should be in.
    :param worker_id: the expected worker's id.
    :param name: the expected worker's name.
    :param rank: the expected worker's rank; None if unknown.
    :raises PublicationError: the record cannot be trusted; the text says why and what to do.
    """
    payload = sealed.unseal(_FORM, text, secret, name=name, rank=rank, reader=reader)
    try:
        found = load(payload)
    except MalformedError as error:
        who = sealed.described(name, rank)
        raise PublicationError(f"the address of {who} in the store is invalid: {error}.") from error
    sealed.check_worker(found, group=group, worker_id=worker_id, name=name, rank=rank)
    return found


def greetings(mine: Publication, peer: Publication, secret: Secret | None) -> tuple[bytes, bytes]:
    """Return the proofs in the greetings of two workers, 32 bytes each: this worker's, the peer's."""
    return (
        sealed.proof_between(_FORM, _PURPOSE, "greeting", mine, peer, secret),
        sealed.proof_between(_FORM, _PURPOSE, "greeting", peer, mine, secret),
    )


def connection_key(group: str, secret: Secret | None) -> bytes:
    """Return the key (32 bytes) with which workers of a group prove themselves on TCP connections.

    :param group: the group's token.
    """
    return sealed.group_key(_FORM, _CONNECTION, group, secret)


def load(text: str) -> Publication:
    """Parse the JSON of a publication.

    :raises MalformedError: ``text`` is not in the form that :func:`canonical.dump` gives.
    """
    found = canonical.fields(canonical.parse(text), "it", Publication)
    host = canonical.fields(found["host"], "its 'host'", Host)
    process = canonical.fields(found["process"], "its 'process'", Process)
    address = canonical.text(found, "address", _MAX_ADDRESS)
    try:
        base64.b64decode(address, validate=True)
    except (ValueError, binascii.Error) as error:
        raise MalformedError("its 'address' is not base 64") from error
    publication = Publication(
        group=canonical.text(found, "group", MAX_GROUP),
        worker_id=canonical.number(found, "worker_id", MAX_ID),
        name=canonical.text(found, "name", MAX_NAME),
        rank=canonical.number(found, "rank", MAX_ID),
        host=Host(
            canonical.text(host, "kernel", _MAX_HOST), canonical.text(host, "network", _MAX_HOST)
        ),
        process=Process(
            pid=canonical.number(process, "pid", _MAX_PID),
            start=canonical.number(process, "start", 2**63 - 1),
            namespace=canonical.text(process, "namespace", _MAX_HOST),
            ipc_namespace=canonical.text(process, "ipc_namespace", _MAX_HOST),
            user_namespace=canonical.text(process, "user_namespace", _MAX_HOST),
        ),
        address=address,
        session=canonical.session(found),
        max_message_bytes=canonical.number(found, "max_message_bytes", 2**63 - 1),
        device_memory=canonical.text(found, "device_memory", _MAX_HOST),
    )
    canonical.check_form(publication, text)
    return publication
