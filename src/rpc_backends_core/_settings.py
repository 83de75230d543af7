"""The environment variables ``RPC_BACKENDS_...``, parsed strictly and read on demand."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rpc_backends_core._errors import SettingError

AUTOLOAD = "RPC_BACKENDS_AUTOLOAD"
DEFAULT = "RPC_BACKENDS_DEFAULT"
OVERRIDE = "RPC_BACKENDS_OVERRIDE"
ALLOW = "RPC_BACKENDS_ALLOW"
DENY = "RPC_BACKENDS_DENY"
LOCK = "RPC_BACKENDS_LOCK"
JOIN_TIMEOUT = "RPC_BACKENDS_JOIN_TIMEOUT"
UNPICKLING_ERRORS = "RPC_BACKENDS_UNPICKLING_ERRORS"
REQUIRE_AUTH = "RPC_BACKENDS_REQUIRE_AUTH"

#: The variables that the core reads, with their meaning; `rpc-backends doctor` lists them.
VARIABLES = {
    AUTOLOAD: "0 leaves torch.distributed.rpc unchanged at import torch (default: 1)",
    DEFAULT: "the backend of programs that do not name one (default: TENSORPIPE)",
    OVERRIDE: "the backend of all programs, whichever they name (default: the one they name)",
    ALLOW: "comma-separated names: only these installed backends may be used",
    DENY: "comma-separated names: these installed backends may not be used",
    LOCK: "a file from `rpc-backends lock`; if the installed packages differ from it, none is loaded",
    JOIN_TIMEOUT: "seconds a worker waits until its group is complete (default: 1800)",
    REQUIRE_AUTH: "1 refuses every start in which workers do not prove who they are (default: 0)",
    UNPICKLING_ERRORS: "raise or return the error of a result that cannot be unpickled (default: raise)",
}

PREFIX = "RPC_BACKENDS_"
#: Names with that prefix, or nearly that; the group is the rest.
NEARLY_OURS = re.compile(r"RPC_?BACKENDS?_?(.*)", re.IGNORECASE)
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in ``known`` most similar to ``name``, ignoring case."""
    by_fold = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[close[0]] if close else None


def autoload_enabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``import torch`` installs the bridge.

    :raises SettingError: the value is neither true nor false.
    """
    text = value(AUTOLOAD, environ)
    return text is None or parse_boolean(AUTOLOAD, text)


def parse_boolean(variable: str, text: str) -> bool:
    """Return the value of a boolean variable.

    :raises SettingError: the text is neither true nor false.
    """
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise SettingError(f"{variable}={text!r} is neither true nor false. Set it to 1 or 0.")


def value(variable: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a variable's value; None if it is unset or empty."""
    return environ.get(variable, "").strip() or None


def join_timeout(environ: Mapping[str, str] = os.environ) -> float:
    """Return the number of seconds that a worker waits until its group is complete.

    The default is that of torch's own rendezvous, half an hour.

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


def requires_authentication(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether only workers may start that prove to each other who they are.

    :raises SettingError: the value is neither true nor false. An empty one is neither: a protection must
        not be lost by a variable that another one was to fill.
    """
    return REQUIRE_AUTH in environ and parse_boolean(REQUIRE_AUTH, environ[REQUIRE_AUTH].strip())


def returns_unpickling_errors(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the error of a result that cannot be unpickled is the result, as in torch.

    :raises SettingError: the value is neither ``raise`` nor ``return``.
    """
    text = environ.get(UNPICKLING_ERRORS, "").strip()
    if text.lower() not in {"", "raise", "return"}:
        raise SettingError(
            f"{UNPICKLING_ERRORS}={text!r} is neither raise nor return. Set it to one of them."
        )
    return text.lower() == "return"


@dataclass(frozen=True)
class Settings:
    """The settings for one start of RPC.

    :ivar default: the backend of programs that do not name one; None if unset.
    :ivar override: the backend of all programs, whichever they name; None if unset.
    :ivar join_timeout: seconds that a worker waits until its group is complete.
    :ivar require_authentication: whether only workers may start that prove who they are.
    :ivar has_others: whether there are variables for :mod:`_other_variables` to look at.
    """

    default: str | None
    override: str | None
    join_timeout: float
    has_others: bool = False
    require_authentication: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from the environment.

        :raises SettingError: a variable has an invalid value.
        """
        returns_unpickling_errors(environ)  # read again for each such result; checked here
        others = any(NEARLY_OURS.fullmatch(name) for name in environ if name not in VARIABLES)
        return cls(
            value(DEFAULT, environ),
            value(OVERRIDE, environ),
            join_timeout(environ),
            others,
            requires_authentication(environ),
        )


class Choice:
    """The installed backends that ``RPC_BACKENDS_ALLOW`` and ``_DENY`` permit."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._allow = _names(ALLOW, environ)
        self._deny = _names(DENY, environ) or {}
        both = sorted((self._allow or {}).keys() & self._deny.keys())
        if both:
            raise SettingError(
                f"{self._deny[both[0]]!r} is in both {ALLOW} and {DENY}. Remove it from one of "
                "them."
            )

    def check(self, known: Iterable[str]) -> None:
        """Reject unknown names, so that a typo does not silently change what is allowed.

        :raises SettingError: a name is unknown; the message suggests the nearest one.
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
                    f"{variable} names {name!r}, but no backend of that name is installed or built "
                    f"into torch.{hint} Known: {', '.join(known) or 'none'}."
                )

    def denial(self, name: str) -> str | None:
        """Return why ``name`` may not be used; None if it may."""
        fold = name.casefold()
        if fold in self._deny:
            return f"{DENY} names it"
        if self._allow is not None and fold not in self._allow:
            return f"{ALLOW} does not name it"
        return None


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
                f"{variable}={text!r}: {name!r} is not a backend name. Separate names with commas, "
                f"for example {variable}=TENSORPIPE,ZEROMQ."
            )
        names[name.casefold()] = name
    return names
