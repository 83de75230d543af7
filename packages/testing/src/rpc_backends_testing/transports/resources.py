"""The open connections, files and threads of this process: to cut them, and to find leftovers."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rpc_backends_testing.deviations import deviate
from rpc_backends_testing.resource_leaks import opened
from rpc_backends_testing.time_limits import ENDING
from rpc_backends_testing.transports.limits import Limits


def connections() -> set[str]:
    """Return the connected stream sockets of this process, by their names in ``/proc``."""
    return set(_connected())


def cut(names: set[str]) -> None:
    """End these connections, as a broken network would. Both ends stay alive."""
    for name, descriptor in _connected().items():
        if name in names:
            with contextlib.suppress(OSError), _duplicate(descriptor) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def listening() -> list[object]:
    """Return the addresses at which stream sockets of this process listen: of TCP and of paths."""
    sockets: list[object] = []
    for descriptor in _sockets().values():
        with contextlib.suppress(OSError), _duplicate(descriptor) as duplicate:
            if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                sockets.append(duplicate.getsockname())
    return sockets


def connect(address: object) -> socket.socket:
    """Connect to an address that :func:`listening` has returned."""
    family = socket.AF_UNIX
    if isinstance(address, tuple):
        family = socket.AF_INET if len(address) == 2 else socket.AF_INET6
    connection = socket.socket(family)
    try:
        connection.settimeout(5.0)
        connection.connect(address)  # type: ignore[arg-type]  # what getsockname() gave
    except BaseException:
        connection.close()
        raise
    return connection


@dataclass(frozen=True)
class Cutting:
    """How the connections of a transport are cut.

    :ivar connections: returns names of the connections that this process has now.
    :ivar cut: ends those named.
    :ivar before: the connections that there were before the test.
    """

    connections: Callable[[], set[str]]
    cut: Callable[[set[str]], None]
    before: frozenset[str] = frozenset()

    def expect_at_most(self, ends: int, call: str, limits: Limits) -> None:
        """Check that ``call`` has closed connections.

        :raises DeviationError: there are more.
        """
        limit = time.monotonic() + limits.ending
        while (left := len(self.connections() - self.before)) > ends:
            if time.monotonic() > limit:
                limits.note_passed()
                raise deviate(
                    call,
                    "this worker's ends of the connections are closed",
                    f"{left} ends are still open, of which {ends} are the other worker's",
                )
            time.sleep(0.01)

    def count_settled(self) -> int:
        """Return the number of new connections' ends once it is even and has stayed so for a moment.

        A connection that is being made has one end.
        """
        limit = time.monotonic() + ENDING
        earlier = -1
        while (now := len(self.connections() - self.before)) != earlier or now % 2:
            if time.monotonic() > limit:
                break
            earlier = now
            time.sleep(0.2)
        return now

    def wait_until_gone(self, names: set[str], seconds: float) -> None:
        """Wait until these connections are closed, at most for a time."""
        end = time.monotonic() + seconds
        # Cut sockets count, too: they are not connected, but the transport may not have closed them yet.
        while names & (self.connections() | set(_sockets())) and time.monotonic() < end:
            time.sleep(0.005)


class Remainder:
    """Compares what this process has open with what it had open when this object was made.

    An object that only the garbage collector would close counts as open.
    """

    def __init__(self) -> None:
        self._before = opened(collect=False)

    def now(self, seconds: float, *, only: str = "") -> str:
        """Return, as text, what was opened since; wait up to ``seconds`` until all is closed.

        A thread that has done its work takes a moment to end.

        :param only: a kind of thing to wait for, such as ``thread``; all kinds by default.
        """
        end = time.monotonic() + seconds
        while (left := opened(collect=False).beyond(self._before)) != "nothing" and only in left:
            if time.monotonic() > end:
                return left
            time.sleep(0.01)
        return left

    def check(self, call: str, limits: Limits) -> None:
        """Check that ``call`` has left nothing open.

        :raises DeviationError: it has.
        """
        left = self.now(limits.ending)
        if left != "nothing":
            limits.note_passed()
            raise deviate(
                call, "no socket, file or thread is left when it has returned", f"{left} left"
            )


def escaped(args: threading.ExceptHookArgs) -> str:
    """Return a description of the exception that has ended a thread."""
    frames = traceback.extract_tb(args.exc_traceback)
    where = f" in {frames[-1].name} ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{args.exc_type.__name__}: {args.exc_value}{where}"


def _sockets() -> dict[str, int]:
    sockets = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this listing
            name = str(entry.readlink())
            if name.startswith("socket:"):
                sockets[name] = int(entry.name)
    return sockets


def _connected() -> dict[str, int]:
    connections = {}
    for name, descriptor in _sockets().items():
        with contextlib.suppress(OSError), _duplicate(descriptor) as duplicate:
            if duplicate.type == socket.SOCK_STREAM:
                try:
                    duplicate.getpeername()
                except OSError as error:
                    if error.errno != errno.EINVAL:  # connected, but its other end has ended
                        continue
                connections[name] = descriptor
    return connections


def _duplicate(descriptor: int) -> socket.socket:
    return socket.socket(fileno=os.dup(descriptor))
