"""A worker's identity: its session keys, and the proof that they belong to a worker of this group.

Each worker makes a key pair when it starts. It writes the public key to the store, together with its
name, its addresses, its group and a proof (an HMAC). Only holders of the group's secret can make or check
the proof. Anyone who can reach the store can write to it, so a record counts only if its proof is valid.
The proof covers the worker and the group, so a record of another worker or group cannot be replayed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from rpc_backend_zeromq import publication as publications
from rpc_backend_zeromq._native import make_keys
from rpc_backend_zeromq.environment import ENCRYPTION, SECRET_FILE
from rpc_backend_zeromq.errors import PublicationError
from rpc_backend_zeromq.publication import MalformedError, Publication
from rpc_backend_zeromq.secret import Secret

#: The first word of a record in the store. The number goes up when the format changes.
_FORM = "zeromq2"
_FORM_OF_OTHERS = "zeromq"
_SEALED, _OPEN = "sealed", "open"
_PURPOSE = "publication"
_UNIX_PURPOSE = "unix"
#: Most characters before the JSON: the format, the fingerprint and the proof.
_HEADER_LIMIT = 256
_SAME_SECRET = (
    f"Give all workers the same secret, in the same way ({SECRET_FILE}, or the option secret_file)."
)

_FOREIGN = "A process outside this group wrote it: use a store that no other program writes to."


def session_keys() -> tuple[bytes, bytes]:
    """Make the keys of one session: public and secret, 40 characters each (Z85).

    :raises TransportError: pyzmq's libzmq cannot be used, or has no encryption.
    """
    return make_keys()


def new_session() -> str:
    """Return a unique id of a session, for a publication."""
    return secrets.token_hex(16)


def unix_proofs(
    mine: Publication, peer: Publication, secret: Secret | None
) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the proofs that two workers exchange on a Unix socket, 32 bytes each.

    A proof is sent in plain text, because only this user can read the socket. Each proof is valid for
    one pair of sessions and one direction. If there is a secret, only its holders can make the proof.

    :returns: what this worker sends when it connects, what the peer sends when it connects, what this
        worker answers, and what the peer answers.
    """
    key = (
        hashlib.sha256(mine.group.encode()).digest()
        if secret is None
        else secret.derive(_UNIX_PURPOSE)
    )

    def proof(what: str, of: Publication, to: Publication) -> bytes:
        words = [_FORM, what, mine.group]
        for one in (of, to):
            words += [str(one.worker_id), one.session]
        return hmac.digest(key, " ".join(words).encode(), "sha256")

    return (
        proof("greeting", mine, peer),
        proof("greeting", peer, mine),
        proof("answer", mine, peer),
        proof("answer", peer, mine),
    )


def seal(publication: Publication, secret: Secret | None) -> str:
    """Return the text to write to the store. Without a secret it has no proof."""
    payload = publications.dump(publication)
    if secret is None:
        return f"{_FORM} {_OPEN} {payload}"
    return f"{_FORM} {_SEALED} {secret.fingerprint} {_proof(payload, secret)} {payload}"


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
    who = f"worker {name!r}" + ("" if rank is None else f" (rank {rank})")
    payload = _believed(text, secret, who, f"worker {reader!r}")
    try:
        found = publications.load(payload)
    except MalformedError as error:
        raise PublicationError(f"the address of {who} in the store is invalid: {error}.") from error
    if found.group != group:
        raise PublicationError(
            f"the address of {who} in the store belongs to another group, for example an earlier "
            f"one. {_FOREIGN}"
        )
    expected = (worker_id, name, found.rank if rank is None else rank)
    if (found.worker_id, found.name, found.rank) != expected:
        raise PublicationError(
            f"the address of {who} in the store is that of worker {found.name!r} (rank {found.rank}). "
            f"{_FOREIGN}"
        )
    if (found.public_key is not None) != encryption:
        on, off = (who, f"worker {reader!r}") if found.public_key else (f"worker {reader!r}", who)
        raise PublicationError(
            f"{on} encrypts and {off} does not. Set encryption, or {ENCRYPTION}, alike for all workers."
        )
    return found


def _believed(text: str, secret: Secret | None, who: str, reader: str) -> str:
    """Check the proof, and return the JSON in ``text``. Nothing is parsed before the check."""
    # It must be printable, since messages quote parts of it.
    if len(text) > publications.LIMIT + _HEADER_LIMIT or not (
        text.isascii() and text.isprintable()
    ):
        raise PublicationError(
            f"the address of {who} in the store is invalid: it is too long or not plain text."
        )
    form, _, rest = text.partition(" ")
    kind, _, rest = rest.partition(" ")
    if form != _FORM:
        why = "it was written by another backend"
        if form.startswith(_FORM_OF_OTHERS):
            why = (
                "it was written by another version of rpc-backend-zeromq; install the same version "
                "for all workers"
            )
        raise PublicationError(f"the address of {who} in the store cannot be read: {why}.")
    if kind == _OPEN:
        if secret is not None:
            raise PublicationError(
                f"{who} has no secret, and {reader} has one (from {secret.source}, fingerprint "
                f"{secret.fingerprint}). {_SAME_SECRET}"
            )
        return rest
    if kind != _SEALED:
        raise PublicationError(
            f"the address of {who} in the store is invalid: its kind is {kind[:20]!r}."
        )
    fingerprint, _, rest = rest.partition(" ")
    proof, _, payload = rest.partition(" ")
    if secret is None:
        raise PublicationError(
            f"{who} has a secret (fingerprint {fingerprint[:32]}), and {reader} has none. {_SAME_SECRET}"
        )
    if fingerprint != secret.fingerprint:
        raise PublicationError(
            f"{who} has a different secret (fingerprint {fingerprint[:32]}) from {reader} (from "
            f"{secret.source}, fingerprint {secret.fingerprint}). {_SAME_SECRET}"
        )
    if not hmac.compare_digest(proof.encode(), _proof(payload, secret).encode()):
        raise PublicationError(
            f"the address of {who} in the store was not written by a holder of this group's secret (from "
            f"{secret.source}): its proof is wrong. Another program wrote to the store or changed "
            "its contents."
        )
    return payload


def _proof(payload: str, secret: Secret) -> str:
    """Return the HMAC-SHA256 (RFC 2104) of a publication, with a key used for this purpose only."""
    message = f"{_FORM} {_SEALED} {payload}".encode()
    return hmac.digest(secret.derive(_PURPOSE), message, "sha256").hex()
