"""The environment variables ``RPC_BACKENDS_UCX_...``."""

from __future__ import annotations

from rpc_backends_agents.common import secret, variables

#: The name of the backend.
BACKEND = "UCX"

PREFIX = variables.prefix(BACKEND)
SECRET = secret.variable(BACKEND)
SECRET_FILE = secret.file_variable(BACKEND)
TRUSTED_NETWORK = f"{PREFIX}TRUSTED_NETWORK"
TRANSPORTS = f"{PREFIX}TRANSPORTS"
NET_DEVICES = f"{PREFIX}NET_DEVICES"
POLL_TIME = f"{PREFIX}POLL_TIME"

#: Every variable that the backend reads, with its meaning.
VARIABLES = {
    SECRET: "the secret that the workers share",
    SECRET_FILE: "the file that holds the secret",
    TRUSTED_NETWORK: "1 declares that only the workers can reach the network (default: 0)",
    TRANSPORTS: "the UCX transports to use, for example tcp or posix,cma,tcp",
    NET_DEVICES: "the network devices to use, for example eth0 or mlx5_0:1 (default: all)",
    POLL_TIME: "seconds to poll after a message before sleeping (default: 0.0001)",
}
