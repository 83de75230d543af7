"""The names in a new package, all made of the backend's."""

from __future__ import annotations

import keyword
import re
import unicodedata
from dataclasses import dataclass

from rpc_backends_core.spi import RpcBackendsError

_MEMBER = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")


class BadNameError(RpcBackendsError):
    """A name that cannot be used; the message says why and what to use instead."""


def member_name(text: str) -> str:
    """Return ``text`` if it is a good name for a backend.

    :raises BadNameError: it is not; the message suggests one.
    """
    if _MEMBER.fullmatch(text):
        return text
    good = suggestion(text)
    raise BadNameError(
        f"{text!r} is not a good name for a backend: as a member of BackendType it is written in capital "
        "letters, digits and single underscores, and begins with a letter."
        + (f" How about {good}?" if good else " MY_BACKEND would be one.")
    )


def suggestion(text: str) -> str:
    """Return the name that ``text`` may have been meant to be, "" if none can be seen in it."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain)  # MyBackend is MY_BACKEND
    name = re.sub(r"[^A-Z0-9]+", "_", parted.upper()).strip("_")
    return f"RPC_{name}" if name[:1].isdigit() else name


def package_name(text: str) -> str:
    """Return ``text`` if a package can be imported by that name.

    :raises BadNameError: it cannot.
    """
    if re.fullmatch(r"[a-z][a-z0-9_]*", text) and not keyword.iskeyword(text):
        return text
    raise BadNameError(
        f"{text!r} is not a good name for a package: it must be small letters, digits and underscores, "
        "begin with a letter, and be no keyword of Python."
    )


@dataclass(frozen=True)
class Names:
    """What the parts of a package are called.

    :ivar member: the backend, as in ``BackendType``.
    :ivar package: what Python imports.
    """

    member: str
    package: str

    @classmethod
    def of(cls, member: str, package: str | None = None) -> Names:
        """Return the names for a backend; the package's is made of it, unless it is given."""
        return cls(member, package or f"rpc_backend_{member.lower()}")

    @property
    def distribution(self) -> str:
        """What pip installs."""
        return re.sub("_+", "-", self.package).strip("-")

    @property
    def class_prefix(self) -> str:
        """What the names of classes begin with."""
        return "".join(word.capitalize() for word in self.member.split("_"))
