"""The registry of this process, made when somebody first asks for it.

A module of its own because it is imported at every ``import torch``, and the registry is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpc_backends_core._entries import Entry
    from rpc_backends_core._registry import Registry


def default_registry() -> Registry:
    """Return the registry of this process."""
    if not _default:
        from rpc_backends_core._registry import Registry

        registry = Registry()
        registry.on_outcome = _tell_hooks
        for prepare in _preparations:
            prepare(registry)
        if not _default:  # another thread may have been faster
            _default.append(registry)
    return _default[0]


def prepare(preparation: Callable[[Registry], None]) -> None:
    """Run ``preparation`` on the registry before anybody asks it: now, or when it is made."""
    _preparations.append(preparation)
    if _default:
        preparation(_default[0])


def _tell_hooks(entry: Entry) -> None:
    from rpc_backends_core import _hooks as hooks  # imports pluggy, and so not before it is needed

    hooks.tell_outcome(entry)


_default: list[Registry] = []
_preparations: list[Callable[[Registry], None]] = []
