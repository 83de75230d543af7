"""The security policy of a worker, which decides where it may listen.

Anyone who can send a message to a worker can run code in it. A secret and encryption keep others out.
Without them a worker listens on the loopback interface only, unless its user trusts the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
from rpc_backends_agents.engine.certificates import Files
from rpc_backends_agents.engine.secret import Secret

GIVE_A_SECRET = (
    "Make a secret with `rpc-backends secret --out FILE` and give that file to every worker "
    f"({ZeroMQRpcBackendOptions.secret_file.variable}=FILE, or the option secret_file)"
)
_TRUST = (
    "if only the workers can reach this network, tell every worker so "
    f"({ZeroMQRpcBackendOptions.trusted_network.variable}=1, or the option trusted_network=True)"
)


@dataclass(frozen=True)
class Policy:
    """What a worker requires of processes that connect to it.

    :ivar secret: the secret that they must have; None to require none.
    :ivar certificates: the files of this worker's certificate; None if workers have none.
    :ivar encryption: whether connections are encrypted and authenticated.
    :ivar trusted_network: whether the user has declared that only workers can reach the network.
    """

    secret: Secret | None = None
    certificates: Files | None = None
    encryption: bool = True
    trusted_network: bool = False

    @property
    def lack(self) -> str | None:
        """Why the worker must stay on the loopback interface, in words; None if it need not."""
        if self.trusted_network or self.certificates is not None:
            return None
        if self.secret is None:
            return "without a secret"
        return None if self.encryption else "without encryption"

    @property
    def unproved(self) -> str | None:
        """Why peers do not prove who they are, and what to do; None if they do."""
        if self.certificates is not None:
            return None
        if self.secret is None:
            return f"there is no secret. {GIVE_A_SECRET}."
        if not self.encryption:
            variable = ZeroMQRpcBackendOptions.encryption.variable
            return (
                "encryption is off, and with it the authentication over TCP. Leave it on "
                f"({variable}=1, without the option encryption=False)."
            )
        return None

    @property
    def remedy(self) -> str:
        """What to do so that the worker may listen on other interfaces."""
        if self.secret is None:
            return f"{GIVE_A_SECRET}; or, {_TRUST}."
        return (
            f"Leave encryption on ({ZeroMQRpcBackendOptions.encryption.variable}=1, without the option "
            f"encryption=False); or, {_TRUST}."
        )
