"""A failed start raises the reason and leaves no thread and no socket."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from agents_kit import AT_ONCE, TIME_LIMIT, Wire, in_worker, tasks, wait_until_gone

from rpc_backends_agents import _C, Settings, start_agent
from rpc_backends_agents.addressing import Addressing, addressing
from rpc_backends_agents.transports.sockets import SocketTransport
from rpc_backends_core.spi import Group, GroupTimeoutError, Member


def a_group(size: int | None = 2, timeout: float = TIME_LIMIT) -> Any:
    """Return the group of worker "a" with rank 0; the others have published their addresses."""
    store = dist.HashStore()
    members = tuple(Member(f"{chr(97 + rank)}", rank, rank, rank) for rank in range(size or 0))
    if size:
        for rank in range(1, size):
            store.set(f"exchange/1/{rank}", '"nowhere"')
        store.add("exchange/1/arrived", size - 1)
    return Group(store, "a", 0, size, members, timeout, 0)


class FailingTransport(Wire):
    """A transport that raises an exception in one of its methods."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def listen(self, *arguments: Any) -> str:
        self._raise_in("listen")
        return super().listen(*arguments)

    def learn(self, *arguments: Any) -> None:
        self._raise_in("learn")

    def _raise_in(self, where: str) -> None:
        if self._where == where:
            raise LookupError(f"{where} cannot do this")


class WithCapsule:
    """A C++ transport that Python code wraps, as in ZEROMQ.

    :ivar calls: the calls, in order.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._native = _C.MemoryTransport()
        self.calls: list[str] = []

    def __rpc_transport__(self) -> object:
        return self._native.__rpc_transport__()

    def listen(self, worker_id: int, name: str) -> str:
        self.calls.append("listen")
        if self._where == "listen":
            raise LookupError("listen cannot do this")
        return "somewhere"

    def learn(self, worker_id: int, name: str, address: str, rank: int) -> None:
        self.calls.append(f"learn {worker_id} {name} {address} {rank}")
        if self._where == "learn":
            raise LookupError("learn cannot do this")

    def metrics(self) -> dict[str, str]:
        return {}

    def close(self, linger: float) -> None:
        self.calls.append("close")


def sockets() -> int:
    targets = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum("socket" in str(path) for path in targets)


@in_worker
@pytest.mark.parametrize("where", ["listen", "learn"])
def test_an_error_of_the_transport_fails_the_start_and_closes_it(me: Any, where: str) -> None:
    before = tasks()
    transport = FailingTransport(where)
    with pytest.raises(LookupError, match=f"{where} cannot do this"):
        start_agent(transport, a_group(), Settings())
    assert transport.closed
    wait_until_gone(before)


@in_worker
@pytest.mark.parametrize("where", ["listen", "learn"])
def test_the_python_part_of_a_transport_is_closed_on_failure(me: Any, where: str) -> None:
    before = tasks()
    transport = WithCapsule(where)
    with pytest.raises(LookupError, match=f"{where} cannot do this"):
        start_agent(transport, a_group(), Settings())
    assert transport.calls[0] == "listen"
    assert "close" in transport.calls
    wait_until_gone(before)


@in_worker
def test_the_python_part_of_a_transport_is_closed_first(
    me: Any,
) -> None:
    agent_closed = threading.Event()

    class Waits(WithCapsule):
        def close(self, linger: float) -> None:
            super().close(linger)
            closed_before.append(agent_closed.is_set())

    closed_before: list[bool] = []
    shutdown = _C.TransportAgent.shutdown

    def noted(agent: Any) -> None:
        agent_closed.set()
        shutdown(agent)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(LookupError):
        patch.setattr(_C.TransportAgent, "shutdown", noted)
        start_agent(Waits("learn"), a_group(), Settings())
    assert closed_before[0] is False
    assert agent_closed.is_set()


@in_worker
def test_a_start_without_the_others_leaves_nothing_open(me: Any) -> None:
    before, open_before = tasks(), sockets()
    group = a_group(timeout=0.1)
    group.store.add("exchange/1/arrived", -1)
    with pytest.raises(GroupTimeoutError, match=r"waited 0\.1 s"):
        start_agent(SocketTransport(), group, Settings())
    wait_until_gone(before)
    assert sockets() == open_before


@in_worker
def test_a_shutdown_waits_as_long_as_its_caller_says(me: Any) -> None:
    group = a_group()  # the group's own timeout is longer
    agent: Any = start_agent(Wire(), group, Settings())
    try:
        began = time.monotonic()
        with pytest.raises(GroupTimeoutError, match=r"waited 0\.5 s for 'b' \(rank 1\)"):
            agent.join(True, 0.5)  # worker "b" does not shut down
        assert time.monotonic() - began < AT_ONCE
    finally:
        agent.shutdown()


# --- arguments and results that break the contract ------------------------------------------------


def a_capsule(name: bytes) -> Any:
    """Return an empty capsule of a name."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    return new(1, name, None)


