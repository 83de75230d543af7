"""Which package a backend came from: the one thing the demo asks of this project."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """A backend's name and the installed distribution that supplies it."""

    backend: str
    distribution: str
    version: str


def origin_of(name: str) -> Origin:
    """Return where the backend called ``name`` comes from; case does not matter.

    :raises RpcBackendsError: nobody has a backend of that name, or it cannot be used.
    """
    from rpc_backends_core.functions import record

    found = record(name)
    if found.error is not None:
        raise found.error
    return Origin(found.name, found.distribution or found.source, found.version or "")
