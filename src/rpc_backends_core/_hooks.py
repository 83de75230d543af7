"""The installed hook packages, managed by pluggy.

A hook package that cannot be loaded is skipped with a warning, so that it does not stop a training
run. If the user has set one of its variables, and so relies on it, it is an error instead. An
exception raised by a hook reaches the caller as a `HookError` that names the package.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import types
import warnings
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pluggy

from rpc_backends_core import _discovery, _hookspecs
from rpc_backends_core._errors import HookError, RefusedError
from rpc_backends_core._process_state import STATE
from rpc_backends_core._settings import VARIABLES
from rpc_backends_core._spi_version import check_spi_version

if TYPE_CHECKING:
    from rpc_backends_core._record import Record
    from rpc_backends_core._registry import Registry


class HookWarning(UserWarning):
    """An installed hook package is broken and was skipped."""


class Hooks:
    """The hook packages of one process.

    :param packages: the records of the packages.
    :ivar records: the same records, updated after loading.
    :ivar error: set if a package that the user relies on could not be loaded; every call raises it.
    """

    def __init__(self, packages: Iterable[Record]) -> None:
        self._manager = pluggy.PluginManager(_hookspecs.PROJECT)
        self._manager.add_hookspecs(_hookspecs.Specs)
        self._manager.register(_hookspecs.Defaults(), name="defaults")
        self.error: HookError | None = None
        self.records = [self._load(record) for record in packages]

    @property
    def callers(self) -> Any:
        """Pluggy's hook callers, one attribute for each hook.

        :raises HookError: a package that the user relies on could not be loaded.
        """
        if self.error is not None:
            raise HookError(*self.error.args) from self.error.__cause__
        return self._manager.hook

    def _load(self, record: Record) -> Record:
        package = f"{record.origin} ({record.name})"
        try:
            plugin = _discovery.load(record)
            check_spi_version(getattr(plugin, "spi_version", None), record.distribution)
            hooks = _guarded(plugin, package, self._manager)
            self._manager.register(hooks, name=package)
            self._manager.check_pending()  # validates hook names and arguments
        except (Exception, SystemExit) as error:
            if self._manager.has_plugin(package):
                self._manager.unregister(name=package)
            why = _words(error).rstrip(".")
            remedy = f"Fix it, or uninstall it: pip uninstall {record.distribution}."
            asked = [name for name in sorted(os.environ) if _is_variable_of(record.name, name)]
            if asked:
                self.error = HookError(
                    f"{asked[0]} is set, and the RPC hook package {package} cannot be used: "
                    f"{why}. {remedy} Unset {' and '.join(asked)} to run without it."
                )
                self.error.__cause__ = error
            else:
                warnings.warn(
                    f"the RPC hook package {package} is broken and was skipped: {why}. {remedy}",
                    HookWarning,
                    stacklevel=2,
                )
            return replace(record, state="failed", error=error)
        return replace(record, state="loaded")


def loaded(registry: Registry) -> Hooks:
    """Return the hook packages of this process; the first call imports them."""
    if STATE.hooks is None:
        if _loading.pending is not None:
            return Hooks([])  # a hook package being imported asks for a backend
        # No lock: a fork could copy it while it is held, and an import could deadlock on it. If two
        # threads import the packages at once, the first result is kept.
        _loading.pending = []
        try:
            hooks = Hooks(registry.hook_packages())
            STATE.hooks = STATE.hooks or hooks
            pending = _loading.pending
        finally:
            _loading.pending = None
        for record in pending:
            notify(registry, record)
    of_process: Hooks = STATE.hooks
    return of_process


def loaded_hooks(registry: Registry) -> Any:
    """Return pluggy's hook callers for this process, one attribute for each hook.

    :raises HookError: a package that the user relies on could not be loaded.
    """
    return loaded(registry).callers


def use(hooks: Hooks) -> None:
    """Use these hook packages in this process, in place of those that are installed."""
    STATE.hooks = hooks


def forget() -> None:
    """Drop the loaded hook packages; the next call loads whatever is installed then."""
    STATE.hooks = None


def notify(registry: Registry, record: Record) -> None:
    """Notify the hooks that a plugin was loaded or failed to load."""
    if _loading.pending is not None:
        _loading.pending.append(record)  # sent once the hook packages are loaded
    elif record.error is None:
        loaded_hooks(registry).rpc_backends_loaded(record=record)
    else:
        loaded_hooks(registry).rpc_backends_failed(record=record)


def _is_variable_of(package: str, variable: str) -> bool:
    """Return whether an environment variable belongs to a hook package, judging by its prefix."""
    own = f"RPC_BACKENDS_{package.upper().replace('-', '_')}"
    return variable not in VARIABLES and (variable == own or variable.startswith(f"{own}_"))


def _guarded(plugin: Any, package: str, manager: pluggy.PluginManager) -> types.SimpleNamespace:
    """Wrap the hooks of ``plugin`` so that their errors name its package."""
    hooks = types.SimpleNamespace()
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            continue
        function = getattr(plugin, name)
        if options.get("wrapper"):
            function = _guarded_wrapper(function, name, package)
        elif not options.get("hookwrapper"):  # pluggy calls old-style wrappers itself
            function = _guarded_function(function, name, package)
        setattr(hooks, name, function)
    if not vars(hooks):
        raise TypeError("it has no hooks; mark its functions with rpc_backends_core.hookimpl")
    return hooks


def _guarded_function(hook: Callable[..., Any], name: str, package: str) -> Callable[..., Any]:
    @functools.wraps(hook)  # also copies the hookimpl mark
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return hook(*args, **kwargs)
        except (RefusedError, HookError):
            raise
        except Exception as error:
            raise _hook_error(name, package, _words(error)) from error

    return call


def _guarded_wrapper(hook: Callable[..., Any], name: str, package: str) -> Callable[..., Any]:
    if not inspect.isgeneratorfunction(hook):
        raise TypeError(
            f"the wrapper {name} has no `yield`; it must have one and return its result"
        )

    @functools.wraps(hook)
    def call(*args: Any, **kwargs: Any) -> Generator[None, Any, Any]:
        wrapper = hook(*args, **kwargs)
        yielded = False
        inner: BaseException | None = None
        result = None
        try:
            next(wrapper)
            yielded = True
            try:
                result = yield
            except BaseException as error:
                inner, traceback = error, error.__traceback__
            wrapper.send(result) if inner is None else wrapper.throw(inner)
        except StopIteration as end:
            if not yielded:
                raise _hook_error(name, package, "it ended before its `yield`") from None
            if end.value is None and result is not None:
                problem = "it returned nothing; a wrapper must return what its `yield` gives it"
                raise _hook_error(name, package, problem) from None
            return end.value
        except (RefusedError, HookError):
            raise
        except Exception as error:
            if error is inner:
                error.__traceback__ = traceback  # without the frames of a wrapper that did nothing
            if inner is not None:
                raise  # the backend's own failure, perhaps translated by the hook: the caller gets it
            raise _hook_error(name, package, _words(error)) from error
        raise _hook_error(name, package, "it has a second `yield`; it must have exactly one")

    return call


def _hook_error(name: str, package: str, why: str) -> HookError:
    return HookError(
        f"the hook {name} of the RPC hook package {package} failed: {why}. "
        f"Fix the package, or uninstall it: pip uninstall {package.partition(' ')[0]}."
    )


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class _Loading(threading.local):
    """Plugins loaded by this thread while it imports the hook packages."""

    pending: list[Record] | None = None


_loading = _Loading()
