"""Starts without authentication: refused with RPC_BACKENDS_REQUIRE_AUTH; TENSORPIPE warns otherwise."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rpc_backends_agents.engine import secret, worker_certificates
from rpc_backends_core.spi import interfaces, is_loopback
from support import certificates, steps
from support.workers import WorkerContext, Workers

VARIABLE = "RPC_BACKENDS_REQUIRE_AUTH"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the rendezvous of a group."""
    return f"file://{tmp_path}/store"


def warnings_of_a_start(me: WorkerContext, url: str) -> list[str]:
    """Join a group of one with TENSORPIPE; return the warnings."""
    import logging

    said: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Kept(logging.WARNING)
    logging.getLogger("rpc_backends").addHandler(handler)
    steps.join(me, url, backend="TENSORPIPE")
    logging.getLogger("rpc_backends").removeHandler(handler)
    steps.leave(me)
    return said


@pytest.mark.parametrize(
    ("backend", "problem"),
    [
        ("TENSORPIPE", "TENSORPIPE cannot authenticate its peers"),
        ("ZEROMQ", "ZEROMQ would not authenticate its peers: there is no secret"),
        ("UCX", "UCX would not authenticate its peers: there is no secret"),
    ],
)
def test_a_backend_without_authentication_is_refused(backend: str, problem: str, url: str) -> None:
    with Workers(1, env={VARIABLE: "1"}) as workers:
        (failure,) = workers.errors(steps.join, url, backend=backend)
        assert failure.kinds[0] == "RefusedError"
        assert problem in failure.text


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_a_backend_with_a_secret_starts(backend: str, url: str) -> None:
    text = secret.generate()
    env = {VARIABLE: "1", f"RPC_BACKENDS_{backend}_SECRET": text}
    with Workers(2, env=env) as workers:
        workers.run(steps.join, url, backend=backend)
        workers.run(steps.leave)


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_a_backend_with_certificates_starts(tmp_path: Path, url: str, backend: str) -> None:
    folder = tmp_path / "certificates"
    worker_certificates.make(folder, ["worker0", "worker1"], 1)
    with Workers(2, env={VARIABLE: "1"}) as workers:
        workers.run(steps.join, url, backend=backend, **certificates.files(folder))
        workers.run(steps.leave)


def test_zeromq_without_encryption_is_refused(url: str) -> None:
    """Its authentication over TCP is that of the encryption."""
    env = {
        VARIABLE: "1",
        "RPC_BACKENDS_ZEROMQ_SECRET": secret.generate(),
        "RPC_BACKENDS_ZEROMQ_ENCRYPTION": "0",
    }
    with Workers(1, env=env) as workers:
        (failure,) = workers.errors(steps.join, url, backend="ZEROMQ")
        assert "encryption is off, and with it the authentication over TCP" in failure.text


@pytest.mark.parametrize("value", ["", "maybe"])
def test_another_value_is_refused(value: str, url: str) -> None:
    with Workers(1, env={VARIABLE: value}) as workers:
        (failure,) = workers.errors(steps.join, url, backend="ZEROMQ")
        assert f"{VARIABLE}={value!r} is neither true nor false" in failure.text


def test_tensorpipe_warns_once_if_other_hosts_can_reach_it(url: str) -> None:
    outside = [
        interface.name
        for interface in interfaces()
        if "." in interface.address and not is_loopback(interface.address)
    ]
    if not outside:
        pytest.skip(f"{socket.gethostname()} has no network interface but loopback")
    with Workers(1, env={"TP_SOCKET_IFNAME": outside[0]}) as workers:
        said = workers[0].call(warnings_of_a_start, url)
        assert len(said) == 1
        assert (
            "TENSORPIPE has none, so every process that can connect to this port can run code"
            in said[0]
        )
        assert VARIABLE in said[0]


def test_tensorpipe_on_loopback_does_not_warn(url: str) -> None:
    with Workers(1, env={"TP_SOCKET_IFNAME": "lo"}) as workers:
        assert workers[0].call(warnings_of_a_start, url) == []
