"""From event logs to one page of HTML that needs nothing but itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rpc_backends_faults.replay import events

_DATA = "/*DATA*/null"


@dataclass
class Story:
    """What several workers' logs tell together.

    :ivar data: `workers` (names), `rules` (by name), `messages`, `notes`; seconds from the first.
    """

    data: dict[str, Any]

    def page(self) -> str:
        """Return the page."""
        template = resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")
        # Nothing in the data may end the script that it stands in.
        data = json.dumps(self.data, separators=(",", ":")).replace("<", "\\u003c")
        return template.replace(_DATA, data)

    def summary(self) -> str:
        """Return what there is, in a line."""
        faults = sum(len(one["faults"]) for one in self.data["messages"])
        return (
            f"{len(self.data['messages'])} messages of {len(self.data['workers'])} workers, "
            f"{faults} faults"
        )


def story(places: Iterable[Path]) -> Story:
    """Read logs, or all logs in folders.

    :raises ValueError: one is no event log, or there is none.
    """
    files: list[Path] = []
    for place in places:
        files += sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    if not files:
        raise ValueError(
            "there is no event log (*.jsonl) there. RPC_BACKENDS_FAULTS_LOG=FOLDER makes some."
        )
    story_ = _Reader()
    for file in files:
        story_.add(file)
    return story_.story()


class _Reader:
    def __init__(self) -> None:
        self._workers: list[str] = []
        self._rules: dict[str, Any] = {}
        self._messages: list[dict[str, Any]] = []
        self._notes: list[dict[str, Any]] = []

    def add(self, file: Path) -> None:
        worker = ""
        open_: dict[int, dict[str, Any]] = {}
        for number, event in events(file):
            kind = event.get("event")
            if kind == "start":
                worker = event["worker"]
                self._workers += [worker] if worker not in self._workers else []
            elif not worker:
                raise ValueError(f"{file}:{number}: this is no event log of fault injection.")
            if kind in {"start", "rules"}:
                self._rules.update((rule["name"], rule) for rule in event["rules"])
            if kind == "request":
                open_[event["id"]] = self._request(worker, event)
            elif kind == "sent" and event["id"] in open_:
                open_[event["id"]]["sent"] = event["t"]
            elif kind == "end" and event["id"] in open_:
                message = open_[event["id"]]
                message["end"] = event["t"]
                message["outcome"] = event["outcome"]
                message["text"] = event.get("text", "")
                message["faults"] += [{**one, "of_answer": True} for one in event.get("faults", [])]
            elif kind != "request":
                note = {key: value for key, value in event.items() if key not in {"t", "rules"}}
                self._notes.append({"t": event["t"], "worker": worker, **note})

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
        times = [one["begin"] for one in self._messages] + [one["t"] for one in self._notes]
        first = min(times, default=0.0)
        for message in self._messages:
            for key in ("begin", "sent", "end"):
                if message[key] is not None:
                    message[key] = round(message[key] - first, 6)
        for note in self._notes:
            note["t"] = round(note["t"] - first, 6)
        others = sorted({one["to"] for one in self._messages} - set(self._workers))
        fired = Counter(fault["rule"] for one in self._messages for fault in one["faults"])
        return Story(
            {
                "workers": [*sorted(self._workers), *others],
                "rules": self._rules,
                "fired": dict(fired),
                "messages": sorted(self._messages, key=lambda one: float(one["begin"])),
                "notes": sorted(self._notes, key=lambda one: float(one["t"])),
            }
        )
