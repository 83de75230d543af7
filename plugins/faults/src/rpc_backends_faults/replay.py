"""Reading an event log for a replay: which message met which faults."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpc_backends_faults.kinds import HOUSEKEEPING
from rpc_backends_faults.patterns import matches

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
    :raises ValueError: there is none, or it cannot be read.
    """
    path = place
    if place.is_dir():
        _found[worker, str(place)] += 1  # a process may start several agents, one after the other
        path = place / file_name(worker, _found[worker, str(place)])
    if not path.is_file():
        raise ValueError(
            f"there is nothing to replay for RPC worker {worker!r}: {path} is not there. Name the folder "
            "that RPC_BACKENDS_FAULTS_LOG named in the run to be replayed."
        )
    return read(path)


def read(path: Path) -> Recording:
    """Return what a log has.

    :raises ValueError: it is none.
    """
    recording = Recording()
    rules: dict[str, dict[str, Any]] = {}
    open_: dict[int, Entry] = {}
    housekeeping: dict[int, bool] = {}
    started = False
    for number, event in events(path):
        kind = event.get("event")
        if kind in {"start", "rules"}:
            started = started or kind == "start"
            recording.seed = event["seed"]
            rules.update((rule["name"], rule) for rule in event["rules"])
        elif kind == "request":
            entry: Entry = (
                event["to"],
                event["type"],
                int(event["digest"], 16),
                event["nth"],
                _faults(event),
                [],
            )
            open_[event["id"]] = entry
            recording.entries.append(entry)
            housekeeping[len(recording.entries) - 1] = _is_housekeeping(event)
        elif kind == "end" and event["id"] in open_:
            open_[event["id"]][5].extend(_faults(event))
        if not started:
            raise ValueError(f"{path}:{number}: this is no event log of fault injection.")
    if not started:
        raise ValueError(f"{path} is empty: it is no event log of fault injection.")
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

    :raises ValueError: a line is not JSON.
    """
    found = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            event = dict(json.loads(line))
        except (ValueError, TypeError) as error:
            if number == len(lines):
                break  # its process was killed
            raise ValueError(
                f"{path}:{number}: this is no line of an event log: {error}"
            ) from error
        found.append((number, event))
    return found


def _is_housekeeping(event: dict[str, Any]) -> bool:
    function = event.get("function", "")
    return any(matches(pattern, function) for pattern in HOUSEKEEPING)


def _faults(event: dict[str, Any]) -> list[tuple[str, float]]:
    return [(fault["rule"], fault["seconds"]) for fault in event.get("faults", ())]


_found: Counter[tuple[str, str]] = Counter()
