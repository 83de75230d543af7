"""The secret that the workers of a group share: its form, where it comes from, and keys made of it.

It is 32 random bytes. As text it has a prefix, so that it is known for what it is, and a checksum, so
that a copy which was cut off or changed is noticed. The text and the bytes stay in here: what is shown of
a secret is where it is from and a fingerprint, which says no more than whether two are the same.
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

from rpc_backend_zeromq import environment
from rpc_backend_zeromq.errors import SecretError

PREFIX = "rpcsecret1-"
_BYTES = 32
_CHECKSUM_BYTES = 4
_FINGERPRINT_BYTES = 8
#: Characters of the text: base 32 has five bits in each.
LENGTH = len(PREFIX) + -(-(_BYTES + _CHECKSUM_BYTES) * 8 // 5)
#: More than a file with a secret has, with whatever white space.
_FILE_LIMIT = 4096
#: Domains: no key is used for two things, and none is what another program derives from the same bytes.
_SALT = b"rpc-backends zeromq secret 1"
#: What nobody but the owner of the file may do with it.
OTHERS_MAY = stat.S_IRWXG | stat.S_IRWXO


class Secret:
    """A secret that was given, without a way to see it.

    :ivar source: where it is from, in words.
    """

    __slots__ = ("_key", "source")

    def __init__(self, key: bytes, source: str) -> None:
        # What all keys are derived from; the secret itself is not needed any more.
        self._key = hmac.digest(_SALT, key, "sha256")
        self.source = source

    def derive(self, purpose: str) -> bytes:
        """Return a key of 32 bytes for one purpose: HKDF (RFC 5869) with SHA-256, of one block."""
        return hmac.digest(self._key, purpose.encode() + b"\x01", "sha256")

    @property
    def fingerprint(self) -> str:
        """Text that is the same for the same secret; the secret cannot be found from it."""
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
            "a secret is not pickled, so that it gets nowhere by accident. Have each process take it "
            f"from the file that {environment.SECRET_FILE} or the option secret_file names."
        )


def generate() -> str:
    """Make a new secret and return its text."""
    return _text(secrets.token_bytes(_BYTES))


def parse(text: str, source: str) -> Secret:
    """Return the secret that ``text`` is.

    :param source: where it is from, for messages; they never have the text itself.
    :raises SecretError: it is none.
    """
    text = text.strip()
    why = None
    if not text.startswith(PREFIX):
        why = f"it does not begin with {PREFIX!r}"
    elif len(text) != LENGTH:
        why = f"it has {len(text)} characters and a secret has {LENGTH}, so it was not copied whole"
    else:
        key = _key(text)
        if key is not None:
            return Secret(key, source)
        why = "its checksum is wrong, so it was changed in copying"
    raise SecretError(f"{source} is not a secret: {why}. `rpc-backends secret` makes one.")


def read(path: str, source: str) -> Secret:
    """Return the secret in a file that nobody but its owner may read or write.

    :raises SecretError: it cannot be read, others could read it too, or no secret is in it.
    """
    try:
        # Without waiting for a writer, should it be a pipe; what was opened is what is looked at.
        descriptor = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError, RuntimeError) as error:
        raise SecretError(
            f"{source} cannot be read: {error}. `rpc-backends secret --out FILE` makes such a file."
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SecretError(f"{source} is no file. `rpc-backends secret --out FILE` makes one.")
        if status.st_mode & OTHERS_MAY:
            raise SecretError(
                f"{source} is open to others than its owner: its mode is "
                f"{stat.S_IMODE(status.st_mode):04o}. Do this, and make a new one if somebody may have "
                f"seen it: chmod 600 {path}"
            )
        content = os.read(descriptor, _FILE_LIMIT + 1)
    finally:
        os.close(descriptor)
    if len(content) > _FILE_LIMIT:
        raise SecretError(f"{source} is not a secret: it has more than {_FILE_LIMIT} bytes.")
    return parse(content.decode("ascii", "replace"), source)


def find(
    given: Secret | None, file: str | None, environ: Mapping[str, str] = os.environ
) -> Secret | None:
    """Return the secret from wherever it is given, None where it is nowhere.

    :param given: that of the option ``secret``.
    :param file: the option ``secret_file``.
    :raises SecretError: one cannot be had, or two are given that are not the same.
    """
    found = [] if given is None else [given]
    if file is not None:
        found.append(read(file, f"the option secret_file ({file})"))
    in_environment = environment.text(environment.SECRET, environ)
    if in_environment is not None:
        found.append(parse(in_environment, environment.SECRET))
    named = environment.text(environment.SECRET_FILE, environ)
    if named is not None:
        found.append(read(named, f"{environment.SECRET_FILE} ({named})"))
    for other in found[1:]:
        if other != found[0]:
            raise SecretError(
                f"{found[0].source} and {other.source} give different secrets (fingerprints "
                f"{found[0].fingerprint} and {other.fingerprint}). Take one of them away."
            )
    return found[0] if found else None


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
    # As a text, so that its last character counts whole.
    return key if hmac.compare_digest(_text(key).encode(), text.lower().encode()) else None


def _checksum(key: bytes) -> bytes:
    return hashlib.sha256(_SALT + b" checksum" + key).digest()[:_CHECKSUM_BYTES]
