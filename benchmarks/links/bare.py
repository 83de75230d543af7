"""The side `socket`: bare TCP connections, the limit of this machine."""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import threading
import time
from functools import partial
from pathlib import Path

from timing import HOSTS, LIMIT_S, MIB, beside, times


def work(rank: int, address: str, what: str, out: str) -> None:
    """Measure or serve the side `socket`: worker 1 sends what it gets back, on each connection."""
    port, no_delay = 29612, (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sizes = [size or 64 for _, size, _ in HOSTS] if what == "hosts" else [64, 64 * MIB]
    if rank == 0:
        with socket.create_server((address, port)) as listener:
            channels = [listener.accept()[0] for _ in sizes]
        for channel in channels:
            channel.setsockopt(*no_delay)
        messages = [bytearray(size) for size in sizes]
        values = {}
        if what == "hosts":
            for (row, _, count), channel, message in zip(HOSTS, channels, messages, strict=True):
                taken = times(partial(_echo, channel, message), count + 3, LIMIT_S)[3:]
                values[row] = {"median": statistics.median(taken)}
        else:
            values = beside(
                {"same peer": partial(_echo, channels[0], messages[0])},
                partial(_echo, channels[1], messages[1]),
            )
        for channel in channels:
            channel.close()
        Path(out).write_text(json.dumps(values))
    elif rank == 1:
        threads = []
        for size in sizes:
            channel = _connect((address, port))
            channel.setsockopt(*no_delay)
            threads.append(threading.Thread(target=_serve, args=(channel, bytearray(size))))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _connect(to: tuple[str, int]) -> socket.socket:
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(to)
        time.sleep(0.05)


def _echo(channel: socket.socket, message: bytearray) -> None:
    channel.sendall(message)
    if not _fill(channel, message):
        raise ConnectionError("the other side has closed the connection")


def _serve(channel: socket.socket, message: bytearray) -> None:
    while _fill(channel, message):
        channel.sendall(message)


def _fill(channel: socket.socket, message: bytearray) -> bool:
    """Receive a whole message; return whether the other side has sent one."""
    rest = memoryview(message)
    while rest:
        size = channel.recv_into(rest)
        if size == 0:
            return False
        rest = rest[size:]
    return True
