"""Whether the host of a TCP store has closed this process's connection, which is seen without a request.

Torch answers a request on a closed connection with a C++ backtrace on stderr, beside the exception. So
the socket is looked at first. Torch does not say which socket it is; the address of its peer does.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import sys
from pathlib import Path
from typing import Any

#: The sockets that are connected to a store's host: file descriptor and inode, by the host's address.
_Sockets = list[tuple[int, int]]
_known: dict[tuple[str, int], _Sockets] = {}
_LONGEST_ADDRESS = 128


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
    getpeername = ctypes.CDLL(None).getpeername
    for descriptor in descriptors:
        try:
            inode = os.fstat(descriptor).st_ino
        except OSError:  # it was closed meanwhile
            continue
        host, port = _peer_of(descriptor, getpeername)
        if port == address[1] and host.removeprefix("::ffff:") in hosts:
            sockets.append((descriptor, inode))
    return sockets


# A socket object is not used for torch's descriptors: with ``socket.setdefaulttimeout``, it would make
# them non-blocking.


def _peer_of(descriptor: int, getpeername: Any) -> tuple[str, int]:
    """Return host and port at the other end of a connection over IP; ("", 0) for another descriptor.

    :param getpeername: the function of C.
    """
    address = ctypes.create_string_buffer(_LONGEST_ADDRESS)
    size = ctypes.c_uint(_LONGEST_ADDRESS)
    if getpeername(descriptor, address, ctypes.byref(size)) != 0:
        return "", 0
    family, port = int.from_bytes(address.raw[:2], sys.byteorder), address.raw[2:4]
    if family not in (socket.AF_INET, socket.AF_INET6):
        return "", 0
    # <netinet/in.h>: a flow label of 4 bytes stands before the address of IPv6.
    host = address.raw[4:8] if family == socket.AF_INET else address.raw[8:24]
    return socket.inet_ntop(family, host), int.from_bytes(port, "big")


def _has_ended(descriptor: int, inode: int) -> bool:
    try:
        if os.fstat(descriptor).st_ino != inode:
            return True  # this process has closed it
    except OSError:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
