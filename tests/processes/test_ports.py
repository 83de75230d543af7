"""Ports for programs that start later."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rpc_backends_processes import free_port, ports


def test_a_free_port_is_none_that_the_kernel_gives_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert ports._kernels_ports() == range(first, last + 1)
    if first < 20_000:  # this host leaves too few others
        first, last = 32_768, 60_999
        monkeypatch.setattr(ports, "_kernels_ports", lambda: range(first, last + 1))
    chosen = [free_port() for _ in range(20)]

    assert [port for port in chosen if first <= port <= last] == []
    for port in chosen:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_is_free_although_the_kernel_uses_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_kernels_ports", lambda: range(1024, 65536))

    socket.create_server(("127.0.0.1", free_port())).close()
