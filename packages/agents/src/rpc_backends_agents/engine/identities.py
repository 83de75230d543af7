"""Which names the owners of certificates may have, and which certificates are revoked.

Without other rules, a worker's name must be its identity: a DNS name as it is, or the last part of a
URI. A package that decides what workers may do, such as ``rpc-backends-guard``, sets other rules with
:func:`use`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Identities:
    """Rules for the owners of certificates. In patterns, ``*`` stands for any characters.

    :ivar names: by pattern of identities, patterns of names. A worker may have a name only if its
        identity matches each entry for this name, so that no other identity can claim the name of an
        entry. If this is empty, names must be identities.
    :ivar revoked: identities, names of workers, and serial numbers of certificates in hexadecimal
        digits.
    """

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()

    def refusal(self, identity: str, serial: str, name: str) -> str:
        """Return why the owner of a certificate may not have a name; empty if it may."""
        if {identity, serial, name} & self.revoked:
            return f"the certificate of {identity} (certificate {serial}) is revoked"
        if not self.names:
            own = own_name(identity)
            if own == name:
                return ""
            return f"its certificate is that of {identity}, whose name is {own!r}"
        entries = [
            pattern
            for pattern, names in self.names.items()
            if any(fnmatch.fnmatchcase(name, each) for each in names)
        ]
        if entries and all(fnmatch.fnmatchcase(identity, pattern) for pattern in entries):
            return ""
        allowed = f"only {' and '.join(entries)}" if entries else "no identity"
        return f"its certificate is that of {identity}, and the policy lets {allowed} have the name"


def own_name(identity: str) -> str:
    """Return the name of a worker with an identity: the last part of a URI, or the DNS name."""
    return identity.rpartition("/")[2] if "://" in identity else identity


_rules: Callable[[], Identities] = Identities
#: The names of the workers of ``rpc-backends doctor``.
_PROBES = "doctor[0-9]"
_is_probe = False


def use_for_probe() -> None:
    """In this process, let any identity have the names of doctor's workers, and no other names.

    Two processes with one certificate can then test the connections that workers make with it.
    """
    global _is_probe  # noqa: PLW0603  # of a process that ends after its calls
    _is_probe = True


def use(rules: Callable[[], Identities] | None) -> None:
    """Set the rules of this process, which workers read again every moment; None for no other rules.

    :param rules: returns the rules that hold now, quickly and without raising.
    """
    global _rules  # noqa: PLW0603  # the rules of a process
    _rules = Identities if rules is None else rules


def current() -> Identities:
    """Return the rules that hold now."""
    rules = _rules()
    return replace(rules, names={"*": (_PROBES,)}) if _is_probe else rules
