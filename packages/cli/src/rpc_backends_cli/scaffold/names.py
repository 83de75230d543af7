"""The names in a new package, derived from the backend's name."""

from __future__ import annotations

import keyword
import re
import unicodedata
from dataclasses import dataclass

from rpc_backends_core.spi import RpcBackendsError

_MEMBER = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
#: The characters of a backend's or package's name, which is part of the names of files (at most 255).
_MOST = 100


class BadNameError(RpcBackendsError):
    """A name cannot be used; the message says why and suggests another."""


def member_name(text: str) -> str:
    """Return ``text`` if it is a valid name for a backend.

    :raises BadNameError: it is not; the message suggests one.
    """
    _check_length(text)
    if _MEMBER.fullmatch(text):
        return text
    good = suggestion(text)
    raise BadNameError(
        f"{text!r} is not a valid backend name: it must begin with a letter and consist of capital "
        "letters, digits and single underscores."
        + (f" Did you mean {good}?" if good else " Example: MY_BACKEND.")
    )


def _check_length(text: str) -> None:
    if len(text) > _MOST:
        raise BadNameError(
            f"the name {text[:20] + '...'!r} has {len(text)} characters; choose one of at most {_MOST}."
        )


def suggestion(text: str) -> str:
    """Return a valid name similar to ``text``, or ""."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain)  # MyBackend is MY_BACKEND
    name = re.sub(r"[^A-Z0-9]+", "_", parted.upper()).strip("_")
    return f"RPC_{name}" if name[:1].isdigit() else name


def package_name(text: str) -> str:
    """Return ``text`` if it is a valid name for a Python package.

    :raises BadNameError: it is not.
    """
    _check_length(text)
    if re.fullmatch(r"[a-z][a-z0-9_]*", text) and not keyword.iskeyword(text):
        return text
    raise BadNameError(
        f"{text!r} is not a valid package name: it must begin with a letter, consist of lower-case "
        "letters, digits and underscores, and not be a Python keyword."
    )


@dataclass(frozen=True)
class Names:
    """The names used in a package.

    :ivar member: the backend, as in ``BackendType``.
    :ivar package: the Python package.
    """

    member: str
    package: str

    @classmethod
    def of(cls, member: str, package: str | None = None) -> Names:
        """Return the names for a backend; the package's name is derived unless given."""
        return cls(member, package or f"rpc_backend_{member.lower()}")

    @property
    def distribution(self) -> str:
        """The distribution's name."""
        return re.sub("_+", "-", self.package).strip("-")

    @property
    def class_prefix(self) -> str:
        """The prefix of class names."""
        return "".join(word.capitalize() for word in self.member.split("_"))
