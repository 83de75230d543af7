"""Calling backends through the hooks of installed packages, and leaving out a package that breaks.

A hook package must never cost a program its training by a defect of its own. So an exception that a hook
raises *of itself* (the backend's handler did not fail) is reported under the package's name, the package
is left out, and the call goes on without it. `RefusedError` is how a hook forbids something on purpose.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from rpc_backends_core import hookspecs
from rpc_backends_core.errors import RefusedError
from rpc_backends_core.process import default_registry

if TYPE_CHECKING:
    from rpc_backends_core.discovery import Found
    from rpc_backends_core.entries import Entry


class HookWarning(UserWarning):
    """An installed hook package is broken and was left out."""


class HookState:
    """What became of one hook package.

    :ivar found: its entry point.
    :ivar error: why it was left out, None while it takes part.
    """

    def __init__(self, found: Found) -> None:
        self.found = found
        self.error: BaseException | None = None


class Hooks:
    """The hook packages of this process, behind one pluggy manager.

    :param found: the entry points of the hook packages.
    """

    def __init__(self, found: list[Found]) -> None:
        self.manager = pluggy.PluginManager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs.Specs)
        self.manager.register(_Core(), name="rpc_backends_core")
        self.states: dict[str, HookState] = {}
        for one in found:
            self._add(one)

    def call(self, hook: str, inner: Callable[[], Any], **kwargs: Any) -> Any:
        """Call ``hook`` with ``inner`` as what the hooks go around.

        :returns: what the hooks and ``inner`` make of it.
        """
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        while True:
            work = _Work(inner)
            try:
                with _working(work):
                    return caller(**kwargs)
            except RefusedError:
                raise
            except Exception as error:
                # What the backend's own failure became on its way out is the caller's to see.
                guilty = None if work.failed else self._guilty(error, caller)
                if guilty is None:
                    raise
                self._leave_out(guilty, error)
                if work.done:
                    return work.result

    def tell(self, hook: str, **kwargs: Any) -> None:
        """Call a hook that only informs; nobody's failure stops the others."""
        while True:
            try:
                getattr(self.manager.hook, hook)(**kwargs)
            except Exception as error:
                guilty = self._guilty(error, getattr(self.manager.hook, hook))
                if guilty is None:
                    raise
                self._leave_out(guilty, error)
            else:
                return

    def _add(self, found: Found) -> None:
        name = f"{found.origin} ({found.name})"
        self.states[name] = HookState(found)
        try:
            self.manager.register(found.entry_point.load(), name=name)
            # Validates every implementation's arguments and names.
            self.manager.check_pending()
        except (Exception, SystemExit) as error:
            self._leave_out(name, error)

    def _leave_out(self, name: str, error: BaseException) -> None:
        if name in self.states:
            self.states[name].error = error
        if self.manager.has_plugin(name):
            self.manager.unregister(name=name)
        found = self.states[name].found
        warnings.warn(
            f"the RPC hook package {name} is broken and was left out: {type(error).__name__}: {error}. "
            f"Mend it, or uninstall it: pip uninstall {found.distribution}.",
            HookWarning,
            stacklevel=4,
        )

    def _guilty(self, error: BaseException, caller: pluggy.HookCaller) -> str | None:
        """Return the package in whose hook ``error`` was raised."""
        codes = {
            getattr(impl.function, "__code__", None): impl.plugin_name
            for impl in caller.get_hookimpls()
            if impl.plugin_name in self.states
        }
        for frame in reversed(list(_frames(error))):
            if frame in codes:
                return codes[frame]
        # pluggy itself refuses a wrapper that does not yield once, and names its place.
        for code, name in codes.items():
            if code is not None and f"{code.co_filename}:{code.co_firstlineno}" in str(error):
                return name
        return None


class _Work:
    """The innermost part of one call (the backend's handler), and how it went."""

    def __init__(self, inner: Callable[[], Any]) -> None:
        self._inner = inner
        self.done = False
        self.failed = False
        self.result: Any = None

    def run(self) -> Any:
        try:
            self.result = self._inner()
        except BaseException:
            self.failed = True
            raise
        self.done = True
        return self.result


class _Core:
    """Our own implementations, called last: each does the work of the call that is under way."""

    @hookspecs.hookimpl(trylast=True)
    def rpc_backends_construct_options(self) -> Any:
        return _current.work[-1].run()

    @hookspecs.hookimpl(trylast=True)
    def rpc_backends_init_backend(self) -> Any:
        return _current.work[-1].run()

    @hookspecs.hookimpl(trylast=True)
    def rpc_backends_agent(self) -> Any:
        return _current.work[-1].run()


class _PerThread(threading.local):
    """The calls under way in this thread, innermost last, and the backend being initialised."""

    def __init__(self) -> None:
        self.work: list[_Work] = []
        self.backend: str | None = None


@contextlib.contextmanager
def _working(work: _Work) -> Iterator[None]:
    _current.work.append(work)
    try:
        yield
    finally:
        _current.work.pop()


def construct_options(
    backend: str,
    handler: Callable[..., Any],
    rpc_timeout: float,
    init_method: str,
    options: Mapping[str, Any],
) -> Any:
    """Construct options through the hooks."""
    return _hooks().call(
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
        return _hooks().call(
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
    return _hooks().call("rpc_backends_agent", lambda: agent, backend=_current.backend, agent=agent)


def states() -> list[HookState]:
    """Return what became of each installed hook package."""
    return list(_hooks().states.values())


def forget() -> None:
    """Drop the hook packages; the next call loads those that are then installed."""
    _made.clear()


def _hooks() -> Hooks:
    hooks = _made.get("hooks")
    if hooks is None:
        # No lock, which a fork could copy while it is held: hook packages are imported here. Of two
        # threads that do so at once, one is heard.
        hooks = _made.setdefault("hooks", Hooks(default_registry().hook_packages()))
    return hooks


def tell_outcome(entry: Entry) -> None:
    """Tell the hooks that a plugin was loaded, or could not be."""
    name = "rpc_backends_loaded" if entry.error is None else "rpc_backends_failed"
    _hooks().tell(name, record=entry.record())


def _frames(error: BaseException) -> Iterator[Any]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next


_current = _PerThread()
_made: dict[str, Hooks] = {}
