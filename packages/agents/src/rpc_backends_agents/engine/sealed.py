"""Records that workers write to the store, with a proof (an HMAC) that a holder of the secret wrote them.

Anyone who can reach the store can write to it, so a record counts only if its proof is valid. The proof
covers the worker and the group, so a record of another worker or group cannot be replayed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Protocol

from rpc_backends_agents.engine import canonical
from rpc_backends_agents.engine.errors import PublicationError
from rpc_backends_agents.engine.secret import Secret, file_variable

_SEALED, _OPEN = "sealed", "open"
_PURPOSE = "publication"
#: Most characters before the JSON: the format, the fingerprint and the proof.
_HEADER_LIMIT = 256
_FOREIGN = "A process outside this group wrote it: use a store that no other program writes to."


class Published(Protocol):
    """What every worker publishes about itself."""

    @property
    def group(self) -> str:
        """The group's token, unique among all groups, past ones included."""

    @property
    def worker_id(self) -> int:
        """The worker's id."""

    @property
    def name(self) -> str:
        """The worker's name."""

    @property
    def rank(self) -> int:
        """The worker's rank."""

    @property
    def session(self) -> str:
        """32 hexadecimal digits, unique to the session."""


@dataclass(frozen=True)
class Form:
    """The form of one backend's records.

    :ivar backend: the backend's name.
    :ivar family: the start of the first word of a record.
    :ivar number: the rest of that word, which goes up when the form changes.
    :ivar distribution: the package that writes the records.
    """

    backend: str
    family: str
    number: int
    distribution: str

    @property
    def word(self) -> str:
        """The first word of a record."""
        return f"{self.family}{self.number}"

    @property
    def same_secret(self) -> str:
        """What to do if two workers have different secrets."""
        return (
            f"Give all workers the same secret, in the same way ({file_variable(self.backend)}, or the "
            "option secret_file)."
        )


def new_session() -> str:
    """Return a unique id of a session, for a record."""
    return secrets.token_hex(16)


def seal(form: Form, payload: str, secret: Secret | None) -> str:
    """Return the text to write to the store. Without a secret it has no proof."""
    if secret is None:
        return f"{form.word} {_OPEN} {payload}"
    proof = _proof(form, payload, secret)
    return f"{form.word} {_SEALED} {secret.fingerprint} {proof} {payload}"


def unseal(
    form: Form, text: str, secret: Secret | None, *, name: str, rank: int | None, reader: str
) -> str:
    """Check the proof of a record, and return its JSON. Nothing is parsed before the check.

    :param secret: this worker's secret.
    :param name: the expected worker's name.
    :param rank: the expected worker's rank; None if unknown.
    :param reader: this worker's name, for messages.
    :raises PublicationError: the record cannot be trusted; the text says why and what to do.
    """
    return _believed(form, text, secret, described(name, rank), f"worker {reader!r}")


def described(name: str, rank: int | None) -> str:
    """Return a worker in words."""
    return f"worker {name!r}" + ("" if rank is None else f" (rank {rank})")


def check_worker(
    published: Published, *, group: str, worker_id: int, name: str, rank: int | None
) -> None:
    """Check that a record belongs to the expected worker of this group.

    :raises PublicationError: it belongs to another worker or group.
    """
    who = described(name, rank)
    if published.group != group:
        raise PublicationError(
            f"the address of {who} in the store belongs to another group, for example an earlier "
            f"one. {_FOREIGN}"
        )
    expected = (worker_id, name, published.rank if rank is None else rank)
    if (published.worker_id, published.name, published.rank) != expected:
        raise PublicationError(
            f"the address of {who} in the store is that of worker {published.name!r} "
            f"(rank {published.rank}). {_FOREIGN}"
        )


def proof_between(
    form: Form, purpose: str, what: str, of: Published, to: Published, secret: Secret | None
) -> bytes:
    """Return a proof (32 bytes) that one worker shows another, valid for this pair of sessions only.

    If there is a secret, only its holders can make the proof; otherwise, all who can read the store can.

    :param purpose: the purpose of the key.
    :param what: what the proof is shown for, for example ``greeting``.
    """
    words = [form.word, what, of.group]
    for worker in (of, to):
        words += [str(worker.worker_id), worker.session]
    return hmac.digest(_key(purpose, of.group, secret), " ".join(words).encode(), "sha256")


def group_key(form: Form, purpose: str, group: str, secret: Secret | None) -> bytes:
    """Return a key (32 bytes) that all workers of one group can make.

    If there is a secret, only its holders can make the key; otherwise, all who can read the store can.

    :param purpose: the purpose of the key.
    :param group: the group's token.
    """
    message = f"{form.word} {purpose} {group}".encode()
    return hmac.digest(_key(purpose, group, secret), message, "sha256")


def _key(purpose: str, group: str, secret: Secret | None) -> bytes:
    return hashlib.sha256(group.encode()).digest() if secret is None else secret.derive(purpose)


def _believed(form: Form, text: str, secret: Secret | None, who: str, reader: str) -> str:
    # It must be printable, since messages quote parts of it.
    if len(text) > canonical.LIMIT + _HEADER_LIMIT or not (text.isascii() and text.isprintable()):
        raise PublicationError(
            f"the address of {who} in the store is invalid: it is too long or not plain text."
        )
    word, _, rest = text.partition(" ")
    kind, _, rest = rest.partition(" ")
    if word != form.word:
        why = "it was written by another backend"
        if word.startswith(form.family):
            why = (
                f"it was written by another version of {form.distribution}; install the same version "
                "for all workers"
            )
        raise PublicationError(f"the address of {who} in the store cannot be read: {why}.")
    if kind == _OPEN:
        if secret is not None:
            raise PublicationError(
                f"{who} has no secret, and {reader} has one (from {secret.source}, fingerprint "
                f"{secret.fingerprint}). {form.same_secret}"
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
            f"{who} has a secret (fingerprint {fingerprint[:32]}), and {reader} has none. "
            f"{form.same_secret}"
        )
    if fingerprint != secret.fingerprint:
        raise PublicationError(
            f"{who} has a different secret (fingerprint {fingerprint[:32]}) from {reader} (from "
            f"{secret.source}, fingerprint {secret.fingerprint}). {form.same_secret}"
        )
    if not hmac.compare_digest(proof.encode(), _proof(form, payload, secret).encode()):
        raise PublicationError(
            f"the address of {who} in the store was not written by a holder of this group's secret (from "
            f"{secret.source}): its proof is wrong. Another program wrote to the store or changed "
            "its contents."
        )
    return payload


def _proof(form: Form, payload: str, secret: Secret) -> str:
    """Return the HMAC-SHA256 (RFC 2104) of a publication, with a key used for this purpose only."""
    message = f"{form.word} {_SEALED} {payload}".encode()
    return hmac.digest(secret.derive(_PURPOSE), message, "sha256").hex()
