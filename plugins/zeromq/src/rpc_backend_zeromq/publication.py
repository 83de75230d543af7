"""What a worker publishes about itself: a value, and its canonical JSON, which is parsed strictly."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from rpc_backend_zeromq.host import Host
from rpc_backend_zeromq.unix_sockets import PATH_LIMIT, Node

#: Bytes of the longest JSON that is parsed: many times what any worker writes.
LIMIT = 16384
_MAX_ENDPOINTS = 8
_MAX_ID = 32767  # torch's ids are 16 bits, signed
_MAX_NAME = 1024
_MAX_GROUP = 256
_MAX_HOST = 256
_MAX_PLACE = 256
_HIGHEST_PORT = 65535
#: Z85, the alphabet of ZeroMQ's keys (rfc.zeromq.org/spec/32): 40 characters for 32 bytes.
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_SESSION_DIGITS = 32
_SESSION = re.compile(f"[0-9a-f]{{{_SESSION_DIGITS}}}")
_TCP = re.compile(r"tcp://(?:\[([0-9a-f:.]+)\]|([0-9.]+)):([1-9][0-9]{0,4})")


@dataclass(frozen=True)
class UnixSocket:
    """The path of a Unix socket, and the file that the path must lead to."""

    path: str
    node: Node


@dataclass(frozen=True)
class Publication:
    """One worker of one group, and where it listens.

    :ivar group: the group's token, unique among all groups, past ones included.
    :ivar tcp: endpoints with numeric addresses, without scopes, the preferred one first.
    :ivar unix: the worker's Unix socket; None if it has none.
    :ivar public_key: the public key of the worker's session (Z85); None without encryption.
    :ivar max_message_bytes: the size in bytes of the longest message that the worker accepts.
    :ivar session: 32 hexadecimal digits, unique to the session.
    :ivar place: how the worker's address was found, for messages.
    """

    group: str
    worker_id: int
    name: str
    rank: int
    host: Host
    tcp: tuple[str, ...]
    unix: UnixSocket | None
    public_key: str | None
    session: str
    max_message_bytes: int
    place: str


def printable(place: str) -> str:
    """Return ``place`` shortened and without unprintable characters, as a publication may hold it."""
    return "".join(letter if letter.isprintable() else "?" for letter in place[:_MAX_PLACE])


class MalformedError(ValueError):
    """The text is not the JSON of a publication."""


def dump(publication: Publication) -> str:
    """Return the canonical JSON of a publication: sorted keys, no white space, ASCII."""
    return json.dumps(asdict(publication), sort_keys=True, separators=(",", ":"))


def load(text: str) -> Publication:
    """Parse the JSON of a publication.

    :raises MalformedError: ``text`` is not in the form that :func:`dump` gives.
    """
    if len(text) > LIMIT:
        raise MalformedError(f"it has more than {LIMIT} bytes")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"it is not JSON: {error}") from error
    publication = _publication(data)
    if dump(publication) != text:
        raise MalformedError("it is not in canonical form")
    return publication


def parse_tcp(endpoint: str) -> tuple[str, int] | None:
    """Return the numeric address and the port of an endpoint; None if it is malformed."""
    found = _TCP.fullmatch(endpoint)
    if found is None:
        return None
    try:
        address = ipaddress.ip_address(found[1] or found[2])
    except ValueError:
        return None
    port = int(found[3])
    if port > _HIGHEST_PORT or address.is_unspecified or address.is_multicast:
        return None
    return str(address), port


def _publication(data: Any) -> Publication:
    fields = _fields(data, "it", Publication)
    unix = fields["unix"]
    tcp = fields["tcp"]
    if not isinstance(tcp, list) or len(tcp) > _MAX_ENDPOINTS:
        raise MalformedError(f"its 'tcp' is not a list of at most {_MAX_ENDPOINTS} endpoints")
    for endpoint in tcp:
        if not isinstance(endpoint, str) or parse_tcp(endpoint) is None:
            raise MalformedError(f"its endpoint {_shown(endpoint)} is invalid")
    key = fields["public_key"]
    if key is not None and (not isinstance(key, str) or not _KEY.fullmatch(key)):
        raise MalformedError("its 'public_key' is not a key")
    host = _fields(fields["host"], "its 'host'", Host)
    return Publication(
        group=_text(fields, "group", _MAX_GROUP),
        worker_id=_number(fields, "worker_id", _MAX_ID),
        name=_text(fields, "name", _MAX_NAME),
        rank=_number(fields, "rank", _MAX_ID),
        host=Host(_text(host, "kernel", _MAX_HOST), _text(host, "network", _MAX_HOST)),
        tcp=tuple(tcp),
        unix=None if unix is None else _unix(unix),
        public_key=key,
        session=_session(fields),
        max_message_bytes=_number(fields, "max_message_bytes", 2**63 - 1),
        place=_place(fields),
    )


def _session(fields: dict[str, Any]) -> str:
    session = _text(fields, "session", _SESSION_DIGITS)
    if not _SESSION.fullmatch(session):
        raise MalformedError(f"its 'session' is not {_SESSION_DIGITS} hexadecimal digits")
    return session


def _place(fields: dict[str, Any]) -> str:
    place = _text(fields, "place", _MAX_PLACE)
    if not place.isprintable():
        raise MalformedError("its 'place' is not printable")
    return place


def _unix(data: Any) -> UnixSocket:
    fields = _fields(data, "its 'unix'", UnixSocket)
    path = _text(fields, "path", PATH_LIMIT)
    if not path.startswith("/") or "\0" in path:
        raise MalformedError("the path of its Unix socket is invalid")
    node = _fields(fields["node"], "its 'node'", Node)
    return UnixSocket(path, Node(*(_number(node, part, 2**64 - 1) for part in ("device", "inode"))))


def _fields(data: Any, what: str, of: type) -> dict[str, Any]:
    if not isinstance(data, dict) or data.keys() != of.__dataclass_fields__.keys():  # type: ignore[attr-defined]
        raise MalformedError(f"{what} does not have the fields of a {of.__name__}")
    return data


def _text(fields: dict[str, Any], name: str, limit: int) -> str:
    value = fields[name]
    if not isinstance(value, str) or len(value) > limit:
        raise MalformedError(f"its {name!r} is not a string of at most {limit} characters")
    return value


def _number(fields: dict[str, Any], name: str, limit: int) -> int:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise MalformedError(f"its {name!r} is not an integer from 0 to {limit}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
