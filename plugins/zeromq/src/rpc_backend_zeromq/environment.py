"""The environment variables ``RPC_BACKENDS_ZEROMQ_...``: read on use and parsed strictly."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rpc_backends_agents.common import secret, variables
from rpc_backends_agents.common.variables import boolean, text

__all__ = ["VARIABLES", "boolean", "text", "unknown", "warn_of_unknown"]

#: The name of the backend.
BACKEND = "ZEROMQ"

PREFIX = variables.prefix(BACKEND)
SECRET = secret.variable(BACKEND)
SECRET_FILE = secret.file_variable(BACKEND)
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


def unknown(environ: Mapping[str, str] = os.environ) -> list[tuple[str, str | None]]:
    """Return each variable with our prefix that ZEROMQ does not use, and the closest one that it uses."""
    return variables.unknown(BACKEND, VARIABLES, environ)


def warn_of_unknown(environ: Mapping[str, str] = os.environ) -> None:
    """Log a warning for each variable with our prefix that ZEROMQ does not use."""
    variables.warn_of_unknown(BACKEND, VARIABLES, environ)
