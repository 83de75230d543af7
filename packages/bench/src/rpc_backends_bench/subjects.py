"""What is measured: backends with their options, from the command line or a file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

#: What stands behind a name that means torch's own backend, without this package in the processes.
OWN = "@torch"
#: What is compared with, where nobody says.
USUAL = "TENSORPIPE"

_SEPARATOR = re.compile(r",(?=\s*\w+=)")  # a comma in a value is not one


class SubjectError(Exception):
    """What was asked for cannot be measured; the text says what to do."""


@dataclass(frozen=True)
class Subject:
    """A backend as it is measured.

    :ivar label: what it is called in the results, where it is the only one of this name.
    :ivar name: as in ``BackendType``.
    :ivar options: for its construct handler.
    :ivar own: torch's own, in processes where no package of torch's entry points is loaded.
    :ivar peer: what is no backend of torch's RPC, by its name in :mod:`~.peers`; else empty.
    """

    label: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    own: bool = False
    peer: str = ""


def parse(text: str) -> Subject:
    """Return the subject that ``NAME[@torch][:key=value,...]`` means; a value is JSON, or else text.

    :raises SubjectError: it is not of that form.
    """
    name, _, given = text.partition(":")
    own = name.endswith(OWN)
    options = {}
    for one in _SEPARATOR.split(given) if given else ():
        key, equals, value = one.strip().partition("=")
        if not key or not equals:
            raise SubjectError(f"{text!r}: {one!r} is no option. Write NAME:key=value,key=value.")
        options[key] = _value(value)
    bare = name.removesuffix(OWN)
    if not bare:
        raise SubjectError(f"{text!r} names no backend. Write NAME:key=value,key=value.")
    return Subject(text, bare, options, own)


def read(file: Path) -> list[Subject]:
    """Return the subjects of a TOML file: a table each, whose name is the label.

    The key ``backend`` names the backend where the label does not; all others are its options.

    :raises SubjectError: it cannot be read, or is something else.
    """
    try:
        tables = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise SubjectError(f"{file} cannot be read: {error}") from error
    found = []
    for label, table in tables.items():
        if not isinstance(table, dict):
            raise SubjectError(
                f"{file}: {label!r} stands outside of a table. Write [NAME], and options below it."
            )
        options = dict(table)
        name = str(options.pop("backend", label))
        found.append(Subject(label, name.removesuffix(OWN), options, name.endswith(OWN)))
    return found


def arrange(
    named: Sequence[Subject],
    reference: Subject | None,
    plugins: Iterable[str],
    peers: Sequence[Subject] = (),
) -> list[Subject]:
    """Return all that is to be measured, each under a label of its own; the reference is last.

    :param reference: what to compare with, None for the usual: TENSORPIPE where it is named or only one
        backend is; torch's TENSORPIPE beside a package's; else the first.
    :param plugins: the backends that are from packages.
    :param peers: what else is measured; before the reference.
    :raises SubjectError: nothing was named.
    """
    check_named(named)
    subjects = list(named)
    if reference is None:
        usual = next((one for one in subjects if one.label == USUAL), None)
        if len(subjects) > 1:
            reference = usual or subjects[0]
            subjects.remove(reference)
        elif usual is None:
            reference = parse(USUAL)
        elif USUAL in plugins:
            reference = parse(USUAL + OWN)
        else:
            raise SubjectError(f"{USUAL} alone is nothing to compare. Name another, or use --vs.")
    elif len(subjects) > 1 and reference in subjects:
        subjects.remove(reference)
    return _unique([*subjects, *peers, reference])


def check_named(named: Sequence[Subject]) -> None:
    """Raise a :class:`SubjectError` if there is nothing to measure."""
    if not named:
        raise SubjectError("no backend is named. `rpc-backends list` shows those that are there.")


def _unique(subjects: Sequence[Subject]) -> list[Subject]:
    """Return the subjects with numbers after labels that come twice, as in a comparison with itself."""
    seen: dict[str, int] = {}
    result = []
    for one in subjects:
        seen[one.label] = count = seen.get(one.label, 0) + 1
        result.append(one if count == 1 else replace(one, label=f"{one.label} ({count})"))
    return result


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
