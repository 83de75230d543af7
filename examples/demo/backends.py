"""Which packages backends and faults come from: the one thing the demo asks of this project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from demo.plan import BACKENDS, FAULTS, PACKAGES, Faults


@dataclass(frozen=True)
class Origin:
    """A backend's name and the installed distribution that supplies it."""

    backend: str
    distribution: str
    version: str


@dataclass
class Choice:
    """What there is to train over.

    :ivar parts: each backend, and the faults that its messages are to meet.
    :ivar notes: what is left out, why, and what to install, a text each.
    """

    parts: list[tuple[Origin, Faults]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, origin: Origin) -> None:
        """Take a backend, with the faults planned for it as far as there is somebody to make them."""
        faults = FAULTS.get(origin.backend, Faults())
        if faults.by:
            version = _version_of(faults.by)
            if version is None:
                self.notes.append(
                    f"No faults on {origin.backend}: {faults.by} is not installed. To have them: "
                    f"pip install {faults.by}"
                )
                faults = Faults()
            else:
                faults = replace(faults, by=f"{faults.by} {version}")
        self.parts.append((origin, faults))


def choose(names: Sequence[str] = ()) -> Choice:
    """Return what there is of the backends called ``names``; without names, of the demo's own.

    :raises RpcBackendsError: one that was named, or each of the demo's own, is unknown or cannot be used.
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
                why = f"it is not installed. To have it: pip install {PACKAGES[name]}"
            choice.notes.append(f"{name} is left out: {why}")
    if last is not None and not choice.parts:
        raise last
    return choice


def origin_of(name: str) -> Origin:
    """Return where the backend called ``name`` comes from; case does not matter.

    :raises RpcBackendsError: nobody has a backend of that name, or it cannot be used.
    """
    from rpc_backends_core.spi.inspection import record

    found = record(name)
    if found.error is not None:
        raise found.error
    return Origin(found.name, found.distribution or found.source, found.version or "")


def _version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution with hooks, None if it is not there."""
    from rpc_backends_core.spi import inspection as discovery

    for found in discovery.declared(discovery.HOOKS_GROUP):
        if found.distribution == distribution:
            return found.version or ""
    return None
