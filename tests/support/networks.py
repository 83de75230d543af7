"""Hosts for tests: network namespaces with their own addresses, on one switch, with cables to cut."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.workers import WorkerContext

_CLONE_NEWNET = 0x40000000
_ETH_P_ALL = 0x0003
_SO_RCVBUFFORCE = 33
#: Size of the socket's buffer in bytes: more than any test sends between two reads.
_BUFFER = 256 << 20
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Host:
    """A network namespace that serves as a host.

    :ivar four: its IPv4 address; "" for a host that has only the loopback interface.
    :ivar six: its IPv6 address.
    :ivar cable: the end of its cable at the switch: namespace and interface.
    """

    name: str
    four: str = ""
    six: str = ""
    cable: tuple[str, str] = ("", "")

    def cut(self) -> None:
        """Pull the cable out. Addresses and connections stay, as on a real host."""
        self._set_cable("down")

    def restore(self) -> None:
        """Plug the cable in again."""
        self._set_cable("up")

    def _set_cable(self, state: str) -> None:
        switch, port = self.cable
        _ip("-n", switch, "link", "set", port, state).check_returncode()

    def command(self, *words: str) -> list[str]:
        """Return a command that runs on this host."""
        return ["ip", "netns", "exec", self.name, *words]


@contextlib.contextmanager
def host_names(names: dict[str, Host], on: list[Host]) -> Iterator[None]:
    """Make hosts resolve names to the IPv4 addresses of hosts, in commands of :meth:`Host.command`."""
    lines = ["127.0.0.1 localhost", *(f"{host.four} {name}" for name, host in names.items())]
    folders = [Path("/etc/netns") / host.name for host in on]
    try:
        for folder in folders:
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")
        yield
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def enter(me: WorkerContext, host: Host) -> None:
    """Move this worker to a host. This must be the worker's first step: existing threads do not move."""
    _enter(host.name)


@contextlib.contextmanager
def lonely_host() -> Iterator[Host]:
    """Yield a host that has only its loopback interface."""
    with contextlib.ExitStack() as stack:
        yield Host(_make_namespace(stack, "alone"))


@contextlib.contextmanager
def hosts(number: int) -> Iterator[list[Host]]:
    """Yield hosts that reach each other over a switch, by IPv4 and IPv6."""
    with contextlib.ExitStack() as stack:
        switch = _make_namespace(stack, "switch")
        _ip_or_skip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip_or_skip("-n", switch, "link", "set", "bridge", "up")
        made = []
        for n in range(1, number + 1):
            name = _make_namespace(stack, f"host{n}")
            host = Host(name, f"10.88.0.{n}", f"fd88::{n}", (switch, f"port{n}"))
            _plug_in(host, switch, f"port{n}")
            made.append(host)
        yield made


def _make_namespace(stack: contextlib.ExitStack, what: str) -> str:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` here (iproute2)")
    name = f"rpct{os.getpid()}-{next(_numbers)}-{what}"
    _ip_or_skip("netns", "add", name)
    stack.callback(_ip, "netns", "delete", name)
    _ip_or_skip("-n", name, "link", "set", "lo", "up")
    return name


def _plug_in(host: Host, switch: str, port: str) -> None:
    _ip_or_skip(
        *("link", "add", "eth0", "netns", host.name, "type", "veth"),
        *("peer", "name", port, "netns", switch),
    )
    # No other host has these addresses, so duplicate detection is off.
    _ip("netns", "exec", host.name, "sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0")
    _ip_or_skip("-n", switch, "link", "set", port, "master", "bridge", "up")
    _ip_or_skip("-n", host.name, "link", "set", "eth0", "up")
    _ip_or_skip("-n", host.name, "addr", "add", f"{host.four}/24", "dev", "eth0")
    _ip_or_skip("-n", host.name, "addr", "add", f"{host.six}/64", "dev", "eth0", "nodad")


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


def _ip_or_skip(*arguments: str) -> None:
    done = _ip(*arguments)
    if done.returncode:
        pytest.skip(f"no network namespaces here: ip {' '.join(arguments)}: {done.stderr.strip()}")


def _enter(name: str) -> None:
    """Move the calling thread to a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{name}").open() as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {name}")


def _inside(host: Host, make: Callable[[], socket.socket]) -> socket.socket:
    """Return a socket that a thread on a host makes: it belongs to that host's network."""
    made: list[Any] = []

    def work() -> None:
        try:
            _enter(host.name)
            made.append(make())
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    opened: socket.socket = made[0]
    return opened


class Capture:
    """All packets on a host's interfaces while the context lasts.

    :ivar packets: in order of arrival; those of the loopback interface appear twice.
    """

    def __init__(self, host: Host) -> None:
        self.packets: list[bytes] = []
        self._socket = _inside(host, self._open)
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._read)

    @staticmethod
    def _open() -> socket.socket:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        opened.settimeout(0.1)
        return opened

    def __enter__(self) -> Capture:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.close()
        self._thread.join()
        self._socket.close()
        self._stopped.close()

    def _read(self) -> None:
        """Read until the context has ended and no packet has come for a tenth of a second."""
        stopping = False
        while True:
            try:
                self.packets.append(self._socket.recv(1 << 20))
            except TimeoutError:
                if stopping:
                    return
                self._stopped.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    stopping = self._stopped.recv(1) == b""

    def count(self, what: bytes) -> int:
        """Return how many packets contain these bytes."""
        return sum(what in packet for packet in self.packets)

    @property
    def size(self) -> int:
        """Total bytes of all packets."""
        return sum(map(len, self.packets))
