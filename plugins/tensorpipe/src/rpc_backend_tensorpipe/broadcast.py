"""Sends the new member list of a dynamic group to all members at once.

Membership updates do not use RPC. A call would make TensorPipe connect the two agents, which costs
memory and time even if this worker never calls that member. Instead the message goes to the member's
listener (:mod:`.liveness`). It consists of the length of the list (4 bytes), an HMAC-SHA256 of the
list under the group's key, and the list. The key is in the store beside the list, so members reject
messages from a process that can reach their port but not the store.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rpc_backend_tensorpipe.liveness import ACKNOWLEDGED

Address = tuple[str, int]

_LENGTH = struct.Struct("!I")
_SEAL_BYTES = 32
#: The start of a liveness question; a list starts with "{".
_QUESTION = b"alive "
#: Bytes of the longest list that is accepted; a group that uses every worker id needs less.
_LARGEST = 16 << 20
#: Seconds in which a sender has to send its whole message after it has connected.
_READING_SECONDS = 5.0


def sealed(text: bytes, key: bytes) -> bytes:
    """Return the message that carries ``text``: its length, its HMAC under ``key``, the text."""
    return _LENGTH.pack(len(text)) + hmac.digest(key, text, "sha256") + text


def question(worker_id: int, key: bytes) -> bytes:
    """Return a liveness question: only the member with this id acknowledges it."""
    return sealed(b"%s%d" % (_QUESTION, worker_id), key)


def send_to_all(addresses: Sequence[Address], message: bytes, timeout: float) -> list[bool]:
    """Send a message to all addresses at the same time; return for each whether it was accepted.

    :param timeout: seconds for the whole broadcast.
    """
    end = time.monotonic() + timeout
    taken = [False] * len(addresses)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for place, (host, port) in enumerate(addresses):
            connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            stack.enter_context(connection)
            connection.setblocking(False)
            if connection.connect_ex((host, port)) in (0, errno.EINPROGRESS):
                delivery = _Delivery(place, connection, memoryview(message))
                selector.register(connection, selectors.EVENT_WRITE, delivery)
        while selector.get_map():
            left = end - time.monotonic()
            if left <= 0:
                break
            for ready, _ in selector.select(left):
                delivery = ready.data
                outcome = delivery.go_on()
                if outcome is not None:
                    taken[delivery.place] = outcome
                    selector.unregister(delivery.connection)
                elif not delivery.rest:
                    selector.modify(delivery.connection, selectors.EVENT_READ, delivery)
    return taken


def receive(
    connection: socket.socket, key: bytes, worker_id: int, take_in: Callable[[bytes], None]
) -> None:
    """Read a broadcast from a connection; if its HMAC is valid, pass the text on and acknowledge it.

    A :func:`question` is acknowledged only if it asks for this member.

    :param worker_id: the id of this member.
    :param take_in: called with the text of a valid broadcast.
    """
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
    if not text.startswith(_QUESTION):
        take_in(text)
    elif text != b"%s%d" % (_QUESTION, worker_id):
        return
    with contextlib.suppress(OSError):  # the sender waits no longer
        connection.sendall(ACKNOWLEDGED)


@dataclass
class _Delivery:
    """The delivery of the message to one address.

    :ivar place: the index of the address.
    :ivar rest: the bytes that are still to be sent.
    """

    place: int
    connection: socket.socket
    rest: memoryview

    def go_on(self) -> bool | None:
        """Send or receive what is possible without waiting.

        :returns: whether the member accepted the message; None while that is not known.
        """
        try:
            if self.rest:
                self.rest = self.rest[self.connection.send(self.rest) :]
                return None
            return self.connection.recv(1) == ACKNOWLEDGED
        except BlockingIOError:
            return None
        except OSError:  # nothing listens there, or the connection was closed
            return False


def _read(connection: socket.socket, size: int, end: float) -> bytes | None:
    """Read ``size`` bytes; return None if they do not arrive before ``end``."""
    received = bytearray()
    while len(received) < size:
        left = end - time.monotonic()
        if left <= 0:
            return None
        connection.settimeout(left)
        try:
            piece = connection.recv(min(size - len(received), 1 << 16))
        except OSError:
            return None
        if not piece:
            return None
        received += piece
    return bytes(received)
