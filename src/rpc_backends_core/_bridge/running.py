"""Which backend runs in this process: for programs, for tests, and for the log of a start."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rpc_backends_core import _handlers
from rpc_backends_core._backend import Capability
from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._process_state import STATE

if TYPE_CHECKING:
    from torch.distributed.rpc import RpcBackendOptions

    from rpc_backends_core._record import ResolvedBackend

logger = logging.getLogger("rpc_backends")


@dataclass(frozen=True)
class CurrentBackend:
    """The backend that runs in this process, and what it runs with.

    :ivar name: the backend's name, as in ``BackendType``.
    :ivar distribution: the package that provides it; for a backend that this process has registered,
        the module that did; ``torch`` for torch's own.
    :ivar version: the package's version, or None.
    :ivar options: the options it was started with. None if the program called ``init_backend`` with
        positional arguments.
    :ivar in_front: what stands between the program and the backend's agent, nearest to the program
        first: the names of interceptors and recorders, or the class of an agent that a hook has put
        there.
    :ivar hooks: the packages whose hooks were called, by distribution.
    :ivar address: where the worker listens, as the agent says; None if it does not say.
    :ivar encryption: how messages between hosts are encrypted, as the agent says: a name such as
        ``TLS 1.3``, or ``none``. If the agent does not say: ``declared`` or ``not declared``, from the
        backend's capabilities.
    """

    name: str
    distribution: str | None
    version: str | None
    options: RpcBackendOptions | None
    in_front: tuple[str, ...]
    hooks: tuple[str, ...]
    address: str | None
    encryption: str


@dataclass(frozen=True)
class Running:
    """The agent of this process.

    :ivar resolved: the backend that made it.
    :ivar agent: the agent that is installed in torch; hooks may have put it in front of the backend's.
    :ivar is_wrapped: whether a hook has replaced the backend's agent.
    """

    resolved: ResolvedBackend
    agent: Any
    is_wrapped: bool


def current_backend() -> CurrentBackend | None:
    """Return the backend that runs in this process.

    :returns: None if RPC does not run, or if the program has installed an agent that no backend made.
    """
    running: Running | None = STATE.running
    if running is None or not torch_internals.has_current_agent():
        return None
    resolved, agent = running.resolved, running.agent
    packages = [
        package.partition(" ")[0]
        for name in ("rpc_backends_start", "rpc_backends_init_backend", "rpc_backends_agent")
        for package in _handlers.hook_packages(resolved.hooks, name)
    ]
    return CurrentBackend(
        name=resolved.name,
        distribution=resolved.record.distribution,
        version=resolved.record.version,
        options=resolved.options,
        in_front=_in_front(running),
        hooks=tuple(sorted(set(packages))),
        address=_text(agent, "address"),
        encryption=_text(agent, "encryption") or _declared_encryption(resolved),
    )


def log_start() -> None:
    """Log which backend has started, and with what."""
    if not logger.isEnabledFor(logging.INFO):
        return
    current = current_backend()
    if current is None:  # a hook has replaced the whole start
        return
    worker = STATE.running.agent.get_worker_info()
    logger.info(
        "RPC worker %r (rank %d) runs on %s (%s); address: %s; encryption: %s; in front: %s; hooks: %s",
        worker.name,
        worker.id,
        current.name,
        " ".join(filter(None, (current.distribution, current.version))) or "no package",
        current.address or "not known",
        current.encryption,
        ", ".join(current.in_front) or "nothing",
        ", ".join(current.hooks) or "none",
    )


def _in_front(running: Running) -> tuple[str, ...]:
    names = getattr(running.agent, "in_front", None)
    if isinstance(names, tuple) and all(isinstance(name, str) for name in names):
        return names
    return (type(running.agent).__qualname__,) if running.is_wrapped else ()


def _text(agent: Any, name: str) -> str | None:
    """Return an attribute that agents may have, if it is text that a log can show."""
    try:
        value = getattr(agent, name, None)
    except Exception:  # a property of a backend must not end a start
        return None
    return value if isinstance(value, str) and value and value.isprintable() else None


def _declared_encryption(resolved: ResolvedBackend) -> str:
    declared = Capability.ENCRYPTION in resolved.backend.capabilities
    return "declared" if declared else "not declared"
