"""What is known of one backend, as a value that callers may keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["plugin", "process", "torch"]
State = Literal[
    "found", "loaded", "registered", "failed", "conflict", "denied", "invalid", "shadowed"
]


@dataclass(frozen=True)
class Record:
    """One backend: where it comes from and what became of it.

    :ivar name: as declared.
    :ivar source: ``plugin`` (an installed package), ``process`` (``register_backend`` was called) or
        ``torch`` (torch's own).
    :ivar distribution: the package it is from; for ``process`` the module that registered it.
    :ivar version: the package's version, None where there is none.
    :ivar value: the entry point's value (``module:object``), None where there is none.
    :ivar state: ``found`` (nothing imported yet), ``loaded``, ``registered`` (in this process or by
        torch), ``failed``, ``conflict`` (several packages claim the name), ``denied`` (by an
        environment variable), ``invalid`` (the name is not an identifier) or ``shadowed`` (another
        backend of the same name goes first).
    :ivar error: why it cannot be used, None where it can.
    """

    name: str
    source: Source
    distribution: str | None
    version: str | None
    value: str | None
    state: State
    error: Exception | None = None

    @property
    def origin(self) -> str:
        """Where it comes from, in words: ``rpc-backend-zeromq 1.0``."""
        return " ".join(part for part in (self.distribution, self.version) if part) or self.source
