"""The secret that the workers of a group share: its format, its sources, and the keys derived from it.

A secret is 32 random bytes. Its text has a prefix, which identifies it as a secret, and a checksum, which
detects truncated or changed copies. The text and the bytes never leave this module. Messages show only
the source of a secret and its fingerprint, which tells whether two secrets are equal.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rpc_backends_agents.engine import variables
from rpc_backends_agents.engine.errors import SecretError

PREFIX = "rpcsecret1-"
_BYTES = 32
_CHECKSUM_BYTES = 4
_FINGERPRINT_BYTES = 8
#: Characters of the text. Each base-32 character holds five bits.
LENGTH = len(PREFIX) + -(-(_BYTES + _CHECKSUM_BYTES) * 8 // 5)
#: The most bytes of a secret file: more than a secret with white space around it has.
_FILE_LIMIT = 4096
#: Separates these keys from those that other programs derive from the same bytes.
_SALT = b"rpc-backends zeromq secret 1"
#: Permission bits that a secret file must not have.
OTHERS_MAY = stat.S_IRWXG | stat.S_IRWXO


class Secret:
    """A secret whose text cannot be read back.

    :ivar source: where the secret comes from, for messages.
    """

    __slots__ = ("_key", "source")

    def __init__(self, key: bytes, source: str) -> None:
        # All keys are derived from this key, so the secret itself is not kept.
        self._key = hmac.digest(_SALT, key, "sha256")
        self.source = source

    def derive(self, purpose: str) -> bytes:
        """Return a 32-byte key for one purpose: one block of HKDF (RFC 5869) with SHA-256."""
        return hmac.digest(self._key, purpose.encode() + b"\x01", "sha256")

    @property
    def fingerprint(self) -> str:
        """A text that is equal for equal secrets, and does not reveal the secret."""
        return self.derive("fingerprint")[:_FINGERPRINT_BYTES].hex()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._key, other._key)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<secret from {self.source}, fingerprint {self.fingerprint}>"

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a secret cannot be pickled, so that it cannot leak by accident. Let each process read it "
            "from the file that RPC_BACKENDS_..._SECRET_FILE or the option secret_file names."
        )


def generate() -> str:
    """Make a new secret and return its text."""
    return _text(secrets.token_bytes(_BYTES))


def parse(text: str, source: str) -> Secret:
    """Parse the text of a secret.

    :param source: where the text comes from, for messages, which never quote the text.
    :raises SecretError: ``text`` is not a secret.
    """
    text = text.strip()
    why = None
    if not text.startswith(PREFIX):
        why = f"it does not begin with {PREFIX!r}"
    elif len(text) != LENGTH:
        why = f"it has {len(text)} characters but a secret has {LENGTH}, so it was not copied completely"
    else:
        key = _key(text)
        if key is not None:
            return Secret(key, source)
        why = "its checksum is wrong, so it was changed while being copied"
    raise SecretError(f"{source} is not a secret: {why}. `rpc-backends secret` makes one.")


def read(path: str, source: str) -> Secret:
    """Return the secret in a file that only its owner may access.

    :raises SecretError: the file is unreadable, accessible to other users, or holds no secret.
    """
    try:
        # O_NONBLOCK: do not wait for a writer if it is a pipe. fstat checks the file that was opened.
        descriptor = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError, RuntimeError) as error:
        raise SecretError(
            f"{source} cannot be read: {error}. `rpc-backends secret --out FILE` makes such a file."
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SecretError(
                f"{source} is not a regular file. `rpc-backends secret --out FILE` makes one."
            )
        if status.st_mode & OTHERS_MAY:
            raise SecretError(
                f"{source} is accessible to users other than its owner: its mode is "
                f"{stat.S_IMODE(status.st_mode):04o}. Run: chmod 600 {path}; make a new secret if "
                "another user may have read it."
            )
        content = os.read(descriptor, _FILE_LIMIT + 1)
    finally:
        os.close(descriptor)
    if len(content) > _FILE_LIMIT:
        raise SecretError(f"{source} is not a secret: it has more than {_FILE_LIMIT} bytes.")
    return parse(content.decode("ascii", "replace"), source)


def variable(backend: str) -> str:
    """Return the environment variable that holds the secret of a backend's workers."""
    return f"{variables.prefix(backend)}SECRET"


def file_variable(backend: str) -> str:
    """Return the environment variable that names the file with this secret."""
    return f"{variables.prefix(backend)}SECRET_FILE"


def find(
    backend: str,
    given: Secret | None,
    file: str | None,
    environ: Mapping[str, str] = os.environ,
) -> Secret | None:
    """Return the secret from the options or the environment; None if neither gives one.

    :param backend: the name of the backend, whose variables are read.
    :param given: the option ``secret``.
    :param file: the option ``secret_file``.
    :raises SecretError: a secret is invalid or unreadable, or two sources give different secrets.
    """
    secrets = [] if given is None else [given]
    if file is not None:
        secrets.append(read(file, f"the option secret_file ({file})"))
    in_environment = variables.text(variable(backend), environ)
    if in_environment is not None:
        secrets.append(parse(in_environment, variable(backend)))
    named = variables.text(file_variable(backend), environ)
    if named is not None:
        secrets.append(read(named, f"{file_variable(backend)} ({named})"))
    for secret in secrets[1:]:
        if secret != secrets[0]:
            raise SecretError(
                f"{secrets[0].source} and {secret.source} give different secrets (fingerprints "
                f"{secrets[0].fingerprint} and {secret.fingerprint}). Remove one of them."
            )
    return secrets[0] if secrets else None


def _text(key: bytes) -> str:
    encoded = base64.b32encode(key + _checksum(key)).decode().rstrip("=")
    return PREFIX + encoded.lower()


def _key(text: str) -> bytes | None:
    encoded = text.removeprefix(PREFIX)
    padding = "=" * (-len(encoded) % 8)
    try:
        raw = base64.b32decode(encoded + padding, casefold=True)
    except ValueError:
        return None
    key = raw[:_BYTES]
    # Compare the texts: the bytes do not depend on all bits of the last character.
    return key if hmac.compare_digest(_text(key).encode(), text.lower().encode()) else None


def _checksum(key: bytes) -> bytes:
    return hashlib.sha256(_SALT + b" checksum" + key).digest()[:_CHECKSUM_BYTES]
