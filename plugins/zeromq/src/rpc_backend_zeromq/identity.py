"""A worker's identity: the keys of its session, and the proof that they are of a worker of this group.

Each worker makes a pair of keys when it starts and puts the public one into the store, with its name,
its addresses and its group, under a proof that whoever has the group's secret can make and check. A store
is open to all who reach it, so what is in it is believed for the proof alone. What was true of another
worker or of another group is refused, since both stand in what is proved.
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

#: The first word of what is in the store; the number goes up with every change of the form.
_FORM = "zeromq2"
_FORM_OF_OTHERS = "zeromq"
_SEALED, _OPEN = "sealed", "open"
_PURPOSE = "publication"
_UNIX_PURPOSE = "unix"
#: Characters before the JSON: the form, the fingerprint and the proof.
_HEADER_LIMIT = 256
_SAME_SECRET = (
    f"Give all workers the same secret, in the same way ({SECRET_FILE}, or the option secret_file)."
)

_FOREIGN = (
    "It was put there by somebody who is not of this group: use a store that nobody else writes to."
)


def session_keys() -> tuple[bytes, bytes]:
    """Make the keys of one session: public and secret, 40 characters each (Z85).

    :raises TransportError: pyzmq's libzmq cannot be used, or has no encryption.
    """
    return make_keys()


def new_session() -> str:
    """Return what no other session has, for a publication."""
    return secrets.token_hex(16)


def unix_proofs(
    mine: Publication, peer: Publication, secret: Secret | None
) -> tuple[bytes, bytes, bytes, bytes]:
    """Return what two workers show each other on a Unix socket, 32 bytes each.

    Nobody but this user can read what goes over it, so a proof is sent as it is. It holds for two
    sessions, for one direction, and, where there is a secret, for holders of it alone.

    :returns: what this worker shows when it connects, and what the peer shows when it does; then what
        this worker answers, and what the peer answers.
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
    """Return the text to put into the store; without a secret it has no proof."""
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
    """Return what a worker has put into the store, if it is to be believed.

    :param secret: this worker's.
    :param encryption: whether this worker encrypts.
    :param reader: this worker's name, for messages.
    :param group: of the group that both should be in.
    :param worker_id: of the worker whose text this should be; so are ``name`` and ``rank``, which is None
        where nothing says it.
    :raises PublicationError: it is not; the text says why and what to do.
    """
    who = f"worker {name!r}" + ("" if rank is None else f" (rank {rank})")
    payload = _believed(text, secret, who, f"worker {reader!r}")
    try:
        found = publications.load(payload)
    except MalformedError as error:
        raise PublicationError(f"the address of {who} in the store is none: {error}.") from error
    if found.group != group:
        raise PublicationError(
            f"the address of {who} in the store is of another group, an earlier one say. {_FOREIGN}"
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
    """Return the JSON in ``text``, once its proof is checked; nothing of it is parsed before."""
    # Printable, since parts of it are shown.
    if len(text) > publications.LIMIT + _HEADER_LIMIT or not (
        text.isascii() and text.isprintable()
    ):
        raise PublicationError(
            f"the address of {who} in the store is none: it is too long, or not plain text."
        )
    form, _, rest = text.partition(" ")
    kind, _, rest = rest.partition(" ")
    if form != _FORM:
        why = "it was written by another backend"
        if form.startswith(_FORM_OF_OTHERS):
            why = "it was written by another version of rpc-backend-zeromq; install one for all workers"
        raise PublicationError(f"the address of {who} in the store cannot be read: {why}.")
    if kind == _OPEN:
        if secret is not None:
            raise PublicationError(
                f"{who} has no secret, and {reader} has one (from {secret.source}, fingerprint "
                f"{secret.fingerprint}). {_SAME_SECRET}"
            )
        return rest
    if kind != _SEALED:
        raise PublicationError(f"the address of {who} in the store is none: it is {kind[:20]!r}.")
    fingerprint, _, rest = rest.partition(" ")
    proof, _, payload = rest.partition(" ")
    if secret is None:
        raise PublicationError(
            f"{who} has a secret (fingerprint {fingerprint[:32]}), and {reader} has none. {_SAME_SECRET}"
        )
    if fingerprint != secret.fingerprint:
        raise PublicationError(
            f"{who} has another secret (fingerprint {fingerprint[:32]}) than {reader} (from "
            f"{secret.source}, fingerprint {secret.fingerprint}). {_SAME_SECRET}"
        )
    if not hmac.compare_digest(proof.encode(), _proof(payload, secret).encode()):
        raise PublicationError(
            f"the address of {who} in the store was not written by a holder of this group's secret (from "
            f"{secret.source}): its proof is wrong. Somebody else has written to the store, or changed "
            "what was in it."
        )
    return payload


def _proof(payload: str, secret: Secret) -> str:
    """Return HMAC-SHA256 (RFC 2104) over a publication, with a key that is used for nothing else."""
    message = f"{_FORM} {_SEALED} {payload}".encode()
    return hmac.digest(secret.derive(_PURPOSE), message, "sha256").hex()
