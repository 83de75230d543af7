"""A worker's identity: its session keys, and the proof that they belong to a worker of this group.

Each worker makes a key pair when it starts. It writes the public key to the store, together with its
name, its addresses, its group and a proof. Only holders of the group's secret can make or check a proof.
"""

from __future__ import annotations

from rpc_backend_zeromq import publication as publications
from rpc_backend_zeromq._native import make_keys
from rpc_backend_zeromq.environment import BACKEND, ENCRYPTION
from rpc_backend_zeromq.publication import Publication
from rpc_backends_agents.common import canonical, sealed
from rpc_backends_agents.common.canonical import MalformedError
from rpc_backends_agents.common.errors import PublicationError
from rpc_backends_agents.common.secret import Secret

_FORM = sealed.Form(BACKEND, "zeromq", 2, "rpc-backend-zeromq")
_UNIX_PURPOSE = "unix"


def session_keys() -> tuple[bytes, bytes]:
    """Make the keys of one session: public and secret, 40 characters each (Z85).

    :raises TransportError: pyzmq's libzmq cannot be used, or has no encryption.
    """
    return make_keys()


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
        return sealed.proof_between(_FORM, _UNIX_PURPOSE, what, of, to, secret)

    return (
        proof("greeting", mine, peer),
        proof("greeting", peer, mine),
        proof("answer", mine, peer),
        proof("answer", peer, mine),
    )


def seal(publication: Publication, secret: Secret | None) -> str:
    """Return the text to write to the store. Without a secret it has no proof."""
    return sealed.seal(_FORM, canonical.dump(publication), secret)


def open_publication(
    text: str,
    secret: Secret | None,
    *,
    encryption: bool,
    reader: str,
    group: str,
    worker_id: int,
    name: str,
    rank: int | None,
) -> Publication:
    """Check and return a record that a worker has written to the store.

    :param secret: this worker's secret.
    :param encryption: whether this worker encrypts.
    :param reader: this worker's name, for messages.
    :param group: the token of the group that both workers should be in.
    :param worker_id: the expected worker's id.
    :param name: the expected worker's name.
    :param rank: the expected worker's rank; None if unknown.
    :raises PublicationError: the record cannot be trusted; the text says why and what to do.
    """
    who = sealed.described(name, rank)
    payload = sealed.unseal(_FORM, text, secret, name=name, rank=rank, reader=reader)
    try:
        found = publications.load(payload)
    except MalformedError as error:
        raise PublicationError(f"the address of {who} in the store is invalid: {error}.") from error
    sealed.check_worker(found, group=group, worker_id=worker_id, name=name, rank=rank)
    if (found.public_key is not None) != encryption:
        on, off = (who, f"worker {reader!r}") if found.public_key else (f"worker {reader!r}", who)
        raise PublicationError(
            f"{on} encrypts and {off} does not. Set encryption, or {ENCRYPTION}, alike for all workers."
        )
    return found
