"""What there is to reach: memory that is copied, and the same bytes over a bare socket."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from _measure import Figure

LARGE, HUGE = 1 << 20, 64 << 20

#: Takes messages of a size, and says for each whether it wants them back; a word otherwise.
SERVER = """
import socket, sys
family, address = socket.AF_UNIX, sys.argv[1]
if address == "tcp":
    family, address = socket.AF_INET, ("127.0.0.1", 0)
server = socket.socket(family)
server.bind(address)
server.listen()
print(server.getsockname()[1], flush=True)
channel, _ = server.accept()
memory = bytearray(64 << 20)
while head := channel.recv(9, socket.MSG_WAITALL):
    whole = memoryview(memory)[:int.from_bytes(head[:8], "big")]
    left = whole
    while left:
        left = left[channel.recv_into(left):]
    channel.sendall(whole if head[8] else b"!")
"""


class Bare:
    """The figures, one more of each a :meth:`measure`."""

    def __init__(self, channels: dict[str, socket.socket]) -> None:
        self._channels = channels
        self._memory = bytearray(HUGE)
        self._from, self._to = torch.ones(HUGE // 4), torch.ones(HUGE // 4)
        self.figures = {
            name: Figure(name)
            for name in (
                "memory copied, 64 MiB",
                *(f"bare {kind}, 1 MiB there and back" for kind in channels),
                *(f"bare {kind}, 64 MiB one way" for kind in channels),
            )
        }

    def measure(self) -> None:
        """Measure everything once."""
        self._time("memory copied, 64 MiB", lambda: self._to.copy_(self._from))
        for kind, channel in self._channels.items():
            there_and_back = partial(self._send, channel, LARGE, back=True)
            self._time(f"bare {kind}, 1 MiB there and back", there_and_back)
            one_way = partial(self._send, channel, HUGE, back=False)
            self._time(f"bare {kind}, 64 MiB one way", one_way)

    def _time(self, name: str, what: Callable[[], object]) -> None:
        what()
        begin = time.perf_counter()
        what()
        self.figures[name].values.append(time.perf_counter() - begin)

    def _send(self, channel: socket.socket, size: int, *, back: bool) -> None:
        whole = memoryview(self._memory)[:size]
        channel.sendall(size.to_bytes(8, "big") + bytes([back]))
        channel.sendall(whole)
        left = whole if back else whole[:1]
        while left:
            left = left[channel.recv_into(left) :]


@contextlib.contextmanager
def bare() -> Iterator[Bare]:
    """Start the processes at the other ends, which end with the block."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rpc-bench-"))
        unix = str(Path(folder, "socket"))
        tcp, port = _serve(stack, "tcp")
        tcp.connect(("127.0.0.1", int(port)))
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        local, _ = _serve(stack, unix)
        local.connect(unix)
        yield Bare({"Unix socket": local, "TCP socket": tcp})


def _serve(stack: contextlib.ExitStack, address: str) -> tuple[socket.socket, str]:
    server = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", SERVER, address], stdout=subprocess.PIPE, text=True
        )
    )
    stack.callback(server.kill)
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    family = socket.AF_INET if address == "tcp" else socket.AF_UNIX
    return stack.enter_context(socket.socket(family)), port
