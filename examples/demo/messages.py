"""What a worker process tells the console, one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Joined:
    """``init_rpc`` has returned: the worker is in the group."""

    worker: str


@dataclass(frozen=True)
class Sized:
    """How many steps an epoch has for this trainer."""

    worker: str
    steps: int


@dataclass(frozen=True)
class StepDone:
    """One batch has been learnt."""

    worker: str
    epoch: int


@dataclass(frozen=True)
class EpochDone:
    """One trainer's part of an epoch: its half of the data, its half of the test, its faults.

    :param loss: mean over this trainer's batches.
    :param failed: failed sends met in this epoch, by message type.
    :param delayed: held-up sends met in this epoch, by message type.
    """

    worker: str
    epoch: int
    loss: float
    correct: int
    tested: int
    failed: dict[str, int]
    delayed: dict[str, int]


@dataclass(frozen=True)
class Finished:
    """The worker has done its part and is about to leave the group."""

    worker: str


@dataclass(frozen=True)
class Failed:
    """The worker met an exception and is about to end."""

    worker: str
    traceback: str


Message: TypeAlias = Joined | Sized | StepDone | EpochDone | Finished | Failed
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Joined, Sized, StepDone, EpochDone, Finished, Failed)
}


def encode(message: Message) -> bytes:
    """Return the line that stands for ``message``, with its newline."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message that ``encode`` made ``line`` from."""
    values = json.loads(line)
    return _KINDS[values.pop("kind")](**values)
