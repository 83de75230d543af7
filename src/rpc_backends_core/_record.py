"""Immutable records of what is installed or registered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rpc_backends_core._backend import Backend

Source = Literal["plugin", "process", "torch"]
State = Literal[
    "found",
    "loaded",
    "registered",
    "failed",
    "conflict",
    "denied",
    "invalid",
    "shadowed",
    "unavailable",
]


@dataclass(frozen=True)
class Record:
    """A backend, a hook package or a subcommand: its origin and state.

    A record never changes; the registry replaces it when the state changes.

    :ivar name: as declared.
    :ivar source: ``plugin`` (an installed package), ``process`` (``register_backend`` was called) or
        ``torch`` (torch's own).
    :ivar distribution: the package that declares it; for ``process``, the module that registered it.
    :ivar version: the package's version, or None.
    :ivar value: the entry point's value (``module:object``), or None.
    :ivar state: ``found`` (nothing imported yet), ``loaded``, ``registered`` (in this process or by
        torch), ``failed``, ``conflict`` (several packages claim the name), ``denied`` (by an
        environment variable), ``invalid`` (the name is not an identifier), ``shadowed`` (another
        backend of the same name takes precedence) or ``unavailable`` (torch was built without what it
        needs).
    :ivar error: why it cannot be used; None if it can.
    :ivar entry_point: the entry point that loads it; None if there is nothing to load.
    :ivar backend: the loaded or registered backend; None before that.
    :ivar options_type: the class of its options, if declared or seen.
    """

    name: str
    source: Source
    distribution: str | None = None
    version: str | None = None
    value: str | None = None
    state: State = "found"
    error: BaseException | None = None
    entry_point: Any = field(default=None, repr=False, compare=False)
    backend: Backend | None = field(default=None, repr=False, compare=False)
    options_type: type | None = field(default=None, repr=False, compare=False)

    @property
    def origin(self) -> str:
        """The package and its version, for error messages: ``rpc-backend-zeromq 1.0``."""
        if self.source == "plugin":
            return f"{self.distribution or 'an unknown package'} {self.version or ''}".strip()
        return " ".join(part for part in (self.distribution, self.version) if part) or self.source

    def is_same_package(self, other: Record) -> bool:
        """Return whether both are the same entry point of the same version of one package."""
        mine = (self.distribution, self.version, self.value)
        return mine == (other.distribution, other.version, other.value)


@dataclass(frozen=True)
class ResolvedBackend:
    """The backend that a call refers to, loaded.

    :ivar record: its record.
    :ivar backend: its handlers and declarations.
    :ivar hooks: pluggy's hook callers, through which its handlers are called.
    :ivar options: its options; None until they are constructed.
    """

    record: Record
    backend: Backend
    hooks: Any = field(repr=False, compare=False)
    options: Any = None

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.record.name
