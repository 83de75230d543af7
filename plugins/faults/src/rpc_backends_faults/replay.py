"""Reads an event log for a replay: which fault affected which message."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpc_backends_faults.files import read_text
from rpc_backends_faults.rules import (
    HOUSEKEEPING,
    KINDS,
    MOST_BIT,
    MOST_COPIES,
    MOST_COUNT,
    MOST_RATE,
    MOST_SECONDS,
    Length,
    Rule,
    RuleError,
    is_count,
    is_number,
    matches,
    shown,
)

#: Faults of a message: the index of the rule in the recording, and seconds.
Faults = list[tuple[int, float]]
#: receiver, type, function, digest, number, seconds since the start; faults of request, faults of reply.
Entry = tuple[str, str, str, int, int, float, Faults, Faults]
#: Seconds that a message may be later than in the recorded run before the replay reports it.
STALL_TIMEOUT = 30.0
#: Bytes of a log's first line that are read to find its process.
_MOST_FIRST = 2**22


@dataclass
class Recording:
    """The contents of one worker's log.

    :ivar rules: in the form that the C++ interceptor uses; with all versions of a rule that was changed
        while the program ran.
    """

    seed: int = 0
    rules: list[dict[str, Any]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def has(self, rule: Rule) -> bool:
        """Return whether the recording has a rule; the name of an unnamed rule may differ."""
        native = rule.native()
        return any(
            {**native, "name": recorded["name"]} == recorded
            and (not rule.named or recorded["name"] == rule.name)
            for recorded in self.rules
        )


def file_name(worker: str, number: int) -> str:
    """Return the file name of the log of a worker's ``number``-th agent."""
    return f"{worker}.jsonl" if number == 1 else f"{worker}.{number}.jsonl"


def find(place: Path, worker: str) -> Recording:
    """Return the recording of ``worker``.

    :param place: a folder with the logs of all workers, or a log.
    :raises RuleError: there is no log, it cannot be read, or the folder has logs of several runs.
    """
    path = place
    if place.is_dir():
        refuse_several_runs(place, worker)
        _found[worker, str(place)] += 1  # a process may start several agents, one after the other
        path = place / file_name(worker, _found[worker, str(place)])
    if not path.exists():
        raise RuleError(
            [
                f"there is no log to replay for RPC worker {worker!r}: {path} does not exist. Replay the "
                "folder that RPC_BACKENDS_FAULTS_LOG named in the recorded run."
            ]
        )
    return read(path)


def read(path: Path) -> Recording:
    """Return the recording in a log.

    :raises RuleError: the file is not an event log, or it has values that no rule may have.
    """
    recording = Recording()
    open_: dict[int, Entry] = {}
    housekeeping: dict[int, bool] = {}
    start = 0.0
    lines = [(event, _Line(event, f"{path}:{number}: ")) for number, event in events(path)]
    # Rules first: the line with a changed rule may come after the first faults that it caused.
    versions = _rules(lines, recording)
    for event, line in lines:
        kind = event.get("event")
        if kind == "start":
            start = line.seconds("t")
        elif kind == "request":
            entry: Entry = (
                line.text("to"),
                line.text("type"),
                line.text("function", ""),
                line.digest(),
                line.count("nth", 1),
                max(0.0, line.seconds("t") - start),
                line.faults(versions),
                [],
            )
            open_[line.count("id", 0)] = entry
            recording.entries.append(entry)
            housekeeping[len(recording.entries) - 1] = is_housekeeping(event)
        elif kind == "end" and line.count("id", 0) in open_:
            open_[event["id"]][-1].extend(line.faults(versions))
    # The order of calls that start and stop a group may vary, so those without faults are left out.
    recording.entries = [
        entry
        for number, entry in enumerate(recording.entries)
        if entry[-2] or entry[-1] or not housekeeping[number]
    ]
    return recording


def _rules(
    lines: Iterable[tuple[dict[str, Any], _Line]], recording: Recording
) -> dict[int, dict[str, int]]:
    """Add the rules of a log to the recording; return their indices there, by version and name."""
    versions: dict[int, dict[str, int]] = {}
    for event, line in lines:
        if event.get("event") not in {"start", "rules"}:
            continue
        seed = line.count("seed", 0)
        if not versions:
            recording.seed = seed
        version = line.count("version", 0) if "version" in event else len(versions)
        places = versions.setdefault(version, {})
        for rule in line.rules():
            if rule not in recording.rules:
                recording.rules.append(rule)
            places[rule["name"]] = recording.rules.index(rule)
    return versions


def refuse_several_runs(folder: Path, worker: str) -> None:
    """Check that a worker's logs in a folder are from one process.

    :raises RuleError: they are from several, so it is not clear which run to replay.
    """
    if len(processes(folder, worker)) > 1:
        names = ", ".join(path.name for path in logs(folder, worker))
        raise RuleError(
            [
                f"{folder} has logs of several processes of RPC worker {worker!r} ({names}), probably "
                "from several runs, and a replay needs the logs of one run. Replay a folder with one "
                "run, or a single log. Set RPC_BACKENDS_FAULTS_LOG to a new folder for each run."
            ]
        )


def logs(folder: Path, worker: str) -> list[Path]:
    """Return a worker's logs in a folder, oldest first."""
    paths = itertools.takewhile(
        Path.exists, (folder / file_name(worker, number) for number in itertools.count(1))
    )
    return list(paths)


def processes(folder: Path, worker: str) -> set[Any]:
    """Return the identifiers of the processes that wrote a worker's logs in a folder."""
    ids = set()
    for path in logs(folder, worker):
        try:
            with path.open("rb") as file:
                start = json.loads(file.readline(_MOST_FIRST))
            ids.add(str(start.get("process", start.get("pid"))))
        except (OSError, ValueError, AttributeError, RecursionError):
            ids.add(str(path))  # read() reports the problem, if this log is read
    return ids


