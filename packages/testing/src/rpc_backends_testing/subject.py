"""The backend under test: its name, its options, and what it declares."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Subject:
    """A backend under test. Workers get it by pickle.

    :ivar name: its name in ``BackendType``.
    :ivar options: options that every test passes to its construct handler.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the backend declares.

        :raises RpcBackendsError: there is no such backend, or it cannot be loaded.
        """
        from rpc_backends_core.spi.inspection import default_registry

        return default_registry().backend(self.name).capabilities

    @functools.cached_property
    def excluded(self) -> Mapping[str, str]:
        """The requirements that the backend excludes: their ids, each with the author's reason."""
        from rpc_backends_core.spi.inspection import default_registry

        return default_registry().backend(self.name).excluded_requirements

    def __getstate__(self) -> dict[str, Any]:
        # Without the cached properties: another process computes its own.
        return {"name": self.name, "options": dict(self.options)}
