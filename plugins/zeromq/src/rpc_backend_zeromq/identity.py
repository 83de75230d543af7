"""A worker's identity: its session keys, and the proof that they belong to a worker of this group.

Each worker makes a key pair when it starts. It writes the public key to the store, together with its
name, its addresses, its group and a proof. Only holders of the group's secret can make or check a proof.
"""

from __future__ import annotations

from rpc_backend_zeromq._native import make_keys
from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
from rpc_backend_zeromq.publication import Publication
from rpc_backends_agents.engine import sealed
from rpc_backends_agents.engine.errors import PublicationError
from rpc_backends_agents.engine.secret import Secret

_UNIX_PURPOSE = "unix"


def session_keys(*, fips: bool = False) -> tuple[bytes, bytes]:
    """Make the keys of one session: the public one as 40 characters (Z85), the secret one in DER.

    :param fips: whether to make keys of ECDSA (P-256), with OpenSSL's FIPS provider, in place of keys of
        Ed25519.
    :raises TransportError: OpenSSL cannot make a key, or has no FIPS provider.
    """
    public, secret = make_keys(fips=fips)
    return public, SecretKey(secret)


class SecretKey(bytes):
    """A key that no error and no log shows, although they show the arguments of a call."""

    def __repr__(self) -> str:
        return f"<a secret key of {len(self)} bytes>"


def unix_proofs(
    mine: Publication, peer: Publication, secret: Secret | None
) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the proofs that two workers exchange on a Unix socket, 32 bytes each.

    A proof is sent in plain text, because only this user can read the socket. Each proof is valid for
    one pair of sessions and one direction.

    :returns: what this worker sends when it connects, what the peer sends when it connects, what this
        worker answers, and what the peer answers.
    """

    def proof(what: str, of: Publication, to: Publication) -> bytes:
        return of.proof(_UNIX_PURPOSE, what, to, secret)

    return (
        proof("greeting", mine, peer),
        proof("greeting", peer, mine),
        proof("answer", mine, peer),
        proof("answer", peer, mine),
    )


def check_encryption(theirs: Publication, *, encryption: bool, reader: str) -> None:
    """Check that two workers agree on encryption.

    :param encryption: whether this worker encrypts.
    :param reader: this worker's name, for messages.
    :raises PublicationError: only one of the two workers encrypts.
    """
    if (theirs.public_key is not None) != encryption:
        their_name, our_name = sealed.described(theirs.name, theirs.rank), f"worker {reader!r}"
        on, off = (their_name, our_name) if theirs.public_key else (our_name, their_name)
        raise PublicationError(
            f"{on} encrypts and {off} does not. Set encryption, or "
            f"{ZeroMQRpcBackendOptions.encryption.variable}, alike for all workers."
        )
