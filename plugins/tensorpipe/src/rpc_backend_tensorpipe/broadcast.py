"""Broadcasting the new list of a dynamic group to its members: a message to each, all at once.

Not by RPC: a call would have TensorPipe connect two agents, with the memory and the work that this
takes, for each member that the worker may never call. The message goes to the member's listener
(:mod:`.liveness`) and is: its length (4 bytes), an HMAC-SHA256 under the group's key, the list. The
key is in the store beside the list, so a process that reaches a member's port but not the store is
not believed.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import math
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Address = tuple[str, int]

_LENGTH = struct.Struct("!I")
_SEAL_BYTES = 32
#: More than the list of as many members as there are worker ids.
_LARGEST = 16 << 20
_TAKEN = b"\x01"
#: Seconds in which who has connected to a member has to have sent all of a message.
_READING_SECONDS = 5.0


def sealed(text: bytes, key: bytes) -> bytes:
    """Return the message with ``text`` and its seal."""
    return _LENGTH.pack(len(text)) + hmac.digest(key, text, "sha256") + text


def send_to_all(addresses: Sequence[Address], message: bytes, timeout: float) -> list[bool]:
    """Send a message to all at once; return for each whether it was taken in.

    :param timeout: seconds that all have together; 0: without end.
    """
    end = time.monotonic() + timeout if timeout else math.inf
    taken = [False] * len(addresses)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for place, (host, port) in enumerate(addresses):
            connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            stack.enter_context(connection)
            connection.setblocking(False)
            if connection.connect_ex((host, port)) in (0, errno.EINPROGRESS):
                one = _Delivery(place, connection, memoryview(message))
                selector.register(connection, selectors.EVENT_WRITE, one)
        while selector.get_map():
            left = end - time.monotonic()
            if left <= 0:
                break
            for ready, _ in selector.select(None if left == math.inf else left):
                one = ready.data
                outcome = one.go_on()
                if outcome is not None:
                    taken[one.place] = outcome
                    selector.unregister(one.connection)
                elif not one.rest:
                    selector.modify(one.connection, selectors.EVENT_READ, one)
    return taken


def receive(connection: socket.socket, key: bytes, take_in: Callable[[bytes], None]) -> None:
    """Read a broadcast from a connection, take it in if its seal is right, and acknowledge it."""
    end = time.monotonic() + _READING_SECONDS
    head = _read(connection, _LENGTH.size + _SEAL_BYTES, end)
    if head is None:
        return
    (length,) = _LENGTH.unpack_from(head)
    if length > _LARGEST:
        return
    text = _read(connection, length, end)
    if text is None or not hmac.compare_digest(
        head[_LENGTH.size :], hmac.digest(key, text, "sha256")
    ):
        return
    take_in(text)
    connection.sendall(_TAKEN)


@dataclass
class _Delivery:
    """One message on its way.

    :ivar rest: what is still to be sent.
    """

    place: int
    connection: socket.socket
    rest: memoryview

    def go_on(self) -> bool | None:
        """Do what can be done without waiting; return whether it was taken in, None if that is open."""
        try:
            if self.rest:
                self.rest = self.rest[self.connection.send(self.rest) :]
                return None
            return self.connection.recv(1) == _TAKEN
        except BlockingIOError:
            return None
        except OSError:  # nobody is there, or it has ended
            return False


def _read(connection: socket.socket, size: int, end: float) -> bytes | None:
    """Return so many bytes, or None if they do not come in time."""
    found = bytearray()
    while len(found) < size:
        left = end - time.monotonic()
        if left <= 0:
            return None
        connection.settimeout(left)
        try:
            piece = connection.recv(min(size - len(found), 1 << 16))
        except OSError:
            return None
        if not piece:
            return None
        found += piece
    return bytes(found)
