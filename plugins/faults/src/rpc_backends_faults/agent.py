"""The fault-injecting agent as Python sees it: in all but faults, the agent that it stands before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rpc_backends_agents import _C

if TYPE_CHECKING:
    from torch._C._distributed_rpc import WorkerInfo

    from rpc_backends_faults.engine import Engine


class FaultInjectingAgent(_C.FaultInjectingAgent):
    """Stands before ``inner``; whatever it does not know itself, ``inner`` answers.

    Torch asks with ``isinstance`` whether an agent is TensorPipe's, and then for more than every agent
    has (dynamic groups). So this one says that its class is that of ``inner``.
    """

    engine: Engine

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in {"inner", "engine"}:  # before they are set
            raise AttributeError(name)
        found = getattr(self.inner, name)
        return self._leaving(found) if name == "leave_group" else found

    @property  # type: ignore[misc]  # in object it can be set
    def __class__(self) -> Any:
        return type(self.inner)

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Let what is held go, and join; no message meets a fault any more."""
        self.settle()
        self.inner.join(shutdown, timeout)

    def sync(self) -> None:
        """Do what the inner agent does."""
        self.inner.sync()

    def shutdown(self) -> None:
        """Stop; what is still held fails."""
        _C.FaultInjectingAgent.shutdown(self)
        self.inner.shutdown()
        self.engine.close()

    def get_worker_info(self, *who: str | int) -> WorkerInfo:
        """Return a worker by name or rank, or this one."""
        found: WorkerInfo = self.inner.get_worker_info(*who)
        return found

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return all workers of the group."""
        found: list[WorkerInfo] = self.inner.get_worker_infos()
        return found

    def get_metrics(self) -> dict[str, str]:
        """Return the inner agent's numbers, and how often which rule fired."""
        found: dict[str, str] = self.inner.get_metrics()
        return found | _C.FaultInjectingAgent.get_metrics(self)

    def get_debug_info(self) -> dict[str, str]:
        """Return the inner agent's texts and numbers, and how often which rule fired."""
        found: dict[str, str] = self.inner.get_debug_info()
        return found | _C.FaultInjectingAgent.get_metrics(self)

    def _leaving(self, leave: Callable[[float], None]) -> Callable[[float], None]:
        def leave_group(timeout: float = 0) -> None:
            self.settle()
            leave(timeout)

        return leave_group
