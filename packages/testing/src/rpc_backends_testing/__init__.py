"""The conformance suite for RPC backends, and tools for a backend's own tests.

Names are imported when they are used, because pytest loads this package's plugin in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpc_backends_processes import WorkerContext as WorkerContext
    from rpc_backends_processes import Workers as Workers
    from rpc_backends_testing.checks import expect as expect
    from rpc_backends_testing.marks import in_group as in_group
    from rpc_backends_testing.marks import requirement as requirement
    from rpc_backends_testing.subject import Subject as Subject
    from rpc_backends_testing.suite import SUITE_VERSION as SUITE_VERSION
    from rpc_backends_testing.suite import conformance as conformance
    from rpc_backends_testing.transports.contract import TransportContract as TransportContract

_HOMES = {
    "conformance": "rpc_backends_testing.suite",
    "SUITE_VERSION": "rpc_backends_testing.suite",
    "expect": "rpc_backends_testing.checks",
    "in_group": "rpc_backends_testing.marks",
    "requirement": "rpc_backends_testing.marks",
    "WorkerContext": "rpc_backends_processes",
    "Subject": "rpc_backends_testing.subject",
    "TransportContract": "rpc_backends_testing.transports.contract",
    "Workers": "rpc_backends_processes",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Import the module that defines ``name`` and return the object (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
