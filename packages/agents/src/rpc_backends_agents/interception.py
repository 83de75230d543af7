"""Interceptors in front of an agent; ``rpc_backends_agents/interceptor.h`` is their interface."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rpc_backends_agents import _C

if TYPE_CHECKING:
    from torch.distributed.rpc import WorkerInfo


#: Seconds that the inner agent has to end, however long interceptors have held on.
_LEAST = 1.0


class Interceptor(Protocol):
    """What an extension module hands over."""

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
    """Put an interceptor in front of an agent that has not been started.

    Call it in the hook ``rpc_backends_agent``, and return what it returns.

    :param name: what errors and metrics call it; what it attaches to a request arrives at the interceptor
        of this name.
    :param order: its place. The lowest is nearest to the program, the highest to the network; where two
        have the same, names decide.
    :param at_shutdown: called when the agent has been shut down.
    :returns: the agent to install: ``agent`` itself if there are interceptors in front of it already.
    :raises ValueError: another interceptor in front of this agent has the name.
    :raises TypeError: the interceptor was built for another version of the interface.
    :raises RuntimeError: the agent has been started.
    """
    # By type(): in front of an agent, __class__ is that agent's.
    front = agent if issubclass(type(agent), InterceptingAgent) else InterceptingAgent(agent)
    front.add_interceptor(interceptor, name, order)
    if at_shutdown is not None:
        front.closing.append(at_shutdown)
    return front


class InterceptingAgent(_C.InterceptingAgent):
    """Stands in front of ``inner``, and passes on what it does not know itself.

    Torch asks with ``isinstance`` whether an agent is TensorPipe's, and then for more than every agent
    has (dynamic groups). So this one says that its class is that of ``inner``.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.inner = inner
        self.closing: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        if name in {"inner", "closing"}:  # before they are set
            raise AttributeError(name)
        found = getattr(self.inner, name)
        return self._leaving(found) if name == "leave_group" else found

    @property  # type: ignore[misc]  # in object it can be set
    def __class__(self) -> Any:
        return type(self.inner)

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Wait until interceptors hold nothing, and join.

        :param timeout: seconds for both; 0 for no limit here, and the inner agent's own there. What is
            held when they are over fails at :meth:`shutdown`.
        """
        self.inner.join(shutdown, self._settled(timeout))

    def sync(self) -> None:
        """Do what the inner agent does."""
        self.inner.sync()

    def shutdown(self) -> None:
        """Stop; what interceptors still hold fails."""
        with contextlib.ExitStack() as last:
            while self.closing:
                last.callback(self.closing.pop())
            _C.InterceptingAgent.shutdown(self)
            self.inner.shutdown()

    def get_worker_info(self, *who: str | int) -> WorkerInfo:
        """Return a worker by name or rank, or this one."""
        found: WorkerInfo = self.inner.get_worker_info(*who)
        return found

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return all workers of the group."""
        found: list[WorkerInfo] = self.inner.get_worker_infos()
        return found

    def get_metrics(self) -> dict[str, str]:
        """Return the inner agent's numbers, and those of the interceptors."""
        found: dict[str, str] = self.inner.get_metrics()
        return found | _C.InterceptingAgent.get_metrics(self)

    def get_debug_info(self) -> dict[str, str]:
        """Return the inner agent's texts and numbers, and the numbers of the interceptors."""
        found: dict[str, str] = self.inner.get_debug_info()
        return found | _C.InterceptingAgent.get_metrics(self)

    def _settled(self, timeout: float) -> float:
        """Wait until interceptors hold nothing; return the seconds that are left of ``timeout``."""
        begin = time.monotonic()
        self.settle(timeout)
        return max(timeout - (time.monotonic() - begin), _LEAST) if timeout else timeout

    def _leaving(self, leave: Callable[[float], None]) -> Callable[[float], None]:
        def leave_group(timeout: float = 0) -> None:
            leave(self._settled(timeout))

        return leave_group
