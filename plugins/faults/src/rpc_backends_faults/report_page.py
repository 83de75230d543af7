"""Turns event logs into one self-contained HTML page."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

from rpc_backends_faults.replay import events
from rpc_backends_faults.rules import KINDS, Length, Rule, RuleError
from rpc_backends_faults.words import explain

_DATA = "/*DATA*/null"
#: Bytes read from the end of a log to find its last lines.
_TAIL = 1 << 20
#: Events that the page shows elsewhere, so they are not among its other events.
_NOT_NOTES = frozenset({"start", "counts", "sent", "end", "end of log"})
#: Members of a rule in a log whose key in a rule file differs.
_KEYS = {
    "messages": "message",
    "senders": "sender",
    "receivers": "receiver",
    "functions": "function",
    "bound": "within",
}


@dataclass
class Story:
    """The merged contents of several workers' logs.

    :ivar data: `logs`, `workers` (names), `rules`, `messages`, `notes`; times are in seconds since the
        earliest event.
    """

    data: dict[str, Any]

    def page(self) -> str:
        """Return the page as HTML."""
        template = resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")
        # The data is inside a script element; without "<" it cannot close that element.
        data = json.dumps(_packed(self.data), separators=(",", ":")).replace("<", "\\u003c")
        return template.replace(_DATA, data)

    def summary(self) -> str:
        """Return one line with the numbers, and a line for each log that is cut off."""
        faults = sum(len(message["faults"]) for message in self.data["messages"])
        lines = [
            f"{len(self.data['messages'])} messages of {len(self.data['workers'])} workers, "
            f"{faults} faults",
            *(f"{log['file']} {log['ending']}" for log in self.data["logs"] if log["cut_off"]),
        ]
        return "\n".join(lines)


def log_files(place: Path) -> list[Path]:
    """Return the logs in a folder; for a file, the file itself."""
    return sorted(place.glob("*.jsonl")) if place.is_dir() else [place]


def story(places: Iterable[Path]) -> Story:
    """Read event logs and merge them.

    :param places: event logs, or folders of event logs.
    :raises ValueError: a file is not an event log, or there are no logs.
    """
    files = [file for place in places for file in log_files(place)]
    if not files:
        raise ValueError(
            "there are no event logs (*.jsonl) in the given folders. Run the program with "
            "RPC_BACKENDS_FAULTS_LOG=FOLDER to write them."
        )
    reader = _Reader()
    for file in files:
        reader.add(file)
    return reader.story()


def cut_off(file: Path) -> str | None:
    """Return in words how a log is cut off, or None if it is complete; reads only its last lines.

    :raises OSError: the log cannot be read.
    """
    with _opened(file) as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - _TAIL))
        lines = log.read().decode(errors="replace").split("\n")
    crash = ""
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(event, dict):
            continue
        if event.get("event") == "end of log":
            return None
        if event.get("event") == "request":
            crash = crash or _crash_of(event)
    return _cut_off(lines[-1] != "", crash)


def _opened(file: Path) -> BinaryIO:
    """Open a log without waiting. A FIFO can be opened too, but fails later: it cannot seek."""
    return open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))


def _cut_off(torn: bool, crash: str) -> str:
    where = "in the middle of a line" if torn else "before its end"
    if crash:
        return f"stops {where}: the fault rule {crash!r} ended the process"
    return (
        f"is cut off: it stops {where}. Its process was killed, did not shut down RPC, or could not "
        "write the log (for example, the disk was full). Later events are missing."
    )


def _crash_of(request: dict[str, Any]) -> str:
    """Return the name of the crash rule that a request triggered; empty if there is none."""
    faults = request.get("faults", [])
    return next((str(fault["rule"]) for fault in faults if fault.get("what") == "crash"), "")


@dataclass
class _Log:
    """The state while a log is read.

    :ivar force: the active rules: by name, the index in the list of all rules.
    :ivar looked_at: by that index, the messages that the rule has matched since it became active.
    :ivar done: the same for earlier periods in which the rule was active.
    :ivar uncounted: the indices of rules for which the log does not have that number.
    """

    file: str
    facts: dict[str, Any] = field(default_factory=dict)
    force: dict[str, int] = field(default_factory=dict)
    looked_at: dict[int, int] = field(default_factory=dict)
    done: Counter[int] = field(default_factory=Counter)
    uncounted: set[int] = field(default_factory=set)
    messages: int = 0
    faults: int = 0
    first: float = 0.0
    last: float = 0.0
    crash: str = ""
    ended: bool = False


class _Reader:
    def __init__(self) -> None:
        self._logs: list[tuple[_Log, str]] = []
        self._rules: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}
        self._messages: list[dict[str, Any]] = []
        self._notes: list[dict[str, Any]] = []

    def add(self, file: Path) -> None:
        log = _Log(str(file))
        open_: dict[int, dict[str, Any]] = {}
        for number, event in events(file):
            try:
                self._add_event(log, open_, event)
            except (KeyError, TypeError, AttributeError) as error:
                missing = isinstance(error, KeyError)
                problem = f"it lacks {error}" if missing else f"a value has a wrong type: {error}"
                raise RuleError(
                    [f"{file}:{number}: this is not an event of fault injection: {problem}."]
                ) from error
        self._end_force(log, {})
        for place in log.uncounted:
            self._rules[place]["uncounted"] += 1
        for place, seen in log.done.items():
            self._rules[place]["looked_at"] += seen
        with _opened(file) as written:
            written.seek(-1, os.SEEK_END)
            torn = written.read() != b"\n"
        self._logs.append((log, "is complete" if log.ended else _cut_off(torn, log.crash)))

    def _add_event(
        self, log: _Log, open_: dict[int, dict[str, Any]], event: dict[str, Any]
    ) -> None:
        kind, at = event["event"], float(event["t"])
        if kind == "start":
            log.facts = {
                key: event.get(key)
                for key in ("worker", "backend", "torch", "seed", "pid", "replay", "workers")
            }
            log.first = at
        log.last = at
        worker = log.facts["worker"]
        if kind in {"start", "rules"}:
            log.facts["seed"] = event["seed"]
            self._force(log, event["rules"])
        elif kind in {"counts", "end of log"}:
            # Logs of earlier versions do not have looked_at.
            looked_at = event.get("looked_at", {})
            log.looked_at |= {
                log.force[name]: seen for name, seen in looked_at.items() if name in log.force
            }
            log.ended = kind == "end of log"
        elif kind == "request":
            open_[event["id"]] = self._request(worker, event)
            log.messages += 1
            self._count(log, event)
            log.crash = log.crash or _crash_of(event)
        elif kind == "sent" and event["id"] in open_:
            open_[event["id"]]["sent"] = at
        elif kind == "end" and event["id"] in open_:
            message = open_[event["id"]]
            message["end"] = at
            message["outcome"] = event["outcome"]
            message["text"] = event.get("text", "")
            message["faults"] += [{**fault, "of_answer": True} for fault in event.get("faults", [])]
            self._count(log, event)
        if kind not in _NOT_NOTES and kind != "request":
            note = {key: value for key, value in event.items() if key not in {"t", "rules"}}
            if kind == "rules":
                note["in force"] = ", ".join(log.force) or "none"
            self._notes.append({"t": at, "worker": worker, **note})

    def _force(self, log: _Log, rules: list[dict[str, Any]]) -> None:
        """Make these the active rules. A rule with changed settings is a new rule on the page."""
        force = {}
        for rule in rules:
            key = json.dumps(rule, sort_keys=True)
            if key not in self._places:
                self._places[key] = len(self._rules)
                self._rules.append(_described(rule))
            place = self._places[key]
            force[rule["name"]] = place
            workers = self._rules[place]["workers"]
            workers += [log.facts["worker"]] if log.facts["worker"] not in workers else []
        self._end_force(log, force)
        log.force = force

    def _end_force(self, log: _Log, force: dict[str, int]) -> None:
        staying = set(force.values())
        for place in set(log.force.values()) - staying:
            if place in log.looked_at:
                log.done[place] += log.looked_at.pop(place)
            else:
                log.uncounted.add(place)

    def _count(self, log: _Log, event: dict[str, Any]) -> None:
        for fault in event.get("faults", []):
            log.faults += 1
            place = log.force.get(fault["rule"])
            if place is None:  # the rule was removed while this message was on its way
                named = (i for i, rule in enumerate(self._rules) if rule["name"] == fault["rule"])
                place = max(named)
            self._rules[place]["acted"] += 1

    def _request(self, worker: str, event: dict[str, Any]) -> dict[str, Any]:
        message = {
            "from": worker,
            "to": event["to"],
            "type": event["type"],
            "inside": event.get("inside", []),
            "function": event.get("function", ""),
            "bytes": event["bytes"],
            "begin": event["t"],
            "sent": event["t"],
            "end": None,
            "outcome": "open",
            "text": "",
            "faults": list(event.get("faults", [])),
        }
        self._messages.append(message)
        return message

    def story(self) -> Story:
        first = min(log.first for log, _ in self._logs)
        for message in self._messages:
            for key in ("begin", "sent", "end"):
                if message[key] is not None:
                    message[key] = round(message[key] - first, 6)
        for note in self._notes:
            note["t"] = round(note["t"] - first, 6)
        logs = [
            {
                "file": log.file,
                **{key: value for key, value in log.facts.items() if key != "workers"},
                "messages": log.messages,
                "faults": log.faults,
                "first": round(log.first - first, 6),
                "last": round(log.last - first, 6),
                "time": log.first,
                "cut_off": not log.ended,
                "ending": ending,
            }
            for log, ending in self._logs
        ]
        named = {name for log, _ in self._logs for name in log.facts.get("workers") or []}
        workers = {log.facts["worker"] for log, _ in self._logs}
        others = {message["to"] for message in self._messages} | named
        return Story(
            {
                "logs": logs,
                "workers": [*sorted(workers), *sorted(others - workers)],
                "rules": self._rules,
                "messages": sorted(self._messages, key=lambda message: float(message["begin"])),
                "notes": sorted(self._notes, key=lambda note: float(note["t"])),
            }
        )


# --- rules ----------------------------------------------------------------------------------------


def _described(rule: dict[str, Any]) -> dict[str, Any]:
    """Return a rule from a log in the form that the page uses.

    `looked_at` counts the messages that it matched; `uncounted` the logs without that number.
    """
    return {
        "name": rule["name"],
        "what": rule["what"],
        "words": words(rule),
        "terms": _terms(rule),
        "workers": [],
        "acted": 0,
        "looked_at": 0,
        "uncounted": 0,
    }


def words(rule: dict[str, Any]) -> str:
    """Explain a rule from a log in words; returns only its kind if the rule is not valid."""
    given = {_KEYS.get(key, key): value for key, value in rule.items()}
    plural = {"message", "sender", "receiver", "function"}
    given |= {f"{key}s": tuple(given.pop(key)) for key in plural if key in given}
    length = [given.pop(key) for key in ("seconds", "shape", "spread") if key in given]
    try:
        return explain(Rule(**given, length=Length(*length) if length else None))
    except (TypeError, KeyError, ValueError):
        return str(rule["what"])


def _terms(rule: dict[str, Any]) -> str:
    """Return the settings of a rule as in a rule file, without those that have default values."""
    usual = Rule("", "").native()
    kind = KINDS.get(rule["what"])
    own = kind.needs | kind.takes if kind else frozenset()
    terms = []
    for member, value in rule.items():
        key = _KEYS.get(member, member)
        said = value != usual.get(member) or (key in own and value not in ("", [], False))
        if said and member not in {"name", "what", "seconds", "shape", "spread"}:
            terms.append(f"{key} = {json.dumps(value)}")
    if "seconds" in rule:
        terms.append(f"seconds = {_length(rule)}")
    return "\n".join(terms)


def _length(rule: dict[str, Any]) -> str:
    shape, seconds = rule.get("shape"), rule["seconds"]
    if shape in {"uniform", "normal"}:
        return f"{{{shape} = [{seconds:g}, {rule['spread']:g}]}}"
    return f"{{exponential = {seconds:g}}}" if shape == "exponential" else f"{seconds:g}"


# --- for the page -----------------------------------------------------------------------------------


def _packed(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data with messages as lists and every text stored once: a third of the size."""
    places: dict[str, int] = {}

    def place(text: str) -> int:
        return places.setdefault(text, len(places))

    messages = [
        [
            *(place(message[key]) for key in ("from", "to", "type", "function", "outcome", "text")),
            place(" in ".join(message["inside"])),
            message["bytes"],
            message["begin"],
            None if message["sent"] == message["begin"] else message["sent"],
            message["end"],
            [
                [place(fault["rule"]), place(fault["what"]), fault["seconds"], "of_answer" in fault]
                for fault in message["faults"]
            ],
        ]
        for message in data["messages"]
    ]
    return {**data, "messages": messages, "texts": list(places)}
