"""Reads the states of workers from their sockets or from files."""

from __future__ import annotations

import json
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from rpc_backends_inspect import processes, sockets
from rpc_backends_inspect.stacks import Thread, gil_holder, parse

#: Seconds for a worker to answer, and for a process that does not answer any more to end.
_ANSWER = 5.0
_END = 1.0
_VERSION = 4


@dataclass(frozen=True)
class Call:
    """A call that a worker has made or received.

    :ivar call: the number that the caller's agent gave it, the same on both sides; 0 if it is not known.
    :ivar seconds: how long it took; for a call in flight, its age.
    :ivar thread: the thread that made it, or on which it arrived.
    """

    number: int
    call: int
    incoming: bool
    peer: str
    peer_id: int
    function: str
    type: str
    thread: int
    begin_us: int
    end_us: int
    seconds: float
    bytes: int
    answer_bytes: int
    timeout: float
    state: str
    error: str

    @property
    def name(self) -> str:
        """The function's name, or the message type if the message calls no function."""
        return self.function or self.type


@dataclass(frozen=True)
class Start:
    """An ``init_rpc`` that has not ended, or has failed.

    :ivar rank: -1 if the rendezvous decides it.
    :ivar world_size: 0 for a dynamic group.
    :ivar seconds: how long ago it began.
    :ivar error: why it failed; empty if it has not.
    """

    rank: int
    world_size: int
    seconds: float
    error: str


@dataclass(frozen=True)
class WorkerState:
    """The state of a worker.

    :ivar group: the address where its group meets, the same for all its workers.
    :ivar group_key: what tells its group from all others; see :mod:`.groups`.
    :ivar reason: why it wrote a dump; empty if it was asked.
    :ivar likely_reason: why calls waited, as it knew when it wrote the dump; empty if it did not say.
    :ivar calls: how many calls it has recorded so far.
    :ivar start: set while the worker is in ``init_rpc``, and after its ``init_rpc`` has failed.
    :ivar guard: whether its guard enforces a policy, and the policy's hash; empty without a guard.
    :ivar gil_wait: for how many seconds one thread has held the GIL while another waited for it.
    :ivar gil_holder: the number of the thread that holds the GIL; 0 if none does.
    :ivar held_rrefs: the number of RRefs that it holds, by the name of their owner; not counting those
        that the owner itself has sent to it.
    :ivar problem: why the state is unknown (the worker is stopped, say); empty if it is known.
    """

    worker: str
    pid: int
    problem: str = ""
    backend: str = ""
    group: str = ""
    group_key: str = ""
    host: str = ""
    time_us: int = 0
    reason: str = ""
    likely_reason: str = ""
    calls: int = 0
    members: dict[int, str] = field(default_factory=dict)
    in_flight: list[Call] = field(default_factory=list)
    recent: list[Call] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    metrics: dict[str, str] = field(default_factory=dict)
    rrefs: dict[str, str] = field(default_factory=dict)
    held_rrefs: dict[str, int] = field(default_factory=dict)
    start: Start | None = None
    guard: str = ""
    gil_wait: float = 0.0
    gil_holder: int = 0
    document: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def thread(self, number: int) -> Thread | None:
        """Return the thread with this number, if it runs Python."""
        return next((thread for thread in self.threads if thread.number == number), None)


class NoStateError(ValueError):
    """A document is no worker's state; the text says what is wrong with it."""


def running(*, pids: Collection[int] = (), last: bool = False) -> list[WorkerState]:
    """Ask this user's workers on this host, all at the same time.

    :param pids: only workers of these processes; none means all.
    :param last: only the calls that ended in the last five seconds, and no stacks.
    """
    wanted = []
    for answer in sockets.connect_all(_ANSWER):
        if not pids or answer.pid in pids:
            wanted.append(answer)
        else:
            answer.connection.close()
    if not wanted:
        return []
    with ThreadPoolExecutor(min(32, len(wanted))) as pool:
        answers = pool.map(partial(_ask, b"l" if last else b"a"), wanted)
        states = [state for state in answers if state]
    # During the last steps of init_rpc, a process has two sockets.
    states.sort(key=lambda state: (state.worker, state.pid, state.start is not None))
    same = groupby(states, key=lambda state: (state.worker, state.pid))
    return [next(states) for _, states in same]


def read(path: Path) -> WorkerState:
    """Read a state that was written to a file.

    :raises NoStateError: the file does not hold one.
    :raises OSError: the file cannot be read.
    """
    if path.exists() and not path.is_file():
        raise NoStateError(f"{path} is no file")
    try:
        return parse_state(json.loads(path.read_text()))
    except ValueError as error:
        raise NoStateError(f"{path} is no dump of a worker: {error}") from error


