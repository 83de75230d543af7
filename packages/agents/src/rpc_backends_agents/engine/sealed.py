"""Records that workers write to the store, with a proof of who wrote them.

The proof is an HMAC that holders of the secret can make, or the signature of a worker with a certificate.

Anyone who can reach the store can write to it, so a record counts only if its proof is valid. The proof
covers the worker and the group, so a record of another worker or group cannot be replayed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Protocol

from rpc_backends_agents.engine import canonical
from rpc_backends_agents.engine.errors import PublicationError
from rpc_backends_agents.engine.secret import Secret, file_variable

_SEALED, _OPEN, _SIGNED = "sealed", "open", "signed"
_PURPOSE = "publication"
#: Most characters before the JSON: the format, the fingerprint and the proof.
_HEADER_LIMIT = 256
#: The same with certificates and a signature, in base 64.
_SIGNED_LIMIT = 24576
_FOREIGN_CERTIFICATE = (
    "Give this worker a certificate for its name, or find out who has started it."
)
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


class Signer(Protocol):
    """The certificate of a worker, which proves who it is in place of a secret."""

    @property
    def source(self) -> str:
        """Where the certificate comes from, for messages."""

    @property
    def remedy(self) -> str:
        """What to do if only some workers have certificates."""

    def sign(self, data: bytes) -> tuple[bytes, bytes]:
        """Return this worker's certificates, and its signature."""

    def check(self, name: str, certificates: bytes, signature: bytes, data: bytes) -> None:
        """Check that the worker with this name has signed.

        :raises PublicationError: it has not, or its certificate is not accepted; the text is the reason.
        """


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


def seal(form: Form, payload: str, secret: Secret | None, signer: Signer | None = None) -> str:
    """Return the text to write to the store. Without a secret and a signer it has no proof."""
    if signer is not None:
        parts = signer.sign(_signed(form, payload))
        encoded = " ".join(base64.b64encode(part).decode() for part in parts)
        return f"{form.word} {_SIGNED} {encoded} {payload}"
    if secret is None:
        return f"{form.word} {_OPEN} {payload}"
    proof = _proof(form, payload, secret)
    return f"{form.word} {_SEALED} {secret.fingerprint} {proof} {payload}"


def unseal(
    form: Form,
    text: str,
    secret: Secret | None,
    *,
    name: str,
    rank: int | None,
    reader: str,
    signer: Signer | None = None,
) -> str:
    """Check the proof of a record, and return its JSON. Nothing is parsed before the check.

    :param secret: this worker's secret.
    :param name: the expected worker's name.
    :param rank: the expected worker's rank; None if unknown.
    :param reader: this worker's name, for messages.
    :param signer: this worker's certificate; None if it has none.
    :raises PublicationError: the record cannot be trusted; the text says why and what to do.
    """
    who, us = described(name, rank), f"worker {reader!r}"
    kind, rest = _kind(form, text, who)
    if kind == _SIGNED and signer is not None:
        return _checked_signature(form, rest, signer, name, who)
    if kind == _SIGNED:
        ours = "none" if secret is None else f"a secret instead (from {secret.source})"
        raise PublicationError(
            f"{who} has a certificate, and {us} has {ours}. Give all workers certificates, or none."
        )
    if signer is not None:
        theirs = "a secret instead" if kind == _SEALED else "none"
        raise PublicationError(
            f"{us} has a certificate ({signer.source}), and {who} has {theirs}. {signer.remedy}"
        )
    return _believed(form, kind, rest, secret, who, us)


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


def _signed(form: Form, payload: str) -> bytes:
    return f"{form.word} {_SIGNED} {payload}".encode()


def _checked_signature(form: Form, rest: str, signer: Signer, name: str, who: str) -> str:
    certificates, _, rest = rest.partition(" ")
    signature, _, payload = rest.partition(" ")
    try:
        chain = base64.b64decode(certificates, validate=True)
        signed = base64.b64decode(signature, validate=True)
    except binascii.Error:
        raise PublicationError(
            f"the address of {who} in the store is invalid: its signature is not in base 64."
        ) from None
    try:
        signer.check(name, chain, signed, _signed(form, payload))
    except PublicationError as error:
        raise PublicationError(f"{who} is refused: {error}. {_FOREIGN_CERTIFICATE}") from None
    return payload


def _kind(form: Form, text: str, who: str) -> tuple[str, str]:
    """Return the kind of a record, and what follows."""
    # It must be printable, since messages quote parts of it.
    limit = canonical.LIMIT + (
        _SIGNED_LIMIT if text.startswith(f"{form.word} {_SIGNED} ") else _HEADER_LIMIT
    )
    if len(text) > limit or not (text.isascii() and text.isprintable()):
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
    return kind, rest


def _believed(
    form: Form, kind: str, rest: str, secret: Secret | None, who: str, reader: str
) -> str:
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
