"""Telling whether a member of a dynamic group is still there.

TensorPipe's own port must not be tried: its listener never accepts again once a connection to it has
ended without a greeting (torch 2.13). So each member has a socket of its own that listens: the kernel
answers as long as the process lives, and refuses when it is gone. By the same socket members are told of
changes (:mod:`.broadcast`).
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import threading
import time
from collections.abc import Callable

_TCP_ADDRESS = re.compile(r"uv://\[?(?P<host>[^\]]+?)\]?:\d+$")
#: Connections that the kernel keeps for a member before anybody takes them off.
_BACKLOG = 128
#: Connections that are read at a time.
_READERS = 16
#: Seconds in which a process that lives answers.
_PATIENCE = 2.0
#: What a connection has died of before it was accepted, or what there is too much of now.
_PASSING = {errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
#: Seconds until it is tried again then.
_PAUSE = 0.05
#: What says that a process is gone, rather than slow.
_GONE = {errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH}


class LivenessListener:
    """The socket by which others can tell that this process lives, and tell it what is new.

    :param engine_address: where the agent listens; the socket is on the same host.
    :param read: is given each connection, on a thread of its own.
    """

    def __init__(self, engine_address: str, read: Callable[[socket.socket], None]) -> None:
        match = _TCP_ADDRESS.match(engine_address)
        host = match["host"] if match else "127.0.0.1"  # shared memory: all are on this host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
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
        """Stop listening, and end the connections that are being read."""
        with self._lock:
            self._closed = True
            for connection in (self._socket, *self._open):
                with contextlib.suppress(OSError):  # it is over
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
            except RuntimeError:  # no thread is free
                connection.close()
                self._readers.release()

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


def is_alive(address: tuple[str, int]) -> bool:
    """Return whether the process that listens at ``address`` is there, or may be."""
    try:
        socket.create_connection(address, _PATIENCE).close()
    except OSError as error:
        return error.errno not in _GONE
    return True
