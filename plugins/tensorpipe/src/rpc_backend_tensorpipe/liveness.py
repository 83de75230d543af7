"""Telling whether a member of a dynamic group is still there.

TensorPipe's own port must not be tried: its listener never accepts again once a connection to it has
ended without a greeting (torch 2.13). So each member has a socket of its own that listens and does
nothing else: the kernel answers as long as the process lives, and refuses when it is gone.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket

_TCP_ADDRESS = re.compile(r"uv://\[?(?P<host>[^\]]+?)\]?:\d+$")
#: Connections that the kernel keeps for a member before anybody takes them off.
_BACKLOG = 128
#: Seconds in which a process that lives answers.
_PATIENCE = 2.0
#: What says that a process is gone, rather than slow.
_GONE = {errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH}


class Pulse:
    """The socket by which others can tell that this process lives.

    :param engine_address: where the agent listens; the socket is on the same host.
    """

    def __init__(self, engine_address: str) -> None:
        match = _TCP_ADDRESS.match(engine_address)
        host = match["host"] if match else "127.0.0.1"  # shared memory: all are on this host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.address: tuple[str, int] = (host, self._socket.getsockname()[1])

    def take_off(self) -> None:
        """Take waiting connections off, so that there is room for more."""
        with contextlib.suppress(OSError):  # none is waiting, or it is closed
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def is_alive(address: tuple[str, int]) -> bool:
    """Return whether the process with its :class:`Pulse` at ``address`` is there, or may be."""
    try:
        socket.create_connection(address, _PATIENCE).close()
    except OSError as error:
        return error.errno not in _GONE
    return True
