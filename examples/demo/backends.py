"""Finds the packages that provide the backends and faults: the demo's only use of this project's API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from demo.plan import BACKENDS, FAULTS, PACKAGES, Faults


@dataclass(frozen=True)
class Origin:
    """A backend's name and the installed distribution that provides it."""

    backend: str
    distribution: str
    version: str


@dataclass
class Choice:
    """The backends to train over.

    :ivar parts: each backend, with the faults to inject.
    :ivar notes: one text for each backend or fault that is skipped: why, and what to install.
    """

    parts: list[tuple[Origin, Faults]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, origin: Origin) -> None:
        """Add a backend with its planned faults; without faults if their package is not installed."""
        faults = FAULTS.get(origin.backend, Faults())
        if faults.by:
            version = _version_of(faults.by)
            if version is None:
                self.notes.append(
                    f"No faults on {origin.backend}: {faults.by} is not installed. To add them: "
                    f"pip install {faults.by}"
                )
                faults = Faults()
            else:
                faults = replace(faults, by=f"{faults.by} {version}")
        self.parts.append((origin, faults))


def choose(names: Sequence[str] = ()) -> Choice:
    """Return the backends to train over.

    :param names: the backends; if empty, the demo's default backends that are installed.
    :raises RpcBackendsError: a backend in ``names`` is unknown or cannot be used, or no default backend
        can be used.
    """
    from rpc_backends_core.spi import RpcBackendsError, UnknownBackendError

    choice = Choice()
    last: RpcBackendsError | None = None
    for name in names or BACKENDS:
        try:
            choice.add(origin_of(name))
        except RpcBackendsError as error:
            if names:
                raise
            last = error
            why = str(error)
            if isinstance(error, UnknownBackendError):
                why = f"it is not installed. To add it: pip install {PACKAGES[name]}"
            choice.notes.append(f"{name} is skipped: {why}")
    if last is not None and not choice.parts:
        raise last
    return choice


def origin_of(name: str) -> Origin:
    """Return which distribution provides a backend; the case of ``name`` does not matter.

    :raises RpcBackendsError: no backend has that name, or it cannot be used.
    """
    from rpc_backends_core.spi.inspection import record

    backend = record(name)
    if backend.error is not None:
        raise backend.error
    return Origin(backend.name, backend.distribution or backend.source, backend.version or "")


def _version_of(distribution: str) -> str | None:
    """Return the version of a distribution that provides hooks; None if it is not installed."""
    from rpc_backends_core.spi import inspection as discovery

    for package in discovery.declared(discovery.HOOKS_GROUP):
        if package.distribution == distribution:
            return package.version or ""
    return None
