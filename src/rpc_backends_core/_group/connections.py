"""Whether the host of a TCP store has closed this process's connection, which is seen without a request.

Torch answers a request on a closed connection with a C++ backtrace on stderr, beside the exception. So
the socket is looked at first. Torch does not say which socket it is; the address of its peer does.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

#: The sockets that are connected to a store's host: file descriptor and inode, by the host's address.
_Sockets = list[tuple[int, int]]
_known: dict[tuple[str, int], _Sockets] = {}


def address_of(store: Any) -> tuple[str, int] | None:
    """Return host and port of a TCP store, also of one behind prefixes; None for other stores."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return (host, port) if host and port else None


def is_closed(store: Any) -> bool:
    """Return whether the host of a TCP store has closed all connections of this process to it.

    It is False if this is not known: for other stores, and if the connections were not found while they
    were open.
    """
    address = address_of(store)
    if address is None:
        return False
    if address not in _known:
        _known[address] = _connected_to(address)
    sockets = _known[address]
    if not sockets or not all(_has_ended(*each) for each in sockets):
        return False
    newer = _connected_to(address)  # to another store at the same address
    if not newer or all(_has_ended(*each) for each in newer):
        return True
    _known[address] = newer
    return False


def _connected_to(address: tuple[str, int]) -> _Sockets:
    sockets: _Sockets = []
    try:
        hosts = {info[4][0] for info in socket.getaddrinfo(*address, type=socket.SOCK_STREAM)}
        descriptors = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:
        return sockets
    for descriptor in descriptors:
        try:
            inode = os.fstat(descriptor).st_ino
            peer = _look(descriptor, lambda connection: connection.getpeername())
        except OSError:  # no socket, or one without a peer
            continue
        is_ip = isinstance(peer, tuple) and len(peer) >= 2
        if is_ip and peer[1] == address[1] and peer[0].removeprefix("::ffff:") in hosts:
            sockets.append((descriptor, inode))
    return sockets


def _has_ended(descriptor: int, inode: int) -> bool:
    try:
        if os.fstat(descriptor).st_ino != inode:
            return True  # this process has closed it
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
        return bool(_look(descriptor, lambda connection: connection.recv(1, flags)) == b"")
    except BlockingIOError:
        return False
    except OSError:
        return True


def _look(descriptor: int, at: Any) -> Any:
    """Call ``at`` with a socket object for a descriptor that belongs to torch."""
    connection = socket.socket(fileno=descriptor)
    try:
        return at(connection)
    finally:
        connection.detach()
