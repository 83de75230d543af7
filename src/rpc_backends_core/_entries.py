"""Entries: backends as the registry keeps them, and what becomes of those that were found.

Each refusal is worded here, once: what was asked, what was found, what to do.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rpc_backends_core._errors import (
    BackendConflictError,
    BackendDeniedError,
    BackendLoadError,
    RpcBackendsError,
)

if TYPE_CHECKING:
    from rpc_backends_core._backend import Backend
    from rpc_backends_core._backend_record import Record, Source, State
    from rpc_backends_core._discovery import Found


class Entry:
    """One backend as the registry keeps it. The mutable side of a :class:`~.backend_record.Record`."""

    __slots__ = (
        "backend",
        "distribution",
        "entry_point",
        "error",
        "name",
        "options_type",
        "source",
        "state",
        "value",
        "version",
    )

    def __init__(
        self,
        name: str,
        source: Source,
        state: State,
        *,
        distribution: str | None = None,
        version: str | None = None,
        value: str | None = None,
        entry_point: Any = None,
        backend: Backend | tuple[Any, Any] | None = None,
        error: Exception | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.state = state
        self.distribution = distribution
        self.version = version
        self.value = value
        self.entry_point = entry_point
        self.backend = backend
        self.error = error
        #: The class of its options, where it was declared or seen.
        self.options_type: type | None = getattr(backend, "options_type", None)

    @property
    def origin(self) -> str:
        """The package and its version, for messages."""
        return f"{self.distribution or 'an unknown package'} {self.version or ''}".strip()

    def handlers(self) -> tuple[Any, Any]:
        """Return the handlers of an entry that was registered or loaded, as they were given."""
        assert self.backend is not None
        return self.backend if isinstance(self.backend, tuple) else self.backend.value

    def same_package(self, other: Entry) -> bool:
        """Return whether both are the same entry point of the same version of one package."""
        mine = (self.distribution, self.version, self.value)
        return mine == (other.distribution, other.version, other.value)

    def record(self) -> Record:
        """Return what is known now, as a value."""
        from rpc_backends_core._backend_record import Record

        return Record(
            self.name,
            self.source,
            self.distribution,
            self.version,
            self.value,
            self.state,
            self.error,
        )


def settle(found: Iterable[Found]) -> tuple[dict[str, Entry], list[Entry]]:
    """Sort what was found into usable names and those that cannot be used.

    Names that differ in case alone are one name: a string is looked up without regard to case.
    """
    claims: dict[str, list[Found]] = {}
    unusable: list[Entry] = []
    for one in found:
        if _is_member_name(one.name):
            claims.setdefault(one.name.casefold(), []).append(one)
        else:
            error = RpcBackendsError(
                f"{one.origin} declares an RPC backend under the name {one.name!r}, which cannot be a "
                "member of BackendType: a name must be a Python identifier, without a leading "
                "underscore, no keyword, and not one of mro, name, value. Its author must rename the "
                "entry point."
            )
            unusable.append(_plugin(one, "invalid", error))
    plugins: dict[str, Entry] = {}
    for claimants in claims.values():
        if len(claimants) == 1:
            plugins[claimants[0].name] = _plugin(claimants[0], "found", None)
            continue
        error = BackendConflictError(_why_conflict(claimants))
        for one in claimants:
            entry = _plugin(one, "conflict", error)
            if one.name in plugins:
                unusable.append(entry)
            else:
                plugins[one.name] = entry
    return plugins, unusable


def _is_member_name(name: str) -> bool:
    return (
        name.isidentifier()
        and not name.startswith("_")
        and not keyword.iskeyword(name)
        and name not in ("mro", "name", "value")  # what an enum class has already
    )


def _plugin(found: Found, state: State, error: Exception | None) -> Entry:
    return Entry(
        found.name,
        "plugin",
        state,
        distribution=found.distribution,
        version=found.version,
        value=found.value,
        entry_point=found.entry_point,
        error=error,
    )


def shadowed(entry: Entry) -> Entry:
    """Return a copy of ``entry`` that says another one of its name goes first."""
    copy = Entry(
        entry.name,
        entry.source,
        "shadowed" if entry.error is None else entry.state,
        distribution=entry.distribution,
        version=entry.version,
        value=entry.value,
        entry_point=entry.entry_point,
        backend=entry.backend,
        error=entry.error,
    )
    copy.options_type = entry.options_type
    return copy


def _why_conflict(claimants: list[Found]) -> str:
    who = " and ".join(f"{one.origin} ({one.value})" for one in claimants)
    packages = sorted({one.distribution for one in claimants if one.distribution})
    if len(packages) == 1:
        return (
            f"RPC backend {claimants[0].name!r} is declared more than once by one package: {who}. "
            f"Its author must take all but one entry point out; until then, pip uninstall {packages[0]}."
        )
    return (
        f"RPC backend {claimants[0].name!r} is claimed by more than one installed package: {who}. "
        f"Uninstall all but one of them: pip uninstall {' or '.join(packages) or 'PACKAGE'}."
    )


def not_loaded(entry: Entry, cause: BaseException, *, fallback: bool) -> BackendLoadError:
    """Return the error for a plugin that cannot be used; ``fallback``: torch has one of its own."""
    own = f", or set RPC_BACKENDS_DENY={entry.name} to use torch's own" if fallback else ""
    reinstall = (
        f" (pip install --force-reinstall {entry.distribution})" if entry.distribution else ""
    )
    error = BackendLoadError(
        f"RPC backend {entry.name!r} of {entry.origin} cannot be used: "
        f"{entry.value} failed with {type(cause).__name__}: {_text(cause).rstrip('.')}. "
        f"Mend or reinstall the package{reinstall}, or uninstall it{own}."
    )
    error.__cause__ = cause
    return error


def denied(entry: Entry, denial: str) -> BackendDeniedError:
    """Return the error for a plugin that an environment variable forbids; ``denial`` says which."""
    return BackendDeniedError(
        f"RPC backend {entry.name!r} is installed ({entry.origin}) and may not "
        f"be used: {denial}. Change that variable to use it."
    )


def _text(error: BaseException) -> str:
    """Return what an error says, also where saying it fails."""
    try:
        return str(error)
    except Exception:
        return "(its text cannot be made)"
