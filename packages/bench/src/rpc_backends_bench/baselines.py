"""Baselines of this machine without RPC: a memory copy, and a bare socket between two processes.

They are measured in the same rounds as the backends. Both sides of the socket receive into memory that
is already allocated, so the time is that of the kernel's copies and of waking the other process.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from array import array
from typing import Any

from rpc_backends_processes import WorkerContext

#: Size of the message, in bytes, that is compared with a no-op.
SMALL = 64
_HEADER = 9
_ANSWER = b"."


def serve(me: WorkerContext) -> int:
    """Start a thread that answers one client on the loopback interface; return its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(listener,), daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def connect(me: WorkerContext, port: int) -> None:
    """Connect to the server on ``port``."""
    channel = socket.create_connection(("127.0.0.1", port))
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    me.memory["channel"] = channel


def block(
    me: WorkerContext, baseline: str, kind: str, length: int, calls: int, seconds: float
) -> array[float]:
    """Return the times, in seconds, of moving ``length`` bytes.

    :param baseline: ``memcpy`` or ``socket``.
    :param kind: ``oneway``, or ``echo`` for there and back.
    """
    move = _memcpy if baseline == "memcpy" else _over_socket
    memory = _memory(me, length)
    move(me, memory, kind)
    end = time.perf_counter() + seconds
    times = array("d")
    for _ in range(calls):
        begin = time.perf_counter()
        move(me, memory, kind)
        after = time.perf_counter()
        times.append(after - begin)
        if after > end:
            break
    return times


def _memory(me: WorkerContext, length: int) -> tuple[Any, Any]:
    import torch

    if me.memory.get("length") != length:
        here = torch.ones(length, dtype=torch.uint8)
        me.memory.update(length=length, here=here, there=torch.ones_like(here))
    return me.memory["here"], me.memory["there"]


def _memcpy(me: WorkerContext, memory: tuple[Any, Any], kind: str) -> None:
    here, there = memory
    there.copy_(here)
    if kind == "echo":
        here.copy_(there)


def _over_socket(me: WorkerContext, memory: tuple[Any, Any], kind: str) -> None:
    channel: socket.socket = me.memory["channel"]
    here, there = (memoryview(tensor.numpy()) for tensor in memory)
    header = len(here).to_bytes(8, "big") + (b"e" if kind == "echo" else b"o")
    if len(here) < 1 << 12:
        channel.sendall(header + here)
    else:
        channel.sendall(header)
        channel.sendall(here)
    _receive(channel, there if kind == "echo" else memoryview(bytearray(len(_ANSWER))))


def _serve(listener: socket.socket) -> None:
    channel, _ = listener.accept()
    listener.close()
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = bytearray()
    with channel, contextlib.suppress(ConnectionError):
        while True:
            header = channel.recv(_HEADER, socket.MSG_WAITALL)
            if len(header) < _HEADER:
                return
            length = int.from_bytes(header[:8], "big")
            if len(memory) != length:
                memory = bytearray(length)
            _receive(channel, memoryview(memory))
            channel.sendall(memory if header.endswith(b"e") else _ANSWER)


def _receive(channel: socket.socket, into: memoryview) -> None:
    while into:
        count = channel.recv_into(into)
        if not count:
            raise ConnectionError("the other process has closed the bare socket")
        into = into[count:]
