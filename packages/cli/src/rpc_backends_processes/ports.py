"""Free ports for programs that start later."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

#: Ports to try before the kernel chooses.
_ATTEMPTS = 100


def free_port() -> int:
    """Return a TCP port of the loopback interface on which nothing listens.

    If possible, it is a port that the kernel never chooses. The kernel might give another one to any
    socket before the program listens.
    """
    kernels = _kernels_ports()
    others = [port for port in range(10_000, 65_536) if port not in kernels]
    chosen = random.SystemRandom().sample(others, min(_ATTEMPTS, len(others)))
    for port in (*chosen, 0):
        with socket.socket() as trial, contextlib.suppress(OSError):  # taken: try another one
            trial.bind(("127.0.0.1", port))
            return int(trial.getsockname()[1])
    raise OSError("no port of 127.0.0.1 is free")


def _kernels_ports() -> range:
    """Return the ports from which the kernel chooses."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:  # a sandbox without it
        return range(32_768, 61_000)  # Linux's default
    return range(int(first), int(last) + 1)
