"""Checks whether a member of a dynamic group is still alive.

Probing TensorPipe's own port would break it: its listener stops accepting once a connection ends
without a greeting, and an invalid greeting ends its process (torch 2.13). So each member has a separate
listening socket. The kernel accepts connections to it while the process lives and refuses them
afterwards, until another process gets the port. So the check also asks for the id of the member. Members
receive membership updates on the same socket (:mod:`.broadcast`).

A new TensorPipe agent may get the port of a process that was killed. So nothing connects to the port of
a member of this host whose process has ended, which is seen without a connection. The end of a process
on another host can only be seen at its port.
"""

from __future__ import annotations

import contextlib
import errno
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

_TCP_ADDRESS = re.compile(r"uv://\[?(?P<host>[^\]]+?)\]?:\d+$")
#: The response to an accepted message.
ACKNOWLEDGED = b"\x01"
#: Connections that the kernel queues until the member accepts them.
_BACKLOG = 128
#: Connections that are read at the same time.
_READERS = 16
#: Seconds within which a live process accepts a connection, and then responds.
_CONNECT_TIMEOUT = 2.0
#: Errors of accept() that pass: the connection is already dead, or a resource is exhausted for now.
_PASSING = {errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
#: Seconds to wait before accepting again after such an error.
_PAUSE = 0.05
#: Errors that mean the process is gone rather than slow.
_GONE = {
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EPIPE,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}


class LivenessListener:
    """A listening socket: shows other members that this process lives, and receives their updates.

    :param engine_address: the address that the agent listens on; this socket uses the same host.
    :param read: called with each connection, on a separate thread.
    """

    def __init__(self, engine_address: str, read: Callable[[socket.socket], None]) -> None:
        match = _TCP_ADDRESS.match(engine_address)
        host = match["host"] if match else "127.0.0.1"  # else shared memory, on one host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self._socket.settimeout(None)  # the program may have called socket.setdefaulttimeout
        self.address: tuple[str, int] = (host, self._socket.getsockname()[1])
        self._read = read
        self._readers = threading.BoundedSemaphore(_READERS)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._thread = threading.Thread(
            target=self._accept, name="rpc-backends-listener", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and close the connections that are being read."""
        with self._lock:
            self._closed = True
            for connection in (self._socket, *self._open):
                with contextlib.suppress(OSError):  # already disconnected
                    connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closed or error.errno not in _PASSING:
                    return
                time.sleep(_PAUSE)
                continue
            self._readers.acquire()
            reader = threading.Thread(
                target=self._hand_over,
                args=(connection,),
                name="rpc-backends-listener-reader",
                daemon=True,
            )
            try:
                reader.start()
            except RuntimeError:
                # The system has no thread left. A closed connection would say that this member is gone.
                self._hand_over(connection)

    def _hand_over(self, connection: socket.socket) -> None:
        try:
            with connection:
                with self._lock:
                    if self._closed:
                        return
                    self._open.add(connection)
                try:
                    self._read(connection)
                finally:
                    with self._lock:
                        self._open.discard(connection)
        finally:
            self._readers.release()


def refused(addresses: Sequence[tuple[str, int]], seconds: float) -> list[bool]:
    """Return for each address whether nothing listens there: its process has ended.

    A suspended process and a network that is cut do not refuse a connection.

    :param seconds: how long to wait for all of them; what has not refused by then has not ended.
    """
    end = time.monotonic() + seconds
    outcomes = [False] * len(addresses)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for place, (host, port) in enumerate(addresses):
            connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            stack.enter_context(connection)
            connection.setblocking(False)
            error = connection.connect_ex((host, port))
            outcomes[place] = error == errno.ECONNREFUSED
            if error == errno.EINPROGRESS:
                selector.register(connection, selectors.EVENT_WRITE, place)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                connection = cast(socket.socket, key.fileobj)
                error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                outcomes[key.data] = error == errno.ECONNREFUSED
                selector.unregister(connection)
    return outcomes


def is_alive(address: tuple[str, int], question: bytes) -> bool:
    """Return False if the member that listened at ``address`` is certainly gone, True otherwise.

    :param question: the message that only this member acknowledges (:func:`.broadcast.question`). A
        suspended member does not respond. If the connection ends without a response, another process has
        the port.
    """
    try:
        with socket.create_connection(address, _CONNECT_TIMEOUT) as connection:
            connection.sendall(question)
            return connection.recv(1) == ACKNOWLEDGED
    except OSError as error:
        return error.errno not in _GONE