def add_likely_reason(path: Path, text: str) -> None:
    """Add to the dump of a worker what this worker knows of the others, which may be gone later.

    :raises OSError: the file cannot be read or replaced.
    """
    document = json.loads(path.read_text()) | {"likely_reason": text}
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)  # of a process that was killed while it wrote
    try:
        partial.touch(mode=0o600, exist_ok=False)
        partial.write_text(json.dumps(document))
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def parse_state(document: Any) -> WorkerState:
    """Return the state in a document of the recorder.

    :raises NoStateError: the document is not a state.
    """
    if not isinstance(document, dict):
        raise NoStateError("it is not a JSON object")
    try:
        if document["version"] != _VERSION:
            raise NoStateError(
                f"its version is {document['version']!r}, but this rpc-backends-inspect reads "
                f"{_VERSION}; install the version that the worker uses"
            )
        now = int(document["time_us"])
        return WorkerState(
            worker=_text(document["worker"]),
            pid=int(document["pid"]),
            backend=str(document["backend"]),
            group=_text(document["group"]),
            group_key=str(document["group_id"]) or sockets.key_of_address(_text(document["group"])),
            host=str(document["host"]),
            time_us=now,
            reason=str(document["reason"]),
            likely_reason=str(document.get("likely_reason", "")),
            calls=int(document["calls"]),
            members={int(member["id"]): _text(member["name"]) for member in document["members"]},
            in_flight=[_call(member, now) for member in document["in_flight"]],
            recent=[_call(member, now) for member in document["recent"]],
            threads=parse(str(document["stacks"])),
            metrics=dict(document["metrics"]),
            rrefs=dict(document["rrefs"]),
            held_rrefs={_text(name): count for name, count in document["held_rrefs"].items()},
            start=None if document["phase"] == "running" else _start(document, now),
            guard=str(document.get("guard", "")),
            gil_wait=document["gil_wait_us"] / 1e6,
            gil_holder=gil_holder(document["stacks"]),
            document=document,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise NoStateError(f"it lacks {error}") from error


def _start(document: dict[str, Any], now: int) -> Start:
    return Start(
        rank=document["rank"],
        world_size=document["world_size"],
        seconds=(now - document["started_us"]) / 1e6,
        error=document["error"],
    )


def _call(fields: dict[str, Any], now: int) -> Call:
    return Call(
        number=fields["number"],
        call=fields["call"],
        incoming=fields["direction"] == "incoming",
        peer=_text(fields["peer"]),
        peer_id=fields["peer_id"],
        function=_text(fields["function"]),
        type=fields["type"],
        thread=fields["thread"],
        begin_us=fields["begin_us"],
        end_us=fields["end_us"],
        seconds=((fields["end_us"] or now) - fields["begin_us"]) / 1e6,
        bytes=fields["bytes"],
        answer_bytes=fields["answer_bytes"],
        timeout=fields["timeout_ms"] / 1e3,
        state=fields["state"],
        error=fields["error"],
    )


def _text(value: str) -> str:
    """Return a name. A peer may have chosen its bytes, so control characters are escaped.

    :param value: a name of which the recorder has written each byte as one character.
    """
    try:
        name = value.encode("latin-1").decode()
    except ValueError:
        name = value
    return name if name.isprintable() else name.encode("unicode_escape").decode()


def _ask(what: bytes, worker_socket: sockets.WorkerSocket) -> WorkerState | None:
    """Return a worker's state; None if its process has ended and left nothing to say who it was.

    The socket can outlive the process if a child has inherited it.
    """
    with worker_socket.connection as connection:
        key, worker = worker_socket.identity  # a process that ends loses it

        def problem(text: str) -> WorkerState:
            return WorkerState(worker, worker_socket.pid, text, group_key=key)

        if fate := processes.fate(worker_socket.pid):
            return problem(fate) if worker else None
        try:
            connection.sendall(what)
            with connection.makefile("rb") as stream:
                text = stream.read()
            if not text:
                raise ConnectionResetError
            return parse_state(json.loads(text))
        except TimeoutError:
            # It may have been stopped meanwhile.
            late = processes.fate(worker_socket.pid) or f"does not answer within {_ANSWER:.0f} s"
            return problem(late)
        except OSError:
            # A killed process closes its socket some time before it has ended.
            return problem(processes.fate(worker_socket.pid, _END) or "has just left its group")
        except ValueError as error:
            return problem(f"gives no valid answer: {error}")