#: These names must outlive their capsules: a capsule does not copy its name.
_NAMES = (
    b"rpc_backends.Transport.2",
    b"rpc_backends.Transport.99",
    b"other",
    b"rpc_backends.Transport.3.old-strings",
)
#: What a transport gives in place of a capsule for this agent, and what the error says.
WRONG_CAPSULES = {
    "older": (
        a_capsule(_NAMES[0]),
        "was built for version 2 of the transport interface, .*"
        "Upgrade the package that provides it: pip install --upgrade .* compile it again",
    ),
    "newer": (
        a_capsule(_NAMES[1]),
        "was built for version 99 of the transport interface, .*"
        "Upgrade the agents: pip install --upgrade rpc-backends-agents",
    ),
    "another": (a_capsule(_NAMES[2]), "returned 'other'; it must return a capsule named"),
    "older, compiled for the old layout of std::string": (
        a_capsule(_NAMES[3]),
        "was built for version 3 of the transport interface, .* has version 4. .* compile it again",
    ),
    "text": ("something", "returned 'something'; it must return a capsule named"),
    "nothing": (None, "returned None; it must return a capsule named"),
}


@pytest.mark.parametrize("given", WRONG_CAPSULES)
def test_an_incompatible_transport_is_refused_and_closed(given: str) -> None:
    capsule, words = WRONG_CAPSULES[given]

    class Other(WithCapsule):
        def __rpc_transport__(self) -> object:
            return capsule

    transport = Other("")
    with pytest.raises(TypeError, match=rf"the transport {__name__}\.\S*Other .*{words}"):
        start_agent(transport, a_group(), Settings())
    assert transport.calls == ["close"]


@in_worker
@pytest.mark.parametrize("base", [Wire, WithCapsule])
def test_an_address_that_is_no_text_is_refused(me: Any, base: Any) -> None:
    class Wrong(base):  # type: ignore[misc]  # each of two classes
        def listen(self, *arguments: Any) -> Any:
            return ("127.0.0.1", 5000)

    transport = Wrong("") if base is WithCapsule else Wrong()
    with pytest.raises(TypeError) as caught:
        start_agent(transport, a_group(), Settings())
    for part in (f"{__name__}.", "Wrong.listen() of the transport returned ('127", "as a str"):
        assert part in str(caught.value)
    assert "close" in transport.calls if base is WithCapsule else transport.closed


@in_worker
def test_metrics_that_are_no_texts_are_refused(me: Any) -> None:
    class Wrong(Wire):
        def metrics(self) -> Any:
            return {"sent": 3}

    agent: Any = start_agent(Wrong(), a_group(1), Settings())
    with pytest.raises(
        RuntimeError, match=r"Wrong\.metrics\(\) of .* returned {'sent': 3}; it must"
    ):
        agent.get_metrics()
    agent.shutdown()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None, a_group(), Settings()), "got None as its transport, which has no listen, learn"),
        ((Wire, a_group(), Settings()), "got the class Wire as its transport; pass an instance"),
        ((Wire(), None, Settings()), "got None as its group; pass what .*group_for"),
        ((Wire(), a_group(), {}), "got {} as its settings; pass rpc_backends_agents.Settings"),
    ],
)
def test_an_argument_of_another_type_is_refused(arguments: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"start_agent {words}"):
        start_agent(*arguments)


@in_worker
def test_a_failed_dynamic_start_closes_the_transport(me: Any) -> None:
    transport = FailingTransport("listen")
    with pytest.raises(LookupError, match="listen cannot do this"):
        start_agent(transport, a_group(None), Settings())
    assert transport.closed


@in_worker
def test_the_python_part_of_a_transport_listens_and_learns(me: Any) -> None:
    agent = Any
    plain = addressing(_C.MemoryTransport(), agent, "a")
    assert type(plain) is Addressing
    transport = WithCapsule("")
    around = addressing(transport, agent, "a")
    assert around.listen(3) == "somewhere"
    around.learn(4, "b", 1, "there")
    assert transport.calls == ["listen", "learn 4 b there 1"]


@in_worker
def test_a_guarded_transport_can_refresh_the_members(me: Any) -> None:
    class Guarded(WithCapsule):
        on_unknown_key: Any = None

    looked: list[str] = []
    transport = Guarded("")
    addressing(transport, Any, "a").refresh_before_refusing(lambda: looked.append("once"))
    transport.on_unknown_key(b"key")
    assert looked == ["once"]
