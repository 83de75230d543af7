"""The environment variables ``RPC_BACKENDS_ZEROMQ_...``: parsed strictly, read when they are needed."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from rpc_backends_core.spi import SettingError, nearest

PREFIX = "RPC_BACKENDS_ZEROMQ_"
SECRET = f"{PREFIX}SECRET"
SECRET_FILE = f"{PREFIX}SECRET_FILE"
ENCRYPTION = f"{PREFIX}ENCRYPTION"
TRUSTED_NETWORK = f"{PREFIX}TRUSTED_NETWORK"
ADDRESS = f"{PREFIX}ADDRESS"
INTERFACE = f"{PREFIX}INTERFACE"
PORTS = f"{PREFIX}PORTS"
UNIX_SOCKETS = f"{PREFIX}UNIX_SOCKETS"

#: Every variable that ZEROMQ reads, with its meaning.
VARIABLES = {
    SECRET: "the secret that the workers share",
    SECRET_FILE: "the file that holds it",
    ENCRYPTION: "0 turns encryption off, 1 encrypts within a host too (default: between hosts)",
    TRUSTED_NETWORK: "1 says that nobody but the workers is on the network (default: 0)",
    ADDRESS: "the address to listen on (default: found by the route to the rendezvous host)",
    INTERFACE: "the network interface to listen on",
    PORTS: "the ports to listen on, 5000-5100 say (default: any)",
    UNIX_SOCKETS: "0 for none between workers of one host, 1 to insist (default: where possible)",
}

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})

logger = logging.getLogger("rpc_backends.zeromq")


def text(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return what a variable says, None where it is not set or empty."""
    return environ.get(name, "").strip() or None


def boolean(name: str, environ: Mapping[str, str] = os.environ) -> bool | None:
    """Return a yes or a no, None where the variable is not set.

    :raises SettingError: it is neither.
    """
    value = text(name, environ)
    if value is None:
        return None
    if value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise SettingError(f"{name}={value!r} is neither a yes nor a no. Set it to 1 or 0.")


def unknown(environ: Mapping[str, str] = os.environ) -> list[tuple[str, str | None]]:
    """Return each variable of our prefix that we do not read, with the nearest one that we do."""
    found = []
    endings = [name.removeprefix(PREFIX) for name in VARIABLES]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in VARIABLES:
            # All begin alike, which makes none of them nearer than the others.
            close = nearest(name.removeprefix(PREFIX), endings)
            found.append((name, None if close is None else PREFIX + close))
    return found


def warn_of_unknown(environ: Mapping[str, str] = os.environ) -> None:
    """Write a line to the log for each variable that somebody set for us and we do not read."""
    for name, close in unknown(environ):
        hint = f" Did you mean {close}?" if close else f" It reads {', '.join(VARIABLES)}."
        logger.warning("ZEROMQ does not read the environment variable %s.%s", name, hint)
