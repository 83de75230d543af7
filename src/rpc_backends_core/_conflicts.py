"""Which discovered backends can be used, and the error for each that cannot."""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from rpc_backends_core._builtin_backends import is_tensorpipe_missing
from rpc_backends_core._errors import (
    BackendConflictError,
    BackendDeniedError,
    BackendLoadError,
    RpcBackendsError,
)

if TYPE_CHECKING:
    from rpc_backends_core._record import Record


def resolve_conflicts(records: Iterable[Record]) -> tuple[dict[str, Record], list[Record]]:
    """Split the discovered records into usable backends, by name, and unusable ones.

    Names that differ only in case are the same name: lookup by string ignores case.
    """
    claims: dict[str, list[Record]] = {}
    unusable: list[Record] = []
    for record in records:
        if _is_member_name(record.name):
            claims.setdefault(record.name.casefold(), []).append(record)
        else:
            error = RpcBackendsError(
                f"{record.origin} declares an RPC backend named {record.name!r}, which cannot be a "
                "member of BackendType: a name must be a Python identifier that has no leading "
                "underscore, is not a keyword, and is not mro, name or value. Its author must rename the "
                "entry point."
            )
            unusable.append(replace(record, state="invalid", error=error))
    plugins: dict[str, Record] = {}
    for claimants in claims.values():
        if len(claimants) == 1:
            plugins[claimants[0].name] = claimants[0]
            continue
        conflict = BackendConflictError(_why_conflict(claimants))
        for record in claimants:
            refused = replace(record, state="conflict", error=conflict)
            if record.name in plugins:
                unusable.append(refused)
            else:
                plugins[record.name] = refused
    return plugins, unusable


def shadowed(record: Record) -> Record:
    """Return ``record`` marked as hidden by another backend of the same name."""
    return record if record.error is not None else replace(record, state="shadowed")


def not_loaded(record: Record, cause: BaseException, *, fallback: bool) -> BackendLoadError:
    """Return the error for an unusable plugin; ``fallback``: torch has a backend of that name."""
    if isinstance(cause, RpcBackendsError):  # its text says what to do
        error = BackendLoadError(
            f"RPC backend {record.name!r} of {record.origin} cannot be used: {cause}"
        )
        error.__cause__ = cause
        return error
    own = f", or set RPC_BACKENDS_DENY={record.name} to use torch's own" if fallback else ""
    if isinstance(cause, ImportError) and (cause.name or "").startswith("rpc_backends_core"):
        remedy = (
            "It was written for another version of rpc-backends-core; upgrade both: "
            f"pip install --upgrade rpc-backends-core {record.distribution or ''}".rstrip()
        )
    elif isinstance(cause, ImportError) and "TensorPipe" in str(cause) and is_tensorpipe_missing():
        remedy = "This torch was built without TensorPipe. Use another backend"
    else:
        remedy = "Fix or reinstall the package"
        if record.distribution:
            remedy += f" (pip install --force-reinstall {record.distribution})"
    error = BackendLoadError(
        f"RPC backend {record.name!r} of {record.origin} cannot be used: "
        f"{record.value} failed with {type(cause).__name__}: {_text(cause).rstrip('.')}. "
        f"{remedy}, or uninstall it{own}."
    )
    error.__cause__ = cause
    return error


def denied(record: Record, denial: str) -> BackendDeniedError:
    """Return the error for a plugin that an environment variable forbids; ``denial`` names it."""
    return BackendDeniedError(
        f"RPC backend {record.name!r} is installed ({record.origin}) but may not be used: "
        f"{denial}. Change that variable to use it."
    )


def _is_member_name(name: str) -> bool:
    return (
        name.isidentifier()
        and not name.startswith("_")
        and not keyword.iskeyword(name)
        and name not in ("mro", "name", "value")  # attributes of every enum class
    )


def _why_conflict(claimants: list[Record]) -> str:
    who = " and ".join(f"{claimant.origin} ({claimant.value})" for claimant in claimants)
    packages = sorted({claimant.distribution for claimant in claimants if claimant.distribution})
    if len(packages) == 1:
        return (
            f"RPC backend {claimants[0].name!r} is declared more than once by one package: {who}. "
            f"Its author must remove all but one entry point; until then, pip uninstall {packages[0]}."
        )
    return (
        f"RPC backend {claimants[0].name!r} is claimed by more than one installed package: {who}. "
        f"Uninstall all but one of them: pip uninstall {' or '.join(packages) or 'PACKAGE'}."
    )


def _text(error: BaseException) -> str:
    """Return the message of an error, even if formatting it raises."""
    try:
        return str(error)
    except Exception:
        return "(formatting its message failed)"
