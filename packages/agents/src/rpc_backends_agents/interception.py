"""Puts interceptors in front of an agent; ``rpc_backends_agents/interceptor.h`` is their interface."""

from __future__ import annotations

import contextlib
import functools
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rpc_backends_agents import _C

if TYPE_CHECKING:
    from torch.distributed.rpc import WorkerInfo


#: The least seconds that the inner agent gets to join, however long the interceptors took.
_LEAST = 1.0


class Interceptor(Protocol):
    """An interceptor from a C++ extension module."""

    def __rpc_interceptor__(self) -> object:
        """Return a capsule named ``kInterceptorCapsule`` with a ``std::shared_ptr<Interceptor>*``."""


def intercept(
    agent: Any,
    interceptor: Interceptor,
    *,
    name: str,
    order: int = 0,
    at_shutdown: Callable[[], None] | None = None,
) -> InterceptingAgent:
    """Put an interceptor in front of an agent that has not started yet.

    Call this in the hook ``rpc_backends_agent``, and return its result from the hook.

    :param name: the interceptor's name in errors and metrics. Context that it attaches to a request
        arrives at the peer's interceptor with the same name.
    :param order: its position. The lowest is nearest to the program, the highest nearest to the network.
        Interceptors with the same order are sorted by name.
    :param at_shutdown: called after the agent has shut down.
    :returns: the agent to install: ``agent`` itself if it already has interceptors in front of it.
    :raises ValueError: another interceptor in front of this agent has this name.
    :raises TypeError: the interceptor was built for another version of the interface.
    :raises RuntimeError: the agent has already started. Or the interceptor decides calls that arrive, and
        this backend does not show them, as TENSORPIPE does not: the interceptor overrides
        ``on_incoming``, or it is in C++ and wants only ``Direction::kIncoming``.
    """
    front = _in_front_of(agent)
    front.add_interceptor(interceptor, name, order)
    front.interceptors.append((order, name))
    if at_shutdown is not None:
        front.closing.append(at_shutdown)
    return front


def record_calls(
    agent: Any, recorder: _C.Recorder, *, at_shutdown: Callable[[], None]
) -> InterceptingAgent:
    """Record the calls of an agent that has not started yet.

    :param at_shutdown: called after the agent has shut down.
    :returns: the agent to install: ``agent`` itself if it is an :class:`InterceptingAgent`.
    """
    front = _in_front_of(agent)
    front.record_calls(recorder)
    front.observers.append("recorder")
    front.closing.append(at_shutdown)
    return front


def report_calls(
    agent: Any, telemetry: _C.Telemetry, *, at_shutdown: Callable[[], None]
) -> InterceptingAgent:
    """Make spans and metrics of the calls of an agent that has not started yet.

    :param at_shutdown: called after the agent has shut down.
    :returns: the agent to install: ``agent`` itself if it is an :class:`InterceptingAgent`.
    """
    front = _in_front_of(agent)
    front.report_calls(telemetry)
    front.observers.append("telemetry")
    front.closing.append(at_shutdown)
    return front


def _in_front_of(agent: Any) -> InterceptingAgent:
    # type() is needed because __class__ of an InterceptingAgent returns the inner agent's class.
    if issubclass(type(agent), InterceptingAgent):
        return agent  # type: ignore[no-any-return]
    kind: Any = type(agent)
    return _class_for(kind)(agent)


@functools.cache
def _class_for(inner: type) -> type[InterceptingAgent]:
    """Return the class of agents in front of agents of class ``inner``, whose name ends with its name."""
    words = {"__module__": __name__, "__doc__": InterceptingAgent.__doc__}
    name = f"Intercepting{inner.__name__}"
    return types.new_class(name, (InterceptingAgent,), exec_body=lambda ns: ns.update(words))


class InterceptingAgent(_C.InterceptingAgent):
    """An agent in front of ``inner``; attributes that it does not have come from ``inner``.

    Torch uses ``isinstance`` to find out whether an agent is TensorPipe's, and then uses attributes that
    other agents do not have (for dynamic groups). So this agent's ``__class__`` is that of ``inner``.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.inner = inner
        self.closing: list[Callable[[], None]] = []
        self.interceptors: list[tuple[int, str]] = []
        self.observers: list[str] = []
        # Torch calls this for every RPC, and the method below takes twice the time.
        self.__dict__["get_worker_info"] = inner.get_worker_info

    def __getattr__(self, name: str) -> Any:
        if name in {"inner", "closing", "interceptors", "observers"}:  # not set yet
            raise AttributeError(name)
        attribute = getattr(self.inner, name)
        return self._leaving(attribute) if name == "leave_group" else attribute

    @property
    def in_front(self) -> tuple[str, ...]:
        """What stands in front of the inner agent, nearest to the program first."""
        return (*self.observers, *(name for _, name in sorted(self.interceptors)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} ({', '.join(self.in_front)}) in front of {self.inner!r}>"

    @property  # type: ignore[misc]  # object's attribute is writable
    def __class__(self) -> Any:
        return type(self.inner)

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Wait until interceptors hold no messages; then join with the inner agent.

        :param timeout: seconds for both. 0 means no limit for the interceptors, and the inner agent's own
            timeout for its join. Messages that are still held afterwards fail in :meth:`shutdown`.
        """
        self.inner.join(shutdown, self._settled(timeout))

    def sync(self) -> None:
        """Call ``sync`` of the inner agent."""
        self.inner.sync()

    def shutdown(self) -> None:
        """Stop the agent; messages that interceptors still hold fail."""
        with contextlib.ExitStack() as last:
            while self.closing:
                last.callback(self.closing.pop())
            _C.InterceptingAgent.shutdown(self)
            self.inner.shutdown()

    def get_worker_info(self, *who: str | int) -> WorkerInfo:
        """Return a worker by name or rank, or this one."""
        info: WorkerInfo = self.inner.get_worker_info(*who)
        return info

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return all workers of the group."""
        infos: list[WorkerInfo] = self.inner.get_worker_infos()
        return infos

    def get_metrics(self) -> dict[str, str]:
        """Return the metrics of the inner agent and of the interceptors."""
        metrics: dict[str, str] = self.inner.get_metrics()
        return metrics | _C.InterceptingAgent.get_metrics(self)

    def get_debug_info(self) -> dict[str, str]:
        """Return the debug information of the inner agent and the metrics of the interceptors."""
        info: dict[str, str] = self.inner.get_debug_info()
        return info | _C.InterceptingAgent.get_metrics(self)

    def _settled(self, timeout: float) -> float:
        """Wait until interceptors hold no messages; return the seconds left of ``timeout``."""
        begin = time.monotonic()
        self.settle(timeout)
        return max(timeout - (time.monotonic() - begin), _LEAST) if timeout else timeout

    def _leaving(self, leave: Callable[[float], None]) -> Callable[[float], None]:
        def leave_group(timeout: float = 0) -> None:
            leave(self._settled(timeout))

        return leave_group