def events(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the events of a log with their line numbers, without a last line that was cut off.

    :raises RuleError: the file cannot be read or is not an event log, or a line is not valid JSON.
    """
    numbered = []
    # Not at the separators of Unicode, which may be in a line.
    lines = read_text(path, "event log", errors="replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            event = dict(json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            if number == len(lines) > 1:
                break  # the process was killed while it wrote
            raise RuleError(
                [f"{path}:{number}: this is not a line of an event log: {str(error)[:300]}"]
            ) from error
        numbered.append((number, event))
    if not numbered:
        raise RuleError([f"{path} is empty: it is not an event log of fault injection."])
    if numbered[0][1].get("event") != "start":
        raise RuleError(
            [
                f"{path}:1: this is not an event log of fault injection, whose first event is start. "
                "Name a file from the folder that RPC_BACKENDS_FAULTS_LOG named."
            ]
        )
    return numbered


def is_housekeeping(event: dict[str, Any]) -> bool:
    """Return whether a message of a log starts or stops a group; rules skip it by default."""
    function = event.get("function", "")
    return isinstance(function, str) and any(matches(pattern, function) for pattern in HOUSEKEEPING)


class _Line:
    """An event whose members are checked when they are read.

    :param where: the file and the line, for error messages.
    """

    def __init__(self, event: dict[str, Any], where: str) -> None:
        self._event = event
        self._where = where

    def error(self, text: str) -> RuleError:
        return RuleError([f"{self._where}{text}"])

    def text(self, key: str, default: str | None = None) -> str:
        value = self._member(key) if default is None else self._event.get(key, default)
        if not isinstance(value, str):
            raise self.error(f"{key!r} is {shown(value)}; it must be a string.")
        return value

    def count(self, key: str, least: int) -> int:
        value = self._member(key)
        if not is_count(value, least):
            raise self.error(
                f"{key!r} is {shown(value)}; it must be a whole number, {least} or more."
            )
        return int(value)

    def seconds(self, key: str) -> float:
        value = self._member(key)
        if not is_number(value, 0, 1e15):
            raise self.error(f"{key!r} is {shown(value)}; it must be a time in seconds.")
        return float(value)

    def digest(self) -> int:
        value = self.text("digest")
        if not _DIGEST.fullmatch(value):
            raise self.error(f"'digest' is {shown(value)}; it must be 64 bits in hexadecimal.")
        return int(value, 16)

    def rules(self) -> list[dict[str, Any]]:
        rules = self._member("rules")
        if not isinstance(rules, list):
            raise self.error(f"'rules' is {shown(rules)}; it must be a list.")
        for rule in rules:
            if not isinstance(rule, dict):
                raise self.error(f"'rules' has {shown(rule)}; each rule must be an object.")
            name = rule.get("name")
            if not isinstance(name, str):
                raise self.error("a rule has no 'name'.")
            for key, value in rule.items():
                if not _may_be(key, value):
                    raise self.error(
                        f"the rule {shown(name)} has {shown(key)} = {shown(value)}, which is not valid."
                    )
        return rules

    def faults(self, versions: Mapping[int, Mapping[str, int]]) -> Faults:
        places: Faults = []
        faults = self._event.get("faults", [])
        if not isinstance(faults, list):
            raise self.error(f"'faults' is {shown(faults)}; it must be a list.")
        for fault in faults:
            rule, seconds = (
                (fault.get("rule"), fault.get("seconds"))
                if isinstance(fault, dict)
                else (None, None)
            )
            if not isinstance(rule, str) or not is_number(seconds, 0, MOST_SECONDS):
                raise self.error(
                    f"a fault is {shown(fault)}; it must have a 'rule' and 'seconds', which is at most "
                    f"{MOST_SECONDS:.0f}."
                )
            version = fault.get("version", 0)
            place = versions.get(version, {}).get(rule) if is_count(version, 0) else None
            if place is None:
                raise self.error(
                    f"a fault names the rule {shown(rule)}, which is not in the log"
                    + (f" in version {shown(version)}." if version else ".")
                )
            places.append((place, float(seconds)))  # type: ignore[arg-type]  # is_number
        return places

    def _member(self, key: str) -> Any:
        if key not in self._event:
            raise self.error(f"{key!r} is missing.")
        return self._event[key]


def _may_be(key: str, value: Any) -> bool:
    """Return whether a rule in the C++ interceptor's form may have this member."""
    if key == "what":
        return isinstance(value, str) and value in KINDS
    if key in _BOUNDS:
        return is_number(value, *_BOUNDS[key])
    default = _TEMPLATE.get(key)
    if isinstance(default, list):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if type(default) is int:
        least, most = _COUNTS.get(key, (0, MOST_COUNT))
        return is_count(value, least, most)
    return type(value) is type(default)


_DIGEST = re.compile(r"[0-9a-f]{1,16}")
#: A rule with every member that the C++ interceptor knows.
_TEMPLATE = Rule("", "", end=0.0, exit_code=0, element=0, bit=0, length=Length(0.0)).native()
_BOUNDS = {
    **dict.fromkeys(("start", "end", "seconds", "spread", "bound", "each"), (0, MOST_SECONDS)),
    "probability": (0, 1),
    "rate": (0, MOST_RATE),
    "by": (-MOST_SECONDS, MOST_SECONDS),
}
_COUNTS = {
    "every": (1, MOST_COUNT),
    "copies": (1, MOST_COPIES),
    "exit_code": (0, 255),
    "bit": (0, MOST_BIT),
}
_found: Counter[tuple[str, str]] = Counter()
