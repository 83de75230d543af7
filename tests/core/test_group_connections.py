"""Whether the host of a TCP store has closed the connection is seen without a request."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from rpc_backends_core._group.connections import is_closed
from rpc_backends_core.spi import StoreAccess, StoreError
from support.command import wait_until


def host() -> Any:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def client(port: int) -> Any:
    store = dist.TCPStore("localhost", port, is_master=False, wait_for_workers=False)
    return dist.PrefixStore("group", store)


def test_a_connection_is_open_until_its_host_ends() -> None:
    server = host()
    store = client(server.port)
    store.set("key", "value")
    assert not is_closed(store)
    del server
    wait_until(lambda: is_closed(store))


def test_a_request_to_a_store_that_has_ended_writes_no_backtrace(
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = host()
    store = client(server.port)
    access = StoreAccess(store)
    access.ask(lambda store: store.set("key", "value"))
    del server
    wait_until(lambda: is_closed(store))
    with pytest.raises(StoreError, match="its host has closed the connection"):
        access.ask(lambda store: store.get("key"))
    assert capfd.readouterr().err == ""


def test_a_newer_connection_to_the_same_address_counts() -> None:
    server = host()
    first = client(server.port)
    assert not is_closed(first)
    del first  # this process closes the connection
    assert not is_closed(client(server.port))


def test_a_look_at_a_connection_opens_nothing_and_reads_nothing() -> None:
    server = host()
    store = client(server.port)
    descriptors = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert not is_closed(store)
    assert sorted(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    assert store.add("key", 1) == 1


def test_other_stores_are_never_closed(tmp_path: Path) -> None:
    assert not is_closed(dist.HashStore())
    assert not is_closed(dist.FileStore(str(tmp_path / "store")))


def test_a_default_timeout_of_sockets_changes_no_connection() -> None:
    server = host()
    store = client(server.port)
    mine, others = socket.socketpair()
    with mine, others:
        socket.setdefaulttimeout(0.5)
        try:
            assert not is_closed(store)
        finally:
            socket.setdefaulttimeout(None)
        blocking = [os.get_blocking(connection.fileno()) for connection in (mine, others)]
    assert blocking == [True, True]
    store.set("key", "value")
    assert store.get("key") == b"value"
