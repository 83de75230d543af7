"""The conformance suite for RPC backends, and what tests of a backend are made with.

Nothing is imported before it is used: pytest loads this package, through its plugin, in every run of an
environment that has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpc_backends_core.testing.checks import expect as expect
    from rpc_backends_core.testing.marks import in_group as in_group
    from rpc_backends_core.testing.marks import requirement as requirement
    from rpc_backends_core.testing.processes import Me as Me
    from rpc_backends_core.testing.processes import Workers as Workers
    from rpc_backends_core.testing.subject import Subject as Subject
    from rpc_backends_core.testing.suite import SUITE_VERSION as SUITE_VERSION
    from rpc_backends_core.testing.suite import conformance as conformance

_HOMES = {
    "conformance": "suite",
    "SUITE_VERSION": "suite",
    "expect": "checks",
    "in_group": "marks",
    "requirement": "marks",
    "Me": "processes",
    "Subject": "subject",
    "Workers": "processes",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Import the module that holds ``name`` and hand the object over (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)
