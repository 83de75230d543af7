"""Backends that an installed package registers with torch's ``register_backend``, beside its entry point.

A package written for torch registers its backend when it is imported. If the package also has an entry
point for that backend, both mean the same backend. The registration is then no error: its handlers are
kept for the entry point.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc_backends_core._record import Record


class Adopted:
    """The handlers that installed packages have registered, by the name of their entry point."""

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}
        self._loading = _Loading()

    @contextmanager
    def loading(self, record: Record) -> Iterator[None]:
        """Mark this thread as loading the entry point of ``record``."""
        outer, self._loading.record = self._loading.record, record
        try:
            yield
        finally:
            self._loading.record = outer

    def offer(self, plugin: Record, handlers: Any, owner: str) -> bool:
        """Keep a registration for an entry point, if it comes from the entry point's own package.

        :param owner: the module that registers.
        :returns: whether it was kept. After the package is loaded, a second registration is not kept.
        """
        loading = self._loading.record
        being_loaded = loading is not None and _same_distribution(loading, plugin)
        own = plugin.value is not None and _package(plugin.value) == _package(owner)
        if not being_loaded and (not own or plugin.name in self._handlers):
            return False
        self._handlers[plugin.name] = handlers
        return True

    def get(self, name: str) -> Any:
        """Return the handlers registered for the entry point ``name``; None if there are none."""
        return self._handlers.get(name)


class _Loading(threading.local):
    """The entry point that this thread is loading."""

    record: Record | None = None


def _same_distribution(record: Record, other: Record) -> bool:
    return (record.distribution, record.version) == (other.distribution, other.version)


def _package(path: str) -> str:
    return path.partition(":")[0].partition(".")[0]
