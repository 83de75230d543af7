"""A finished run of a program: how it ended and what it left."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpc_backends_faults import replay
from rpc_backends_faults.rules import RuleError


@dataclass(frozen=True)
class Injected:
    """A fault that acted on a message.

    :ivar t: seconds since 1970.
    :ivar number: how many messages with the same function, type and receiver the process sent before.
    """

    t: float
    what: str
    rule: str
    message: str
    function: str
    sender: str
    receiver: str
    number: int
    seconds: float = 0.0

    def text(self) -> str:
        """Return the fault in words."""
        what = f"{self.function} ({self.message})" if self.function else self.message
        return f"{self.what}: message {self.number + 1} of {what} from {self.sender} to {self.receiver}"


@dataclass
class Run:
    """A finished run.

    :ivar folder: holds ``rules.toml``, ``logs/`` (event logs), ``output.txt``, and ``left/``, the folder
        whose path the program has in ``RPC_BACKENDS_FAULTS_RUN``.
    :ivar status: the exit status; negative if a signal ended the process; None if the run was ended here.
    :ivar seconds: the duration.
    :ivar hang: why the run was ended: no progress, or its time limit; empty if it ended by itself.
    :ivar diagnosis: of a hang: the likely reason and the stacks of the workers.
    :ivar causes: of a hang: the likely reasons.
    :ivar waiting: of a hang: where the threads of the program waited.
    :ivar left_behind: the processes that were there after the program's end, as ``PID COMMAND``.
    :ivar baseline: the run without faults; None for that run itself.
    """

    folder: Path
    status: int | None
    seconds: float
    hang: str = ""
    diagnosis: str = ""
    causes: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    baseline: Run | None = None

    @functools.cached_property
    def output(self) -> str:
        """What the program wrote to stdout and stderr."""
        try:
            return (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    @property
    def left(self) -> Path:
        """The folder for what the program leaves (``RPC_BACKENDS_FAULTS_RUN``)."""
        return self.folder / "left"

    @functools.cached_property
    def logs(self) -> list[list[dict[str, Any]]]:
        """The events of each event log. A log that cannot be read is left out."""
        logs = []
        for path in sorted((self.folder / "logs").glob("*.jsonl")):
            try:
                logs.append([event for _, event in replay.events(path)])
            except RuleError:  # a process was killed before it had written a line
                continue
        return logs

    @functools.cached_property
    def messages(self) -> list[dict[str, Any]]:
        """All requests by time, with `sender`, `number`, `mark`, `outcome` and all their `faults`."""
        messages = [message for log in self.logs for message in _messages(log)]
        return sorted(messages, key=lambda message: float(message["t"]))

    @functools.cached_property
    def injected(self) -> list[Injected]:
        """The faults that acted, by time."""
        return [
            Injected(
                t=float(message["t"]),
                what=str(fault["what"]),
                rule=str(fault["rule"]),
                message=str(message["type"]),
                function=str(message.get("function", "")),
                sender=str(message["sender"]),
                receiver=str(message["to"]),
                number=int(message["number"]),
                seconds=float(fault.get("seconds", 0.0)),
            )
            for message in self.messages
            for fault in message["faults"]
        ]


def _messages(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    worker = log[0].get("worker", "")
    messages: dict[Any, dict[str, Any]] = {}
    numbers: dict[tuple[str, str, str], int] = {}
    marks: list[str] = []
    for event in log:
        kind = event.get("event")
        if kind == "mark":
            if event.get("on"):
                marks.append(str(event.get("name")))
            elif event.get("name") in marks:
                marks.remove(str(event.get("name")))
        elif kind == "request":
            stream = (str(event["to"]), str(event["type"]), str(event.get("function", "")))
            number = numbers[stream] = numbers.get(stream, -1) + 1
            messages[event["id"]] = {
                **event,
                "sender": worker,
                "number": number,
                "mark": marks[-1] if marks else "",
                "outcome": "",
                "faults": list(event.get("faults", [])),
            }
        elif kind == "end" and event.get("id") in messages:
            message = messages[event["id"]]
            message["outcome"] = event.get("outcome", "")
            message["faults"] += event.get("faults", [])
    return list(messages.values())
