"""The transport in C++ meets the contract for transports, without Python and without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rpc_backend_zeromq._native import Transport, make_keys
from rpc_backends_testing import TransportContract

_SETTINGS = "NATIVE_SETTINGS"


def settings() -> dict[str, Any]:
    """Return the values of the native options. A child without torch gets them from the test."""
    if _SETTINGS in os.environ:
        values: dict[str, Any] = json.loads(os.environ[_SETTINGS])
        return values
    from rpc_backend_zeromq import ZeroMQRpcBackendOptions

    return ZeroMQRpcBackendOptions(bulk_connections=1).native()


class OverTcp:
    """The transport in C++, over TCP with encryption; its address is an endpoint and a key."""

    def __init__(self) -> None:
        self._public, secret = make_keys()
        self._native = Transport(
            public_key=self._public,
            secret_key=secret,
            handshake_timeout=20,
            **settings(),
        )

    def listen(self, worker_id: int, name: str) -> str:
        """Listen on the loopback interface."""
        (endpoint,) = self._native.bind(["tcp://127.0.0.1:*"])
        self._native.start(worker_id)
        return f"{endpoint} {self._public.decode()}"

    def learn(self, worker_id: int, name: str, address: str, rank: int) -> None:
        """Store a peer's endpoint and key."""
        endpoint, key = address.split(" ")
        self._native.learn(worker_id, endpoint, key.encode())

    def metrics(self) -> dict[str, str]:
        """Return no metrics besides those of the transport in C++."""
        return {}

    def close(self, linger: float) -> None:
        """Close the transport in C++; after the agent has closed it, this does nothing."""
        self._native.close(linger)

    def __rpc_transport__(self) -> Any:
        """Return the capsule."""
        return self._native.__rpc_transport__()


@pytest.mark.thorough
class TestOverTcp(TransportContract):
    """ZEROMQ over TCP; the conformance suite tests it over Unix sockets."""

    # ZEROMQ looks up unknown workers in Python code, which is not tested here.
    test_message_before_learn = None  # type: ignore[assignment]

    def make_transport(self, worker_id: int) -> OverTcp:
        """Return a new transport."""
        return OverTcp()


def test_a_transport_in_cpp_is_tested_without_torch() -> None:
    code = """
        import sys
        from test_native_contract import TestOverTcp as Tests
        from rpc_backends_testing.transports.limits import Limits
        from rpc_backends_testing.transports.workers import Workers
        transports = Workers(Tests().make_transport, Limits())
        Tests().test_one_message(transports)
        Tests().test_reply(transports)
        sys.exit("torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        cwd=Path(__file__).parent,
        env={**os.environ, _SETTINGS: json.dumps(settings())},
        check=False,
    )
    assert done.returncode == 0
