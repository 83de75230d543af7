"""What a worker publishes about itself: a value, and its canonical JSON, which is parsed strictly."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any

from rpc_backend_zeromq.options import BACKEND
from rpc_backend_zeromq.unix_sockets import PATH_LIMIT, Node
from rpc_backends_agents.engine import canonical, publication, sealed
from rpc_backends_agents.engine.canonical import MalformedError
from rpc_backends_agents.engine.host import MAX_PID, Process

_MAX_ENDPOINTS = 8
_MAX_PLACE = 256
_HIGHEST_PORT = 65535
#: Z85 (rfc.zeromq.org/spec/32): 40 characters for 32 bytes.
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_TCP = re.compile(r"tcp://(?:\[([0-9a-f:.]+)\]|([0-9.]+)):([1-9][0-9]{0,4})")


@dataclass(frozen=True)
class UnixSocket:
    """The path of a Unix socket, and the file that the path must lead to."""

    path: str
    node: Node


@dataclass(frozen=True, kw_only=True)
class Publication(publication.Publication):
    """One worker of one group, and where it listens.

    :ivar tcp: endpoints with numeric addresses, without scopes, the preferred one first.
    :ivar unix: the worker's Unix socket; None if it has none.
    :ivar public_key: the public key of the worker's session (Z85); None without encryption.
    :ivar process: the worker's process.
    :ivar place: how the worker's address was found, for messages.
    """

    FORM = sealed.Form(BACKEND, "zeromq", 4, "rpc-backend-zeromq")

    tcp: tuple[str, ...]
    unix: UnixSocket | None
    public_key: str | None
    process: Process
    place: str

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the fields that only ZEROMQ has.

        :raises MalformedError: a value is invalid.
        """
        unix, tcp, key = fields["unix"], fields["tcp"], fields["public_key"]
        if not isinstance(tcp, list) or len(tcp) > _MAX_ENDPOINTS:
            raise MalformedError(f"its 'tcp' is not a list of at most {_MAX_ENDPOINTS} endpoints")
        for endpoint in tcp:
            if not isinstance(endpoint, str) or parse_tcp(endpoint) is None:
                raise MalformedError(f"its endpoint {_shown(endpoint)} is invalid")
        if key is not None and (not isinstance(key, str) or not _KEY.fullmatch(key)):
            raise MalformedError("its 'public_key' is not a key")
        return {
            "tcp": tuple(tcp),
            "unix": None if unix is None else _unix(unix),
            "public_key": key,
            "process": _process(fields),
            "place": _place(fields),
        }


def printable(place: str) -> str:
    """Return ``place`` shortened and without unprintable characters, as a publication may hold it."""
    return "".join(letter if letter.isprintable() else "?" for letter in place[:_MAX_PLACE])


def parse_tcp(endpoint: str) -> tuple[str, int] | None:
    """Return the numeric address and the port of an endpoint; None if it is malformed."""
    match = _TCP.fullmatch(endpoint)
    if match is None:
        return None
    try:
        address = ipaddress.ip_address(match[1] or match[2])
    except ValueError:
        return None
    port = int(match[3])
    if port > _HIGHEST_PORT or address.is_unspecified or address.is_multicast:
        return None
    return str(address), port


def _place(fields: dict[str, Any]) -> str:
    place = canonical.text(fields, "place", _MAX_PLACE)
    if not place.isprintable():
        raise MalformedError("its 'place' is not printable")
    return place


def _process(fields: dict[str, Any]) -> Process:
    process = canonical.fields(fields["process"], "its 'process'", Process)
    return Process(
        canonical.number(process, "pid", MAX_PID),
        canonical.number(process, "start", 2**63 - 1),
        canonical.text(process, "namespace", _MAX_PLACE),
    )


def _unix(data: Any) -> UnixSocket:
    fields = canonical.fields(data, "its 'unix'", UnixSocket)
    path = canonical.text(fields, "path", PATH_LIMIT)
    if not path.startswith("/") or "\0" in path:
        raise MalformedError("the path of its Unix socket is invalid")
    node = canonical.fields(fields["node"], "its 'node'", Node)
    return UnixSocket(
        path, Node(*(canonical.number(node, part, 2**64 - 1) for part in ("device", "inode")))
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
