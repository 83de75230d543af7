"""The environment variables ``RPC_BACKENDS_...``, parsed strictly and read when they are needed."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rpc_backends_core._errors import SettingError

AUTOLOAD = "RPC_BACKENDS_AUTOLOAD"
DEFAULT = "RPC_BACKENDS_DEFAULT"
OVERRIDE = "RPC_BACKENDS_OVERRIDE"
ALLOW = "RPC_BACKENDS_ALLOW"
DENY = "RPC_BACKENDS_DENY"
JOIN_TIMEOUT = "RPC_BACKENDS_JOIN_TIMEOUT"

#: Every variable the core reads, with its meaning; `rpc-backends doctor` lists them.
VARIABLES = {
    AUTOLOAD: "0 keeps the registry out of torch.distributed.rpc (default: 1)",
    DEFAULT: "the backend of programs that name none (default: TENSORPIPE)",
    OVERRIDE: "the backend that programs get whatever they name (default: the one they name)",
    ALLOW: "comma-separated names: no other installed backend may be used",
    DENY: "comma-separated names: these installed backends may not be used",
    JOIN_TIMEOUT: "seconds a worker waits for its group to be complete (default: 1800)",
}

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in ``known`` that ``name`` most looks like, without regard to case."""
    by_fold = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[close[0]] if close else None


def autoload_enabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the bridge is to be installed at ``import torch``.

    :raises SettingError: the value is neither a yes nor a no.
    """
    text = environ.get(AUTOLOAD, "").strip()
    if not text or text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise SettingError(f"{AUTOLOAD}={text!r} is neither a yes nor a no. Set it to 1 or 0.")


def value(variable: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return what a variable says, None where it is not set or empty."""
    return environ.get(variable, "").strip() or None


def join_timeout(environ: Mapping[str, str] = os.environ) -> float:
    """Return how many seconds a worker waits for its group to be complete.

    The default is the half hour that torch's own rendezvous waits.

    :raises SettingError: the value is not a positive number.
    """
    text = environ.get(JOIN_TIMEOUT, "").strip()
    if not text:
        return 1800.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise SettingError(
            f"{JOIN_TIMEOUT}={text!r} is not a positive number of seconds. Example: {JOIN_TIMEOUT}=300"
        )
    return seconds


@dataclass(frozen=True)
class Settings:
    """What the variables say for one start of RPC.

    :ivar default: the backend of programs that name none; None where the variable is not set.
    :ivar override: the backend that programs get whatever they name; None likewise.
    :ivar join_timeout: seconds that a worker waits for its group to be complete.
    """

    default: str | None
    override: str | None
    join_timeout: float

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Return what the variables say now.

        :raises SettingError: one has a value that means nothing.
        """
        return cls(value(DEFAULT, environ), value(OVERRIDE, environ), join_timeout(environ))


class Choice:
    """Which installed backends may be used, as ``RPC_BACKENDS_ALLOW`` and ``_DENY`` say."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._allow = _names(ALLOW, environ)
        self._deny = _names(DENY, environ) or {}
        both = sorted((self._allow or {}).keys() & self._deny.keys())
        if both:
            raise SettingError(
                f"{self._deny[both[0]]!r} stands in both {ALLOW} and {DENY}. Take it out of one."
            )

    def check(self, known: Iterable[str]) -> None:
        """Refuse a name that no backend has: a typo would otherwise allow or deny nothing.

        :raises SettingError: with the nearest known name.
        """
        known = sorted(set(known))
        folds = {name.casefold() for name in known}
        for variable, names in ((ALLOW, self._allow or {}), (DENY, self._deny)):
            for fold, name in names.items():
                if fold in folds:
                    continue
                close = nearest(name, known)
                hint = f" Did you mean {close!r}?" if close else ""
                raise SettingError(
                    f"{variable} names {name!r}, and no backend of that name is installed or part of "
                    f"torch.{hint} Known: {', '.join(known) or 'none'}."
                )

    def denial(self, name: str) -> str | None:
        """Return why ``name`` may not be used, or None where it may."""
        fold = name.casefold()
        if fold in self._deny:
            return f"{DENY} names it"
        if self._allow is not None and fold not in self._allow:
            return f"{ALLOW} does not name it"
        return None


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[tuple[str, str | None]]:
    """Return each ``RPC_BACKENDS_...`` variable that nobody here reads, with the nearest real one.

    Other packages may have variables of their own, so this is shown by ``doctor`` and is no error.
    """
    return [
        (name, nearest(name, VARIABLES))
        for name in sorted(environ)
        if name.startswith("RPC_BACKENDS_") and name not in VARIABLES
    ]


def _names(variable: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Parse a comma-separated list of names into {casefolded: as written}; None if not set."""
    text = environ.get(variable)
    if text is None or not text.strip():
        return None
    names: dict[str, str] = {}
    for part in text.split(","):
        name = part.strip()
        if not name.isidentifier():
            raise SettingError(
                f"{variable}={text!r}: {name!r} is not a backend name. Give names with commas between "
                f"them, for example {variable}=TENSORPIPE,ZEROMQ."
            )
        names[name.casefold()] = name
    return names
