"""Reading an event log for a replay: which message met which faults."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpc_backends_faults import limits
from rpc_backends_faults.errors import RuleError
from rpc_backends_faults.kinds import HOUSEKEEPING, KINDS
from rpc_backends_faults.limits import is_count, is_number, shown
from rpc_backends_faults.patterns import matches
from rpc_backends_faults.regular_files import read_text
from rpc_backends_faults.rules import Length, Rule

#: receiver, type, digest, number, (rule, seconds) on the way, (rule, seconds) of the answer.
Entry = tuple[str, str, int, int, list[tuple[str, float]], list[tuple[str, float]]]


@dataclass
class Recording:
    """What one worker's log has.

    :ivar rules: as the agent takes them.
    """

    seed: int = 0
    rules: list[dict[str, Any]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


def file_name(worker: str, number: int) -> str:
    """Return the name of the log of a worker's ``number``-th agent in a folder."""
    return f"{worker}.jsonl" if number == 1 else f"{worker}.{number}.jsonl"


def find(place: Path, worker: str) -> Recording:
    """Return the recording of ``worker``.

    :param place: a folder with the logs of all workers, or a log.
    :raises RuleError: there is none, or it cannot be read.
    """
    path = place
    if place.is_dir():
        _found[worker, str(place)] += 1  # a process may start several agents, one after the other
        path = place / file_name(worker, _found[worker, str(place)])
    if not path.exists():
        raise RuleError(
            [
                f"there is nothing to replay for RPC worker {worker!r}: {path} is not there. Name the "
                "folder that RPC_BACKENDS_FAULTS_LOG named in the run to be replayed."
            ]
        )
    return read(path)


def read(path: Path) -> Recording:
    """Return what a log has.

    :raises RuleError: it is none, or asks for what no rule may ask for.
    """
    recording = Recording()
    rules: dict[str, dict[str, Any]] = {}
    open_: dict[int, Entry] = {}
    housekeeping: dict[int, bool] = {}
    started = False
    for number, event in events(path):
        line = _Line(event, f"{path}:{number}: ")
        kind = event.get("event")
        if kind in {"start", "rules"}:
            started = started or kind == "start"
            recording.seed = line.count("seed", 0)
            rules.update((rule["name"], rule) for rule in line.rules())
        elif kind == "request":
            entry: Entry = (
                line.text("to"),
                line.text("type"),
                line.digest(),
                line.count("nth", 1),
                line.faults(rules),
                [],
            )
            open_[line.count("id", 0)] = entry
            recording.entries.append(entry)
            housekeeping[len(recording.entries) - 1] = _is_housekeeping(event)
        elif kind == "end" and line.count("id", 0) in open_:
            open_[event["id"]][5].extend(line.faults(rules))
        if not started:
            raise RuleError([f"{path}:{number}: this is no event log of fault injection."])
    if not started:
        raise RuleError([f"{path} is empty: it is no event log of fault injection."])
    recording.rules = list(rules.values())
    # Calls by which a group starts and stops go as they may, unless something happened to them.
    recording.entries = [
        entry
        for number, entry in enumerate(recording.entries)
        if entry[4] or entry[5] or not housekeeping[number]
    ]
    return recording


def events(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the events of a log with their lines; a last line that was cut off is left out.

    :raises RuleError: it cannot be read, or a line is not JSON.
    """
    found = []
    lines = read_text(path, "event log", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            event = dict(json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            if number == len(lines):
                break  # its process was killed
            raise RuleError(
                [f"{path}:{number}: this is no line of an event log: {str(error)[:300]}"]
            ) from error
        found.append((number, event))
    return found


def _is_housekeeping(event: dict[str, Any]) -> bool:
    function = event.get("function", "")
    return isinstance(function, str) and any(matches(pattern, function) for pattern in HOUSEKEEPING)


class _Line:
    """An event whose members are checked as they are read.

    :param where: the file and the line, for errors.
    """

    def __init__(self, event: dict[str, Any], where: str) -> None:
        self._event = event
        self._where = where

    def error(self, text: str) -> RuleError:
        return RuleError([f"{self._where}{text}"])

    def text(self, key: str) -> str:
        value = self._member(key)
        if not isinstance(value, str):
            raise self.error(f"{key!r} is {shown(value)}; it must be a text.")
        return value

    def count(self, key: str, least: int) -> int:
        value = self._member(key)
        if not is_count(value, least):
            raise self.error(
                f"{key!r} is {shown(value)}; it must be a whole number, {least} or more."
            )
        return int(value)

    def digest(self) -> int:
        value = self.text("digest")
        if not _DIGEST.fullmatch(value):
            raise self.error(f"'digest' is {shown(value)}; it must be 64 bits in hexadecimal.")
        return int(value, 16)

    def rules(self) -> list[dict[str, Any]]:
        found = self._member("rules")
        if not isinstance(found, list):
            raise self.error(f"'rules' is {shown(found)}; it must be a list.")
        for rule in found:
            if not isinstance(rule, dict):
                raise self.error(f"'rules' has {shown(rule)}; a rule is an object.")
            name = rule.get("name")
            if not isinstance(name, str):
                raise self.error("a rule has no 'name'.")
            for key, value in rule.items():
                if not _may_be(key, value):
                    raise self.error(
                        f"the rule {shown(name)} has {shown(key)} {shown(value)}, which no rule may have."
                    )
        return found

    def faults(self, rules: Mapping[str, Any]) -> list[tuple[str, float]]:
        found = []
        faults = self._event.get("faults", [])
        if not isinstance(faults, list):
            raise self.error(f"'faults' is {shown(faults)}; it must be a list.")
        for fault in faults:
            rule, seconds = (
                (fault.get("rule"), fault.get("seconds"))
                if isinstance(fault, dict)
                else (None, None)
            )
            if not isinstance(rule, str) or not is_number(seconds, 0, limits.MOST_SECONDS):
                raise self.error(
                    f"a fault is {shown(fault)}; it must have a 'rule' and 'seconds', "
                    f"{limits.MOST_SECONDS:.0f} at most."
                )
            if rule not in rules:
                raise self.error(
                    f"a fault is of the rule {shown(rule)}, which the log does not have."
                )
            found.append((rule, float(seconds)))  # type: ignore[arg-type]  # is_number
        return found

    def _member(self, key: str) -> Any:
        if key not in self._event:
            raise self.error(f"{key!r} is missing.")
        return self._event[key]


def _may_be(key: str, value: Any) -> bool:
    """Tell whether a rule may have such a member, in the form that the agent in C++ takes."""
    if key == "what":
        return isinstance(value, str) and value in KINDS
    if key in _BOUNDS:
        return is_number(value, *_BOUNDS[key])
    default = _TEMPLATE.get(key)
    if isinstance(default, list):
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if type(default) is int:
        least, most = _COUNTS.get(key, (0, limits.MOST_COUNT))
        return is_count(value, least, most)
    return type(value) is type(default)


_DIGEST = re.compile(r"[0-9a-f]{1,16}")
#: A rule with every member that the agent in C++ takes.
_TEMPLATE = Rule("", "", end=0.0, exit_code=0, length=Length(0.0)).native()
_BOUNDS = {
    **dict.fromkeys(("start", "end", "seconds", "spread", "bound"), (0, limits.MOST_SECONDS)),
    "probability": (0, 1),
    "rate": (0, limits.MOST_RATE),
}
_COUNTS = {
    "every": (1, limits.MOST_COUNT),
    "copies": (1, limits.MOST_COPIES),
    "exit_code": (0, 255),
}
_found: Counter[tuple[str, str]] = Counter()
