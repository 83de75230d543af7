"""The registry: every backend this process knows of, found by name, loaded only when asked for.

Lookup order: registered in this process, then an installed plugin, then torch's own. Nothing is
imported while the lock is held: a plugin's import may ask the registry for a backend, from this thread
or from another one that waits for the same import.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rpc_backends_core._entries import Entry, denied, not_loaded, settle, shadowed
from rpc_backends_core._errors import BackendLoadError, UnknownBackendError

if TYPE_CHECKING:
    from rpc_backends_core._backend import Backend
    from rpc_backends_core._discovery import Found, Scan


class Registry:
    """All backends of a process. Thread-safe; usable after a fork.

    :param scan: looks at the installed packages; called once, lazily, and by :meth:`refresh`.
    """

    def __init__(self, scan: Callable[[], Scan] | None = None) -> None:
        self._scan = scan
        self._lock = threading.RLock()
        self._process: dict[str, Entry] = {}
        self._torch: dict[str, Entry] = {}
        self._plugins: dict[str, Entry] | None = None
        self._unusable: list[Entry] = []
        self._hooks: list[Found] = []
        self._order: dict[str, None] = {}
        self.on_outcome: Callable[[Entry], None] | None = None
        _renew_lock_after_fork(self)

    # --- what there is -----------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names that can be asked for; an earlier name never changes its place."""
        plugins = self._installed()
        with self._lock:
            known = {**self._torch, **self._process}
            # A plugin's name has its place among the plugins, also if loading it makes torch register
            # one of its own.
            for name in (*(one for one in known if one not in plugins), *sorted(plugins)):
                self._order.setdefault(name)
            return [name for name in self._order if name in known or self._usable(plugins, name)]

    def knows(self, name: str) -> bool:
        """Return whether ``name`` (in any case) can be asked for."""
        if not isinstance(name, str):
            return False
        names = self.names()
        return name in names or name.casefold() in {known.casefold() for known in names}

    def entry(self, name: str) -> Entry:
        """Return the backend of that name, which a string of another case finds too.

        :raises UnknownBackendError: there is none; the message has the nearest name.
        :raises BackendConflictError: several installed packages claim it.
        :raises BackendDeniedError: an environment variable forbids it.
        """
        if not isinstance(name, str):
            raise UnknownBackendError(f"{name!r} is a {type(name).__name__}, not a backend's name.")
        # What is registered here needs no look at the installed packages.
        with self._lock:
            if name in self._process:
                return self._process[name]
        plugins = self._installed()
        with self._lock:
            layers = (self._process, plugins, self._torch)
            refused: Exception | None = None
            for same in (str.__eq__, _equal_without_case):
                for layer in layers:
                    for known, entry in layer.items():
                        if not same(known, name):
                            continue
                        if entry.state in ("conflict", "denied"):
                            refused = refused or entry.error
                            if entry.state == "conflict":
                                raise _fresh(entry.error)
                            continue
                        return entry
        if refused is not None:
            raise _fresh(refused)
        raise UnknownBackendError(self._unknown(name))

    def entries(self) -> list[Entry]:
        """Return every backend, the unusable and the shadowed ones too."""
        plugins = self._installed()
        first: set[str] = set()
        result: list[Entry] = []
        with self._lock:
            for layer in (self._process, plugins, self._torch):
                for entry in layer.values():
                    result.append(shadowed(entry) if entry.name in first else entry)
                    if entry.state not in ("denied",):
                        first.add(entry.name)
            return result + self._unusable

    def hook_packages(self) -> list[Found]:
        """Return the entry points of packages that hook into calls."""
        self._installed()
        with self._lock:
            return list(self._hooks)

    def is_registered(self, name: str) -> bool:
        """Return whether ``name`` was registered in this process, by torch or by anybody."""
        with self._lock:
            return name in self._process or name in self._torch

    def registered(self) -> list[Entry]:
        """Return what was registered in this process, torch's own included, the oldest first."""
        with self._lock:
            return [*self._torch.values(), *self._process.values()]

    def refresh(self) -> None:
        """Forget what was found among the installed packages; the next question looks again.

        What has been loaded stays loaded while its package is there; what had failed is tried anew.
        """
        import importlib

        importlib.invalidate_caches()
        plugins, unusable, hooks = self._look()
        with self._lock:
            for name, entry in plugins.items():
                before = (self._plugins or {}).get(name)
                if before is not None and before.state == "loaded" and entry.state == "found":
                    plugins[name] = before if before.same_package(entry) else entry
            self._plugins, self._unusable, self._hooks = plugins, unusable, hooks

    # --- loading -----------------------------------------------------------------------------------

    def backend(self, name: str) -> Backend:
        """Return the backend ``name``, importing its package if that has not been done yet.

        :raises BackendLoadError: with the cause chained; see :meth:`entry` for the others.
        """
        return self.load(self.entry(name))

    def load(self, entry: Entry) -> Backend:
        """Return what ``entry`` stands for; a failure is remembered and raised again."""
        from rpc_backends_core._backend import Backend, as_backend
        from rpc_backends_core._builtin_backends import CAPABILITIES

        if isinstance(entry.backend, tuple):  # a pair from register_backend, taken as it is
            pair = entry.backend
            known = CAPABILITIES.get(entry.name) if entry.source == "torch" else None
            entry.backend = Backend(
                construct_rpc_backend_options_handler=pair[0],
                init_backend_handler=pair[1],
                options_type=entry.options_type,
                capabilities=known or frozenset(),
            )
        if entry.backend is not None:
            return entry.backend
        if entry.error is not None:
            raise _fresh(entry.error)
        error: BackendLoadError | None = None
        backend: Backend | None = None
        try:
            backend = as_backend(entry.entry_point.load())
        except (Exception, SystemExit) as cause:
            error = not_loaded(entry, cause, fallback=entry.name in self._torch)
        with self._lock:
            if entry.backend is not None:  # another thread was first
                return entry.backend
            news = entry.error is None
            if backend is not None:
                entry.backend, entry.state, entry.error = backend, "loaded", None
                entry.options_type = entry.options_type or backend.options_type
            elif news:
                entry.error, entry.state = error, "failed"
        if news and self.on_outcome is not None:
            self.on_outcome(entry)
        if backend is None:
            raise _fresh(entry.error)
        return backend

    # --- registering in this process ----------------------------------------------------------------

    def register(
        self,
        name: str,
        handlers: tuple[Any, Any] | Backend,
        *,
        owner: str,
        torch_own: bool = False,
        options_type: type | None = None,
        look: bool = True,
    ) -> Entry:
        """Register a backend in this process.

        :param owner: the module that asks for it.
        :param torch_own: torch's own modules register it: it then ranks below installed plugins, and
            registering it when a plugin has the name is no error.
        :param look: also refuse a name that an installed plugin has, which needs a scan.
        :raises RuntimeError: the name is taken; torch's text.
        :raises TypeError: it is not a string.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of an RPC backend must be a string, not {name!r}.")
        with self._lock:
            layer = self._torch if torch_own else self._process
            taken = name in layer or (not torch_own and name in self._torch)
        if look and not taken and not torch_own:
            plugins = self._installed()
            with self._lock:
                taken = self._usable(plugins, name)
        if taken:
            raise RuntimeError(f"RPC backend {name}: already registered")
        entry = Entry(
            name,
            "torch" if torch_own else "process",
            "registered",
            distribution="torch" if torch_own else owner,
            version=_torch_version() if torch_own else None,
            backend=handlers,
        )
        entry.options_type = options_type or entry.options_type
        with self._lock:
            if name in layer:  # another thread was first
                raise RuntimeError(f"RPC backend {name}: already registered")
            layer[name] = entry
            if not torch_own or not look:
                self._order.setdefault(name)
        return entry

    def unregister(self, name: str) -> None:
        """Undo a registration that was made in this process.

        :raises UnknownBackendError: nothing of that name was registered here.
        """
        with self._lock:
            if self._process.pop(name, None) is not None:
                return
        where = "installed or torch's own" if self.knows(name) else "unknown"
        raise UnknownBackendError(
            f"RPC backend {name!r} was not registered in this process (it is {where}), so there is "
            "nothing to undo. An installed backend is removed with pip uninstall, or left out with "
            f"RPC_BACKENDS_DENY={name}."
        )

    # --- inside ------------------------------------------------------------------------------------

    def _installed(self) -> dict[str, Entry]:
        """Return the plugins by name, looking for them if nobody has."""
        with self._lock:
            if self._plugins is not None:
                return self._plugins
        plugins, unusable, hooks = self._look()
        with self._lock:
            if self._plugins is None:
                self._plugins, self._unusable, self._hooks = plugins, unusable, hooks
            return self._plugins

    def _look(self) -> tuple[dict[str, Entry], list[Entry], list[Found]]:
        """Look at the installed packages; changes nothing."""
        from rpc_backends_core import _discovery as discovery
        from rpc_backends_core._settings import Choice

        choice = Choice()
        found = (self._scan or discovery.scan)()
        plugins, unusable = settle(found.backends)
        with self._lock:
            choice.check((*plugins, *self._torch))
        for entry in plugins.values():
            denial = choice.denial(entry.name)
            if denial is not None:
                entry.state, entry.error = "denied", denied(entry, denial)
        return plugins, unusable, found.hooks

    @staticmethod
    def _usable(plugins: dict[str, Entry], name: str) -> bool:
        entry = plugins.get(name)
        return entry is not None and entry.state not in ("conflict", "denied")

    def _unknown(self, name: str) -> str:
        from rpc_backends_core._settings import nearest

        names = self.names()
        close = nearest(name, names)
        hint = f" Did you mean {close!r}?" if close else ""
        invalid = [entry for entry in self._unusable if entry.name == name]
        if invalid:
            return str(invalid[0].error)
        package = f"rpc-backend-{name.lower().replace('_', '-')}"
        return (
            f"no RPC backend {name!r}.{hint} Installed and registered: {', '.join(names) or 'none'}. "
            f"A backend comes with its package (by convention `pip install {package}`); "
            "if you have just installed it, call rpc_backends_core.refresh() or start a new process. "
            "`rpc-backends doctor` shows what was found."
        )


def _fresh(error: Exception | None) -> Exception:
    """Return a copy of a remembered error, so that tracebacks do not pile up on one object."""
    assert error is not None
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def _equal_without_case(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()


def _torch_version() -> str | None:
    import torch

    return str(torch.__version__)


def _renew_lock_after_fork(registry: Registry) -> None:
    """Keep a fork from copying a lock that another thread holds."""
    reference = weakref.ref(registry)

    def renew() -> None:
        alive = reference()
        if alive is not None:
            alive._lock = threading.RLock()

    os.register_at_fork(after_in_child=renew)
