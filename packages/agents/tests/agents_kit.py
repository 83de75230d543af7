"""Shared code of the agents' tests: a process for agents, agents, and a transport.

Torch keeps an agent that was its current one until the process ends. So the tests with agents run in a
separate process, one per module: see :func:`in_worker`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
from torch._C import _distributed_rpc as torch_rpc
from torch.distributed import rpc

from rpc_backends_agents import _C
from rpc_backends_agents.transport import Inbox, Transport

#: Time limit in seconds for steps that take a moment; a passing test never waits that long.
TIME_LIMIT = 30.0
#: Seconds within which something "immediate" has happened; a call that hangs takes `TIME_LIMIT`.
AT_ONCE = 10.0

#: The head of a frame and its fields; see csrc/wire/frame.cpp. The last two are sizes in bytes.
HEAD = struct.Struct("<IBBHiIIIQQQ")
FIELDS = (
    *("magic", "version", "kind", "flags", "type", "tensors", "storages", "context", "call"),
    *("payload", "descriptions"),
)


def in_worker(body: Callable[..., None]) -> Callable[..., None]:
    """Run a test in its module's worker process; its first argument is the `WorkerContext` there."""

    @functools.wraps(body)
    def test(worker: Any, **parameters: Any) -> None:
        __tracebackhide__ = True
        worker.call(body, **parameters)

    own = list(inspect.signature(body).parameters.values())[1:]
    worker = inspect.Parameter("worker", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = inspect.Signature([worker, *own])  # type: ignore[attr-defined]
    return test


class Wire(Transport):
    """A transport whose peer is the test.

    :ivar sent: the messages that the agent has sent: receiver, parts, whether it is a reply.
    :ivar fail: the exception that ``send`` raises, if set.
    :ivar fails: a function that decides whether ``send`` raises; its argument is the message's ``reply``.
    :ivar gate: an event that ``send`` waits for.
    """

    def __init__(self) -> None:
        self.inbox: Inbox
        self.sent: list[tuple[int, list[bytes], bool]] = []
        self.rejected: list[tuple[int, str]] = []
        self.closed = False
        self.fail: BaseException | None = None
        self.fails: Callable[[bool], bool] = lambda reply: True
        self.gate = threading.Event()
        self.gate.set()
        self.tried = 0
        self._changed = threading.Condition()

    def listen(self, worker_id: int, name: str, inbox: Inbox) -> str:
        self.inbox = inbox
        return f"wire:{name}"

    def learn(self, peer: int, name: str, address: str) -> None:
        """Do nothing."""

    def send(self, peer: int, parts: Sequence[memoryview], reply: bool) -> None:
        self.gate.wait(TIME_LIMIT)
        with self._changed:
            self.tried += 1
            self._changed.notify_all()
            if self.fail and self.fails(reply):
                raise self.fail
            self.sent.append((peer, [bytes(part) for part in parts], reply))

    def forget(self, peer: int) -> None:
        """Do nothing."""

    def reject(self, peer: int, reason: str) -> None:
        with self._changed:
            self.rejected.append((peer, reason))
            self._changed.notify_all()

    def close(self, linger: float) -> None:
        self.closed = True

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Wait for a condition that a call of this transport makes true."""
        with self._changed:
            assert self._changed.wait_for(condition, TIME_LIMIT)
            return condition()

    def request(self, number: int = 0) -> list[bytes]:
        """Wait for the agent's message of this number, and return its parts."""
        self.wait_until(lambda: len(self.sent) > number)
        return self.sent[number][1]


class Lines(logging.Handler):
    """Collects the log lines of the agents."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a line."""
        self.texts.append(record.getMessage())


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the lines that the agents log; yields the list."""
    lines, logger = Lines(), logging.getLogger("rpc_backends.agents")
    _C.send_warnings_to(logger.warning)
    logger.addHandler(lines)
    try:
        yield lines.texts
    finally:
        logger.removeHandler(lines)


def make(transport: Any, name: str = "a", worker_id: int = 0, **settings: Any) -> Any:
    """Return an agent that has not been started."""
    agent: Any = _C.TransportAgent(
        name,
        worker_id,
        transport,
        **{
            "num_worker_threads": 4,
            "rpc_timeout": TIME_LIMIT,
            "max_message_bytes": 1 << 30,
            "max_unanswered_bytes": 1 << 30,
            **settings,
        },
    )
    return agent


def no_current_agent() -> None:
    """Reset torch's current agent, if there is one."""
    if torch_rpc._is_current_rpc_agent_set():
        torch_rpc._reset_current_rpc_agent()


def start(agent: Any) -> None:
    """Start an agent and make it torch's current one."""
    no_current_agent()
    dist_autograd._init(0)  # torch uses it in every call
    rpc.api._init_rpc_states(agent)


@contextlib.contextmanager
def on_wire(**settings: Any) -> Iterator[tuple[Any, Wire]]:
    """Yield an agent "a" that knows a worker "b" with id 1, and its transport."""
    wire = Wire()
    agent = make(wire, **settings)
    agent.learn(1, "b", agent.listen())
    agent.add_member("b", 1)
    start(agent)
    try:
        yield agent, wire
    finally:
        no_current_agent()
        agent.shutdown()


@contextlib.contextmanager
def two_agents(others: dict[str, Any] | None = None, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """Yield agents "a" and "b" with in-memory transports; "a" makes this process's calls.

    :param others: settings of "b" that differ from those of "a".
    """
    agent_a = make(_C.MemoryTransport(), "a", 0, **settings)
    agent_b = make(_C.MemoryTransport(), "b", 1, **{**settings, **(others or {})})
    addresses = agent_a.listen(), agent_b.listen()
    agent_a.learn(1, "b", addresses[1])
    agent_b.learn(0, "a", addresses[0])
    agent_a.add_member("b", 1)
    agent_b.add_member("a", 0)
    start(agent_b)
    start(agent_a)
    try:
        yield agent_a, agent_b
    finally:
        no_current_agent()
        agent_a.shutdown()
        agent_b.shutdown()


def change(parts: list[bytes], **fields: Any) -> list[bytes]:
    """Return a frame with changed fields in its head; a function computes the value from the old one."""
    values = dict(zip(FIELDS, HEAD.unpack_from(parts[0]), strict=True))
    for name, value in fields.items():
        values[name] = value(values[name]) if callable(value) else value
    return [HEAD.pack(*values.values()) + parts[0][HEAD.size :], *parts[1:]]


def eventually(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition that no event reports, by polling."""
    until = time.monotonic() + TIME_LIMIT
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.005)


def tasks() -> set[str]:
    """Return the ids of the threads of this process."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


def wait_until_gone(before: set[str]) -> None:
    """Wait until only these threads are left: for a moment, the kernel still lists a joined thread."""
    eventually(lambda: tasks() <= before, "the threads have ended")


def identity(value: Any) -> Any:
    """Return the argument."""
    return value


def a_request(wire: Wire, *arguments: Any) -> tuple[Any, list[bytes]]:
    """Make the agent call worker "b"; return the future and the frame."""
    before = len(wire.sent)
    function = identity if len(arguments) == 1 else torch.add
    future = rpc.rpc_async("b", function, args=arguments or (torch.ones(2), 1))
    return future, wire.request(before)


def error_of(future: Any) -> str:
    """Wait for a call to fail; return the text of its error."""
    try:
        result = future.wait()
    except Exception as error:
        return str(error)
    raise AssertionError(f"the call did not fail, and returned {result!r}")
