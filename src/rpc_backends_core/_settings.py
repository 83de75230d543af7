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

#: The variables that the core reads, with their meaning; `rpc-backends doctor` lists them.
VARIABLES = {
    AUTOLOAD: "0 leaves torch.distributed.rpc unchanged at import torch (default: 1)",
    DEFAULT: "the backend of programs that do not name one (default: TENSORPIPE)",
    OVERRIDE: "the backend of all programs, whichever they name (default: the one they name)",
    ALLOW: "comma-separated names: only these installed backends may be used",
    DENY: "comma-separated names: these installed backends may not be used",
    LOCK: "a file from `rpc-backends lock`; if the installed packages differ from it, none is loaded",
    JOIN_TIMEOUT: "seconds a worker waits until its group is complete (default: 1800)",
    UNPICKLING_ERRORS: "raise or return the error of a result that cannot be unpickled (default: raise)",
}

_PREFIX = "RPC_BACKENDS_"
_NEARLY_OURS = re.compile(r"RPC_?BACKENDS?_?(.*)", re.IGNORECASE)
#: It has neither a backend nor a hook, so the core does not know whether it is installed.
_AGENTS = "rpc-backends-agents"
#: The variables of this project's other packages, without the prefix. They are listed here so that a
#: misspelt one is found although its package is not loaded.
OF_PACKAGES = {
    _AGENTS: ("AGENTS_ANY_TORCH",),
    "rpc-backends-inspect": ("RECORDER", "DUMP", "DUMP_AT_END", "DUMP_SHUTDOWN_AFTER"),
    "rpc-backends-faults": ("FAULTS", "FAULTS_LOG", "FAULTS_REPLAY", "FAULTS_SEED"),
    "rpc-backends-opentelemetry": ("OTEL",),
    "rpc-backend-ucx": (
        "UCX_NET_DEVICES",
        "UCX_POLL_TIME",
        "UCX_SECRET",
        "UCX_SECRET_FILE",
        "UCX_TRANSPORTS",
        "UCX_TRUSTED_NETWORK",
    ),
    "rpc-backend-zeromq": (
        "ZEROMQ_ADDRESS",
        "ZEROMQ_BULK_CONNECTIONS",
        "ZEROMQ_ENCRYPTION",
        "ZEROMQ_INTERFACE",
        "ZEROMQ_PORTS",
        "ZEROMQ_SECRET",
        "ZEROMQ_SECRET_FILE",
        "ZEROMQ_TRUSTED_NETWORK",
        "ZEROMQ_UNIX_SOCKETS",
    ),
}
#: The words with which these names begin, and the packages.
_READERS = {
    name.partition("_")[0]: package for package, names in OF_PACKAGES.items() for name in names
}
#: Values that ask for nothing, so that nothing is missing if no package reads them.
_OFF = ("", "off")
#: How similar to a known name (0 to 1) an unknown one must be to count as misspelt.
_CLOSE = 0.75

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
    :ivar has_others: whether there are variables for :func:`other_variables` to look at.
    """

    default: str | None
    override: str | None
    join_timeout: float
    has_others: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from the environment.

        :raises SettingError: a variable has an invalid value.
        """
        returns_unpickling_errors(environ)  # read again for each such result; checked here
        others = any(_NEARLY_OURS.fullmatch(name) for name in environ if name not in VARIABLES)
        return cls(value(DEFAULT, environ), value(OVERRIDE, environ), join_timeout(environ), others)


@dataclass(frozen=True)
class OtherVariable:
    """A variable that begins like those of this project, and that the core does not read.

    :ivar owner: the backend, hook package or distribution that reads it; None if unknown.
    :ivar missing: the distribution that would read it, and is not installed; None otherwise.
    :ivar nearest: the known name that it is similar to; None if it is a known name, or resembles none.
    """

    name: str
    owner: str | None
    missing: str | None
    nearest: str | None

    @property
    def problem(self) -> str | None:
        """What is probably wrong, to follow the name; None if nothing is."""
        if self.missing is not None:
            return f"has no effect: {self.missing}, which reads it, is not installed"
        if self.nearest is not None:
            return f"is not read by any package of this project. Did you mean {self.nearest}?"
        return None


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


def other_variables(
    names: Iterable[str],
    distributions: Iterable[str | None],
    environ: Mapping[str, str] = os.environ,
) -> list[OtherVariable]:
    """Return the variables with the prefix of this project, or nearly that, that the core does not read.

    :param names: the names of the installed backends and hook packages.
    :param distributions: the packages that provide them.
    """
    owners = {name.upper().replace("-", "_"): name for name in names}
    installed = set(distributions)
    endings = {name.removeprefix(_PREFIX): name for name in VARIABLES}
    endings |= {word: _PREFIX + word for word in _READERS}
    endings |= {ending: _PREFIX + ending for known in OF_PACKAGES.values() for ending in known}
    variables = []
    for name in sorted(environ):
        match = _NEARLY_OURS.fullmatch(name)
        if name in VARIABLES or match is None:
            continue
        is_exact, ending = name.startswith(_PREFIX), match[1]
        owner = _owner(ending, owners) if is_exact else None
        reader = _owner(ending, _READERS) if is_exact else None
        if reader is not None and (owner is None or reader in installed):
            is_read = reader in {*installed, _AGENTS} or environ[name].lower() in _OFF
            owner, missing = owner or reader, None if is_read else reader
            similar = None if missing else _nearest_of(reader, ending)
            variables.append(OtherVariable(name, owner, missing, similar))
            continue
        close = difflib.get_close_matches(ending.upper(), endings, n=1, cutoff=_CLOSE)
        similar = endings[close[0]] if close and owner is None else None
        variables.append(OtherVariable(name, owner, None, similar))
    return variables


def is_of(backend: str, variable: OtherVariable) -> bool:
    """Return whether an installed backend reads the variables that begin like this one."""
    starts = variable.name.startswith(f"{_PREFIX}{backend.upper()}_")
    return starts and variable.owner is not None and variable.missing is None


def _nearest_of(package: str, ending: str) -> str | None:
    """Return the variable of a package that is most similar to ``ending``; None if it has ``ending``.

    The first word, which all of them share, does not count.
    """
    word, _, rest = ending.partition("_")
    if ending in OF_PACKAGES[package]:
        return None
    rests = [known.partition("_")[2] for known in OF_PACKAGES[package] if known.startswith(word)]
    close = nearest(rest, filter(None, rests))
    return None if close is None else f"{_PREFIX}{word}_{close}"


def _owner(ending: str, owners: Mapping[str, str]) -> str | None:
    return next((owners[word] for word in owners if f"{ending}_".startswith(f"{word}_")), None)


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
