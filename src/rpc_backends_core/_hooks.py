"""Calling backends through the hooks of installed packages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._hook_packages import HookPackages, HookState, HookWarning

if TYPE_CHECKING:
    from rpc_backends_core._entries import Entry

__all__ = [
    "HookState",
    "HookWarning",
    "agent_to_install",
    "construct_options",
    "forget",
    "init_backend",
    "states",
    "tell_outcome",
]


def construct_options(
    backend: str,
    handler: Callable[..., Any],
    rpc_timeout: float,
    init_method: str,
    options: Mapping[str, Any],
) -> Any:
    """Construct options through the hooks."""
    return _packages().call(
        "rpc_backends_construct_options",
        lambda: handler(rpc_timeout, init_method, **options),
        backend=backend,
        rpc_timeout=rpc_timeout,
        init_method=init_method,
        options=options,
    )


def init_backend(
    backend: str, handler: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Initialise a backend through the hooks."""
    before, _current.backend = _current.backend, backend
    try:
        return _packages().call(
            "rpc_backends_init_backend",
            lambda: handler(*args, **kwargs),
            backend=backend,
            args=args,
            kwargs=kwargs,
        )
    finally:
        _current.backend = before


def agent_to_install(agent: Any) -> Any:
    """Show the agent that is about to be installed to the hooks; return the one to install."""
    return _packages().call(
        "rpc_backends_agent", lambda: agent, backend=_current.backend, agent=agent
    )


def tell_outcome(entry: Entry) -> None:
    """Tell the hooks that a plugin was loaded, or could not be."""
    if _current.importing is not None:
        _current.importing.append(entry)  # told when the hook packages are there
        return
    name = "rpc_backends_loaded" if entry.error is None else "rpc_backends_failed"
    _packages().tell(name, record=entry.record())


def states() -> list[HookState]:
    """Return what became of each installed hook package."""
    return list(_packages().states.values())


def forget() -> None:
    """Drop the hook packages; the next call loads those that are then installed."""
    _made.clear()
    _reported.clear()


def _packages() -> HookPackages:
    packages = _made.get("packages")
    if packages is not None:
        return packages
    if _current.importing is not None:
        # A hook package asks for a backend while it is being imported: nobody can go around that.
        return HookPackages([])
    # No lock, which a fork could copy while it is held and an import could wait for. Of two threads
    # that import the packages at once, one is heard.
    _current.importing = []
    try:
        found = default_registry().hook_packages()
        packages = _made.setdefault("packages", HookPackages(found, _reported))
        waiting = _current.importing
    finally:
        _current.importing = None
    for entry in waiting:
        tell_outcome(entry)
    return packages


class _PerThread(threading.local):
    """What this thread is at.

    :ivar backend: the backend being initialised.
    :ivar importing: while hook packages are imported, the backends loaded by that.
    """

    def __init__(self) -> None:
        self.backend: str | None = None
        self.importing: list[Entry] | None = None


_current = _PerThread()
_made: dict[str, HookPackages] = {}
_reported: set[str] = set()
