"""Who is kept out, and so where a worker may listen.

Whoever can send a worker a message can run code in it. A secret and encryption keep others out; without
them a worker stays on the loopback interface, unless its user says that the network is trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend_zeromq.environment import ENCRYPTION, SECRET_FILE, TRUSTED_NETWORK
from rpc_backend_zeromq.secret import Secret

GIVE_A_SECRET = (
    "Make a secret with `rpc-backends secret --out FILE` and give that file to every worker "
    f"({SECRET_FILE}=FILE, or the option secret_file)"
)
_TRUST = (
    "where nobody but the workers is on the network, say so to every worker "
    f"({TRUSTED_NETWORK}=1, or the option trusted_network=True)"
)


@dataclass(frozen=True)
class Policy:
    """What a worker asks of those who talk to it.

    :ivar secret: the secret they must have, None for none.
    :ivar encryption: whether what they say is encrypted and authenticated.
    :ivar trusted_network: whether the user has said that nobody else is on the network.
    """

    secret: Secret | None = None
    encryption: bool = True
    trusted_network: bool = False

    @property
    def lack(self) -> str | None:
        """What keeps the worker on the loopback interface, None if nothing does."""
        if self.trusted_network:
            return None
        if self.secret is None:
            return "without a secret"
        return None if self.encryption else "without encryption"

    @property
    def remedy(self) -> str:
        """What to do to let the worker off the loopback interface."""
        if self.secret is None:
            return f"{GIVE_A_SECRET}; or, {_TRUST}."
        return f"Leave encryption on ({ENCRYPTION}=1, or no option encryption=False); or, {_TRUST}."
