"""Fault injection for ``torch.distributed.rpc``, with any backend.

It is off until there are rules: from a file (``RPC_BACKENDS_FAULTS=rules.toml``) or from the program
(:func:`enable`, :func:`rule`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc_backends_faults.live import Worker, add, counts, enable, remove, rule
    from rpc_backends_faults.marks import mark
    from rpc_backends_faults.rules import NotWrappedError, RuleError
    from rpc_backends_faults.settings import disable

__all__ = [
    "NotWrappedError",
    "RuleError",
    "Worker",
    "add",
    "counts",
    "disable",
    "enable",
    "mark",
    "remove",
    "rule",
]
__version__ = "0.1.0"

_MODULES = {
    "NotWrappedError": "rules",
    "RuleError": "rules",
    "Worker": "live",
    "add": "live",
    "counts": "live",
    "disable": "settings",
    "enable": "live",
    "mark": "marks",
    "remove": "live",
    "rule": "live",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that a program without rules does not pay for the import."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
