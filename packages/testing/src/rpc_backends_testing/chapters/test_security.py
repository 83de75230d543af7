"""Security: nobody on the network can read messages."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import rpc

from rpc_backends_core import Capability
from rpc_backends_processes import WorkerContext
from rpc_backends_testing.checks import deviate, expect, sync
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import requirement

pytestmark = requirement("security", capability=Capability.ENCRYPTION)

#: Bytes of the payload.
SIZE = 1 << 20
#: `ETH_P_ALL`: packets of every protocol.
_ALL_PROTOCOLS = 3
#: The size of the kernel's buffer in bytes: more than the whole payload.
_BUFFER = 64 << 20
#: `SO_RCVBUFFORCE`, which Python's socket module lacks.
_FORCE_BUFFER = 33


# --- what workers run ----------------------------------------------------------------------------


def a_name_that_anybody_can_recognise(payload: bytes) -> int:
    return len(payload)


def send_payload(me: WorkerContext, marker: bytes) -> None:
    """Send the marker, many times, as an argument of a function with a conspicuous name."""
    payload = marker * (SIZE // len(marker))
    expect(sync("worker1", a_name_that_anybody_can_recognise, args=(payload,))).gives(len(payload))


def return_payload(me: WorkerContext, marker: bytes) -> None:
    """Let worker 1 send the marker, many times, as a result."""
    wanted = SIZE // len(marker)
    got = rpc.rpc_sync("worker1", repeat, args=(marker[::-1], wanted))
    if got != marker * wanted:
        raise deviate("rpc_sync('worker1', repeat)", f"{SIZE} bytes", f"{len(got)} others")


def repeat(reverse: bytes, times: int) -> bytes:
    """Return the marker many times. The argument is reversed, so that only the result has the marker."""
    return reverse[::-1] * times


def ports_here(me: WorkerContext) -> set[int]:
    """Return the ports of this process's sockets."""
    inodes = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            inodes.add(str(fd.readlink()))
    ports = set()
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/self/net/{protocol}").read_text().splitlines()[1:]:
            columns = line.split()
            if f"socket:[{columns[9]}]" in inodes:
                ports.add(int(columns[1].rpartition(":")[2], 16))
    return ports


# --- listening -----------------------------------------------------------------------------------


class Listener:
    """Records all packets on this machine's loopback interface until it is closed."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)
        )
        with contextlib.suppress(PermissionError):  # this needs another capability than listening
            self._socket.setsockopt(socket.SOL_SOCKET, _FORCE_BUFFER, _BUFFER)
        self._socket.bind(("lo", 0))
        self._socket.setblocking(False)
        self._closing, self._closed = socket.socketpair()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def close(self) -> None:
        """Read the packets so far, and stop."""
        self._closing.close()
        self._thread.join()
        self._socket.close()
        self._closed.close()

    def has(self, text: bytes) -> bool:
        """Return whether a packet has ``text`` in it."""
        return any(text in packet for packet in self.packets)

    def size_between(self, ports: set[int]) -> int:
        """Return how many bytes packets carried from one of ``ports`` to another."""
        return sum(len(packet) for packet in self.packets if set(_ports(packet)) <= ports)

    def _listen(self) -> None:
        ended = False
        while not ended:
            ready, _, _ = select.select([self._socket, self._closed], [], [])
            ended = self._closed in ready
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet, where = self._socket.recvfrom(1 << 17)
                    # Each packet is seen twice, going out and coming in.
                    if where[2] != socket.PACKET_OUTGOING:
                        self.packets.append(packet)


def _ports(packet: bytes) -> tuple[int, int]:
    """Return the ports of an Ethernet packet with TCP or UDP; (-1, -1) for any other."""
    kind = packet[12:14]
    if kind == b"\x08\x00":  # IPv4: the header's length is in its first byte, in words
        start, protocol = 14 + 4 * (packet[14] & 15), packet[23]
    elif kind == b"\x86\xdd":  # IPv6
        start, protocol = 54, packet[20]
    else:
        return -1, -1
    if protocol not in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
        return -1, -1
    source, target = struct.unpack_from("!HH", packet, start)
    return source, target


def listen() -> Listener:
    """Listen to the loopback interface, or skip the test if this process may not."""
    if not hasattr(socket, "AF_PACKET"):
        pytest.skip("packets can only be captured on Linux")
    try:
        return Listener()
    except PermissionError:
        pytest.skip("packets cannot be captured here: this needs root or CAP_NET_RAW")
    except OSError as error:
        pytest.skip(f"packets cannot be captured here: {error}")


def overhear(groups: Groups, step: Callable[..., None], marker: bytes) -> Listener:
    """Listen while worker 0 of two runs ``step``; skip the test if its data are not on the network."""
    with groups.running(2) as workers:
        listener = listen()
        try:
            workers[0].call(step, marker)
        finally:
            listener.close()
        ports: set[int] = set().union(*workers.run(ports_here))
    size = listener.size_between(ports)
    if size < SIZE:
        pytest.skip(
            f"not observed on the network: of {SIZE} bytes sent, {size} went over the loopback "
            "interface; the backend may use shared memory"
        )
    return listener


# --- requirements --------------------------------------------------------------------------------


def test_arguments(rpc_groups: Groups) -> None:
    """Arguments of a call cannot be read on the network."""
    marker = secrets.token_bytes(32)
    if overhear(rpc_groups, send_payload, marker).has(marker):
        raise deviate(
            "rpc_sync('worker1', ..., args=(<1 MiB>,))",
            "no part of the argument in the packets on the network",
            "the argument in plain text",
        )


def test_results(rpc_groups: Groups) -> None:
    """The result of a call cannot be read on the network."""
    marker = secrets.token_bytes(32)
    if overhear(rpc_groups, return_payload, marker).has(marker):
        raise deviate(
            "rpc_sync('worker1', ...) that returns 1 MiB",
            "no part of the result in the packets on the network",
            "the result in plain text",
        )


def test_function_names(rpc_groups: Groups) -> None:
    """The names of called functions cannot be read on the network."""
    name = a_name_that_anybody_can_recognise.__name__
    if overhear(rpc_groups, send_payload, secrets.token_bytes(32)).has(name.encode()):
        raise deviate(
            f"rpc_sync('worker1', {name})",
            "no name of a function in the packets on the network",
            f"{name!r} in plain text",
        )
