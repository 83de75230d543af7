"""Subjects: the backends to measure, with their options, from the command line or a file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

#: Suffix of a name that means torch's own backend, in processes without this package.
TORCH_SUFFIX = "@torch"
#: The reference if none is given.
DEFAULT_REFERENCE = "TENSORPIPE"

_SEPARATOR = re.compile(r",(?=\s*\w+=)")  # a comma within a value does not match


class SubjectError(Exception):
    """A requested subject cannot be measured; the text says what to do."""


@dataclass(frozen=True)
class Subject:
    """A backend with its options, or a peer.

    :ivar label: its name in the results; :func:`arrange` makes labels unique.
    :ivar name: the backend's name in ``BackendType``.
    :ivar options: keyword arguments for the backend's construct handler.
    :ivar own: measure torch's own backend, in processes that load no package that extends torch.
    :ivar peer: the name in :mod:`~.peers` if it is no backend of torch's RPC, else empty.
    """

    label: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    own: bool = False
    peer: str = ""


def parse(text: str) -> Subject:
    """Parse ``NAME[@torch][:key=value,...]``; a value that is not JSON is taken as text.

    :raises SubjectError: ``text`` does not have that form.
    """
    name, _, given = text.partition(":")
    own = name.endswith(TORCH_SUFFIX)
    options = {}
    for part in _SEPARATOR.split(given) if given else ():
        key, equals, value = part.strip().partition("=")
        if not key or not equals:
            raise SubjectError(
                f"{text!r}: {part!r} is not of the form key=value. Write NAME:key=value,key=value."
            )
        options[key] = _value(value)
    bare = name.removesuffix(TORCH_SUFFIX)
    if not bare:
        raise SubjectError(
            f"{text!r} does not name a backend. Write NAME or NAME:key=value,key=value."
        )
    return Subject(text, bare, options, own)


def read(file: Path) -> list[Subject]:
    """Return the subjects in a TOML file, which has a table for each; the table's name is the label.

    The key ``backend`` names the backend if the label is another name. All other keys are options.

    :raises SubjectError: the file cannot be read, or has something outside of tables.
    """
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SubjectError(f"{file} cannot be read: {error}") from error
    subjects = []
    for label, table in tables.items():
        if not isinstance(table, dict):
            raise SubjectError(
                f"{file}: {label!r} is not in a table. Write [NAME] and put the options below it."
            )
        options = dict(table)
        name = str(options.pop("backend", label))
        subjects.append(
            Subject(label, name.removesuffix(TORCH_SUFFIX), options, name.endswith(TORCH_SUFFIX))
        )
    return subjects


def find(text: str, among: Iterable[Subject]) -> Subject:
    """Return the subject with the label ``text``; if there is none, parse ``text``.

    :raises SubjectError: see :func:`parse`.
    """
    return next((subject for subject in among if subject.label == text), None) or parse(text)


def arrange(
    named: Sequence[Subject],
    reference: Subject | None,
    plugins: Iterable[str],
    peers: Sequence[Subject] = (),
) -> list[Subject]:
    """Return everything to measure, each with a unique label; the reference is last.

    :param reference: the reference. By default, several backends are compared with TENSORPIPE if it is
        among them, else with the first. A single backend is compared with TENSORPIPE, and a package's
        TENSORPIPE with torch's own.
    :param plugins: names of the backends that come from packages.
    :param peers: peers, which stand before the reference.
    :raises SubjectError: no backend is named, or there is nothing to compare it with.
    """
    check_named(named)
    subjects = list(named)
    if reference is None:
        usual = next((subject for subject in subjects if subject.label == DEFAULT_REFERENCE), None)
        if len(subjects) > 1:
            reference = usual or subjects[0]
            subjects.remove(reference)
        elif usual is None:
            reference = parse(DEFAULT_REFERENCE)
        elif DEFAULT_REFERENCE in plugins:
            reference = parse(DEFAULT_REFERENCE + TORCH_SUFFIX)
        else:
            raise SubjectError(
                f"{DEFAULT_REFERENCE} alone has nothing to be compared with. Name another backend, or "
                "use --vs."
            )
    elif len(subjects) > 1 and reference in subjects:
        subjects.remove(reference)
    return _unique([*subjects, *peers, reference])


def check_named(named: Sequence[Subject]) -> None:
    """Raise a :class:`SubjectError` if no backend is named."""
    if not named:
        raise SubjectError("name at least one backend. `rpc-backends list` shows those installed.")


def _unique(subjects: Sequence[Subject]) -> list[Subject]:
    """Return the subjects with a number added to each repeated label."""
    seen: dict[str, int] = {}
    result = []
    for subject in subjects:
        seen[subject.label] = count = seen.get(subject.label, 0) + 1
        result.append(
            subject if count == 1 else replace(subject, label=f"{subject.label} ({count})")
        )
    return result


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
