"""Searches for faults that break a program: runs it under generated faults, and shrinks what fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc_backends_faults.explore.again import problems
    from rpc_backends_faults.explore.runs import Run

__all__ = ["Run", "problems"]

_MODULES = {"Run": "runs", "problems": "again"}


def __getattr__(name: str) -> Any:
    """Import ``name`` from the module that defines it (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
