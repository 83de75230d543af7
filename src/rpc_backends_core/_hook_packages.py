"""The installed hook packages behind one pluggy manager, and leaving out one that breaks.

A hook package must never cost a program its training by a defect of its own. So an exception that a hook
raises *of itself* (the backend's handler did not fail) is reported under the package's name, the package
is left out, and the call goes on without it. `RefusedError` is how a hook forbids something on purpose.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pluggy

from rpc_backends_core import _hookspecs as hookspecs
from rpc_backends_core._errors import RefusedError

if TYPE_CHECKING:
    from rpc_backends_core._discovery import Found


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


class HookPackages:
    """The hook packages of this process.

    :param found: their entry points.
    :param reported: names of packages that were reported before; added to.
    """

    def __init__(self, found: list[Found], reported: set[str] | None = None) -> None:
        self.manager = pluggy.PluginManager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs.Specs)
        self.manager.register(_Core(), name=_CORE)
        self.states: dict[str, HookState] = {}
        #: Whose each hook function is; stays when a package is left out, for calls still under way.
        #: By identity: code objects of different files may be equal.
        self._owners: dict[int, tuple[Any, list[str]]] = {}
        self._reported = set() if reported is None else reported
        for one in found:
            self._add(one)

    def call(self, hook: str, inner: Callable[[], Any], **kwargs: Any) -> Any:
        """Call ``hook`` with ``inner`` as what the hooks go around.

        :returns: what the hooks and ``inner`` make of it.
        """
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        while True:
            work = _Work(inner)
            taking_part = {name for name, plugin in self.manager.list_name_plugin() if plugin}
            try:
                with _working(work):
                    result = caller(**kwargs)
            except RefusedError:
                raise
            except Exception as error:
                # What the backend's own failure became on its way out is the caller's to see.
                guilty = None if work.failed else self._guilty(error, taking_part)
                if guilty is None:
                    raise
                self._leave_out(guilty, error)
                if work.done:
                    inner = _returning(work.result)  # once is enough; the other hooks go around it
                continue
            if result is None and work.result is not None:
                self._report_nothing_returned(caller)
                return work.result
            return result

    def tell(self, hook: str, **kwargs: Any) -> None:
        """Call a hook that only informs, package by package; nobody's failure stops the others."""
        everybody = self.manager.list_name_plugin()
        for name, plugin in everybody:
            if plugin is None or name == _CORE:
                continue
            others = [other for _, other in everybody if other is not None and other is not plugin]
            try:
                self.manager.subset_hook_caller(hook, others)(**kwargs)
            except Exception as error:
                self._leave_out(name, error)

    def _add(self, found: Found) -> None:
        name = f"{found.origin} ({found.name})"
        self.states[name] = HookState(found)
        try:
            plugin = found.entry_point.load()
            self.manager.register(plugin, name=name)
            # Validates every implementation's arguments and names.
            self.manager.check_pending()
        except (Exception, SystemExit) as error:
            self._leave_out(name, error)
            return
        for caller in self.manager.get_hookcallers(plugin) or ():
            for impl in caller.get_hookimpls():
                if impl.plugin is plugin:
                    code = getattr(impl.function, "__code__", None)
                    self._owners.setdefault(id(code), (code, []))[1].append(name)

    def _leave_out(self, name: str, error: BaseException) -> None:
        self.states[name].error = error
        with contextlib.suppress(
            AssertionError, ValueError
        ):  # another thread has left it out already
            if self.manager.has_plugin(name):
                self.manager.unregister(name=name)
        if name in self._reported:
            return
        self._reported.add(name)
        warnings.warn(
            f"the RPC hook package {name} is broken and was left out: {type(error).__name__}: {error}. "
            f"Mend it, or uninstall it: pip uninstall {self.states[name].found.distribution}.",
            HookWarning,
            stacklevel=5,
        )

    def _report_nothing_returned(self, caller: pluggy.HookCaller) -> None:
        wrappers = [
            impl.plugin_name for impl in caller.get_hookimpls() if impl.wrapper or impl.hookwrapper
        ]
        warnings.warn(
            f"a wrapper of {caller.name} returned nothing, so what it wraps was used; they are of "
            f"{', '.join(wrappers)}. A wrapper must return what its `yield` gives it.",
            HookWarning,
            stacklevel=5,
        )

    def _guilty(self, error: BaseException, taking_part: set[str]) -> str | None:
        """Return the package in whose hook ``error`` was raised.

        Of packages that share the code of a library, it is the first; the others' turn comes.
        """
        # pluggy itself refuses a wrapper that does not yield once, and names its place.
        for code, names in self._owners.values():
            if code is not None and f"{code.co_filename}:{code.co_firstlineno}" in str(error):
                return next((name for name in names if name in taking_part), None)
        for frame in reversed(list(_frames(error))):
            for name in self._owners.get(id(frame), (None, []))[1]:
                if name in taking_part:
                    return name
        return None


_CORE = "rpc_backends_core"


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


def _returning(result: Any) -> Callable[[], Any]:
    return lambda: result


class _Core:
    """Our own implementations, called last: each does the work of the call that is under way."""

    @hookspecs.hookimpl(trylast=True)
    def rpc_backends_construct_options(self) -> Any:
        return _under_way.work[-1].run()

    @hookspecs.hookimpl(trylast=True)
    def rpc_backends_init_backend(self) -> Any:
        return _under_way.work[-1].run()

    @hookspecs.hookimpl(trylast=True)
    def rpc_backends_agent(self) -> Any:
        return _under_way.work[-1].run()


class _PerThread(threading.local):
    """The calls under way in this thread, innermost last."""

    def __init__(self) -> None:
        self.work: list[_Work] = []


@contextlib.contextmanager
def _working(work: _Work) -> Iterator[None]:
    _under_way.work.append(work)
    try:
        yield
    finally:
        _under_way.work.pop()


def _frames(error: BaseException) -> Iterator[Any]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next


_under_way = _PerThread()
