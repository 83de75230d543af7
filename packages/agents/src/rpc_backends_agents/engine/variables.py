"""The environment variables ``RPC_BACKENDS_NAME_...`` of a backend: read on use and parsed strictly."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

from rpc_backends_core.spi import nearest


def prefix(backend: str) -> str:
    """Return the start of the names of a backend's variables."""
    return f"RPC_BACKENDS_{backend}_"


def logger_of(backend: str) -> logging.Logger:
    """Return the logger of a backend."""
    return logging.getLogger(f"rpc_backends.{backend.lower()}")


def text(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of a variable; None if it is unset or empty."""
    return environ.get(name, "").strip() or None


def unknown(
    backend: str, known: Iterable[str], environ: Mapping[str, str] = os.environ
) -> list[tuple[str, str | None]]:
    """Return each variable with the backend's prefix that is not ``known``, and the closest known one."""
    names_and_closest = []
    start = prefix(backend)
    names = set(known)
    endings = [name.removeprefix(start) for name in names]
    for name in sorted(environ):
        if name.startswith(start) and name not in names:
            # Compare without the prefix: it is common to all names and would make them all look close.
            close = nearest(name.removeprefix(start), endings)
            names_and_closest.append((name, None if close is None else start + close))
    return names_and_closest


def warn_of_unknown(
    backend: str, known: Iterable[str], environ: Mapping[str, str] = os.environ
) -> None:
    """Log a warning for each variable with the backend's prefix that is not ``known``."""
    names = list(known)
    for name, close in unknown(backend, names, environ):
        uses = ", ".join(names) or "none"
        hint = f" Did you mean {close}?" if close else f" It uses {uses}."
        logger_of(backend).warning(
            "%s does not use the environment variable %s.%s", backend, name, hint
        )
