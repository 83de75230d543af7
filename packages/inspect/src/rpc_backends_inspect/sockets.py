"""The sockets of this user's workers: abstract Unix sockets, which leave nothing on disk.

Any user of the host can see that there is such a socket, connect to it, or open one with a similar name.
So a worker answers only its own user and root, and a reader takes only sockets that its own user has
opened; the kernel vouches for both (``SO_PEERCRED``). Names hold nothing but the user's number. Abstract
sockets belong to a network namespace: a worker in a container is inspected in that container, unless it
shares the host's network.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "rpc-backends-inspect-{}-"
#: The start of the name of the memory file with a worker's stacks. The rest is the key of the worker's
#: group, a colon, and the worker's name. They can thus be read even if the worker does not answer.
MEMORY_FILE = "rpc-worker:"
#: A stopped worker accepts no connection, so each look at it leaves one.
_BACKLOG = 4096
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class WorkerSocket:
    """The open socket of a worker.

    :ivar name: the socket's name, without the leading zero.
    :ivar connection: connected to it.
    """

    name: str
    pid: int
    connection: socket.socket

    @property
    def identity(self) -> tuple[str, str]:
        """The key of the worker's group and the worker's name, from the names of its open files.

        Both are empty if they cannot be read.
        """
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    _, prefix, rest = str(descriptor.readlink()).partition(f"memfd:{MEMORY_FILE}")
                    if prefix:
                        key, colon, worker = rest.removesuffix(" (deleted)").partition(":")
                        return (key, worker) if colon else ("", key)
        return "", ""


def key_of_address(address: str) -> str:
    """Return the key of a group that has an address and no id yet."""
    return "@" + hashlib.sha256(address.encode()).hexdigest()[:12]


def listen() -> socket.socket:
    """Return a listening socket for this process.

    :raises OSError: no socket can be opened.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The random part keeps other users from taking the name first.
        listener.bind("\0" + _PREFIX.format(os.geteuid()) + secrets.token_hex(8))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connect_all(timeout: float) -> list[WorkerSocket]:
    """Connect to the sockets that this user's workers have opened.

    :param timeout: seconds that each connection may take to send or receive.
    """
    sockets = []
    for name in _names():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect("\0" + name)
            size = _CREDENTIALS.size
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            pid, uid, _ = _CREDENTIALS.unpack(credentials)
        except OSError:  # it has just ended
            connection.close()
            continue
        if uid == os.geteuid():
            sockets.append(WorkerSocket(name, pid, connection))
        else:
            connection.close()
    return sockets


def _names() -> list[str]:
    prefix = "@" + _PREFIX.format(os.geteuid())
    names = set()
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        name = line.split(maxsplit=7)[-1]
        if name.startswith(prefix):
            names.add(name[1:])
    return sorted(names)
