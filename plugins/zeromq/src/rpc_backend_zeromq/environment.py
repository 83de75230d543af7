"""The environment variables ``RPC_BACKENDS_ZEROMQ_...``: read on use and parsed strictly."""

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
    SECRET_FILE: "the file that holds the secret",
    ENCRYPTION: "0 turns encryption off, 1 also encrypts within a host (default: between hosts)",
    TRUSTED_NETWORK: "1 declares that only the workers can reach the network (default: 0)",
    ADDRESS: "the address to listen on (default: the one on the route to the rendezvous host)",
    INTERFACE: "the network interface to listen on",
    PORTS: "the ports to listen on, for example 5000-5100 (default: any)",
    UNIX_SOCKETS: "0 turns Unix sockets within a host off, 1 requires them (default: where possible)",
}

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})

logger = logging.getLogger("rpc_backends.zeromq")


def text(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of a variable; None if it is unset or empty."""
    return environ.get(name, "").strip() or None


def boolean(name: str, environ: Mapping[str, str] = os.environ) -> bool | None:
    """Return the value of a boolean variable; None if it is unset or empty.

    :raises SettingError: the value is neither true nor false.
    """
    value = text(name, environ)
    if value is None:
        return None
    if value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise SettingError(f"{name}={value!r} is neither true nor false. Set it to 1 or 0.")


def unknown(environ: Mapping[str, str] = os.environ) -> list[tuple[str, str | None]]:
    """Return each variable with our prefix that ZEROMQ does not use, and the closest one that it uses."""
    found = []
    endings = [name.removeprefix(PREFIX) for name in VARIABLES]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in VARIABLES:
            # Compare without the prefix: it is common to all names and would make them all look close.
            close = nearest(name.removeprefix(PREFIX), endings)
            found.append((name, None if close is None else PREFIX + close))
    return found


def warn_of_unknown(environ: Mapping[str, str] = os.environ) -> None:
    """Log a warning for each variable with our prefix that ZEROMQ does not use."""
    for name, close in unknown(environ):
        hint = f" Did you mean {close}?" if close else f" It uses {', '.join(VARIABLES)}."
        logger.warning("ZEROMQ does not use the environment variable %s.%s", name, hint)
