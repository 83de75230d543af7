"""The variables ``RPC_BACKENDS_...`` that other packages read: which are misspelt, or read by none.

A package declares its variables with an entry point in the group ``rpc.backends.variables``. Its name is
the first word of the variables after the prefix, and its object is a mapping of their names to their
meanings, or a function that returns it. The object is imported only if such a variable, or nearly such
one, is set.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rpc_backends_core import _discovery
from rpc_backends_core._record import Record
from rpc_backends_core._settings import NEARLY_OURS, PREFIX, VARIABLES, nearest

#: The first words of the variables of this project's packages. They are listed here so that a variable is
#: noticed whose package is not installed.
PACKAGES = {
    "AGENTS": "rpc-backends-agents",
    "DUMP": "rpc-backends-inspect",
    "FAULTS": "rpc-backends-faults",
    "GUARD": "rpc-backends-guard",
    "OTEL": "rpc-backends-opentelemetry",
    "RECORDER": "rpc-backends-inspect",
    "UCX": "rpc-backend-ucx",
    "ZEROMQ": "rpc-backend-zeromq",
}
#: It has neither a backend nor a hook, so nothing says whether a lock allows to import it.
_AGENTS = {"AGENTS": ["AGENTS_ANY_TORCH"]}
#: The first words of variables that ask for a protection.
_PROTECTING = ("GUARD",)
_UNUSABLE = ("denied", "conflict", "invalid")
#: Values that ask for nothing, so that nothing is missing if no package reads them.
_OFF = ("", "off")
#: How similar to a known name (0 to 1) an unknown one must be to count as misspelt.
_CLOSE = 0.75


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

    @property
    def protects(self) -> bool:
        """Whether it asks, or is probably meant to ask, for a protection of the worker."""
        meant = self.nearest or self.name
        return _first_word(meant.removeprefix(PREFIX), _PROTECTING) is not None

    def is_of(self, backend: str) -> bool:
        """Return whether an installed backend reads the variables that begin like this one."""
        starts = self.name.startswith(f"{PREFIX}{backend.upper()}_")
        return starts and self.owner is not None and self.missing is None


def other_variables(
    records: Iterable[Record],
    environ: Mapping[str, str],
    declarations: Iterable[Record],
) -> list[OtherVariable]:
    """Return the variables with the prefix of this project, or nearly that, that the core does not read.

    :param records: the installed backends and hook packages.
    :param declarations: the entry points with which packages declare variables.
        Only packages are imported that have a backend or a hook that may be used.
    """
    records = list(records)
    usable = {record.distribution for record in records if record.state not in _UNUSABLE}
    readers = {
        declaration.name: declaration
        for declaration in declarations
        if declaration.distribution in usable
    }
    packages = {
        **PACKAGES,
        **{word: declaration.distribution for word, declaration in readers.items()},
    }
    owners = {record.name.upper().replace("-", "_"): record.name for record in records}
    installed = {*(record.distribution for record in records), PACKAGES["AGENTS"]}
    variables = []
    for name in sorted(environ):
        match = NEARLY_OURS.fullmatch(name)
        if name in VARIABLES or match is None:
            continue
        is_exact, ending = name.startswith(PREFIX), match[1]
        owner = owners.get(_first_word(ending, owners) or "") if is_exact else None
        word = _first_word(ending, packages) if is_exact else None
        package = packages.get(word or "")
        if word is not None and (owner is None or package in installed):
            is_off = environ[name].lower() in _OFF and word not in _PROTECTING
            is_read = package in installed or is_off
            similar = _misspelt(ending, word, _endings(word, readers)) if is_read else None
            missing = None if is_read else package
            variables.append(OtherVariable(name, owner or package, missing, similar))
            continue
        similar = None if owner is not None else _similar(ending.upper(), packages, readers)
        variables.append(OtherVariable(name, owner, None, similar))
    return variables


def _first_word(ending: str, words: Iterable[str]) -> str | None:
    return next((word for word in words if f"{ending}_".startswith(f"{word}_")), None)


def _endings(word: str, readers: Mapping[str, Record]) -> list[str]:
    """Return the variables that begin with a word, without the prefix; empty if they are not known."""
    if word in _AGENTS:
        return _AGENTS[word]
    if word not in readers:
        return []
    try:
        declared = _discovery.load(readers[word])
        names = list(declared() if callable(declared) else declared)
    except Exception:  # a broken package must not stop a program that does not use it
        return []
    endings = [name.removeprefix(PREFIX) for name in names]
    return [ending for ending in endings if _first_word(ending, [word])]


def _misspelt(ending: str, word: str, known: Collection[str]) -> str | None:
    """Return the known variable that is most similar to ``ending``; None if ``ending`` is known.

    The first word, which all of them share, does not count.
    """
    if ending in known:
        return None
    rests = [name.partition("_")[2] for name in known]
    close = nearest(ending.partition("_")[2], filter(None, rests))
    return None if close is None else f"{PREFIX}{word}_{close}"


def _similar(ending: str, words: Iterable[str], readers: Mapping[str, Record]) -> str | None:
    """Return the variable of any package, or of the core, that is most similar to ``ending``."""
    endings = [name.removeprefix(PREFIX) for name in VARIABLES]
    for word in words:
        endings.append(word)
        if difflib.get_close_matches(ending.partition("_")[0], [word], cutoff=_CLOSE):
            endings += _endings(word, readers)
    close = difflib.get_close_matches(ending, endings, n=1, cutoff=_CLOSE)
    return PREFIX + close[0] if close else None
