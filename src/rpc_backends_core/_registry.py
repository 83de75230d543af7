"""The registry: all backends this process knows, looked up by name and loaded on demand.

Lookup order: backends registered in this process, installed plugins, torch's own. The lock is never
held during an import: the plugin being imported may call the registry, from this thread or from
another thread that waits for the same import.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rpc_backends_core._adoption import Adopted
from rpc_backends_core._conflicts import denied, not_loaded, resolve_conflicts, shadowed
from rpc_backends_core._errors import UnknownBackendError
from rpc_backends_core._record import Record

if TYPE_CHECKING:
    from rpc_backends_core._backend import Backend
    from rpc_backends_core._discovery import Scan, Unreadable

#: The packages of this project, by the backend that they provide.
_PACKAGES = {
    "TENSORPIPE": "rpc-backend-tensorpipe",
    "FAULTY_TENSORPIPE": "rpc-backend-faulty-tensorpipe",
    "ZEROMQ": "rpc-backend-zeromq",
    "UCX": "rpc-backend-ucx",
}


class Registry:
    """All backends of a process. Thread-safe; usable after a fork.

    :param scan: scans the installed packages; called once, lazily, and again after :meth:`refresh`.
    :param on_loaded: called with the record of each plugin that was loaded or failed to load.
    """

    def __init__(
        self,
        scan: Callable[[], Scan] | None = None,
        on_loaded: Callable[[Record], None] | None = None,
    ) -> None:
        self._scan = scan
        self.on_loaded = on_loaded
        self._lock = threading.RLock()
        self._process: dict[str, Record] = {}
        self._torch: dict[str, Record] = {}
        self._plugins: dict[str, Record] | None = None
        self._unusable: list[Record] = []
        self._hooks: list[Record] = []
        self._adopted = Adopted()
        self._unreadable: Sequence[Unreadable] = ()
        self._variables: Sequence[Record] = ()
        self._misspelt: list[tuple[str, Record]] | None = None
        self._order: dict[str, None] = {}
        _renew_lock_after_fork(self)

    # --- lookup -----------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the available names; names already listed keep their order."""
        plugins = self._installed()
        with self._lock:
            known = {**self._torch, **self._process}
            # A plugin's name stays among the plugins even if loading it makes torch register a
            # backend of the same name.
            for name in (
                *(known_name for known_name in known if known_name not in plugins),
                *sorted(plugins),
            ):
                self._order.setdefault(name)
            return [name for name in self._order if name in known or self._usable(plugins, name)]

    def knows(self, name: str) -> bool:
        """Return whether there is a backend ``name``, ignoring case."""
        if not isinstance(name, str):
            return False
        names = self.names()
        return name in names or name.casefold() in {known.casefold() for known in names}

    def find(self, name: str) -> Record:
        """Return the record of the backend called ``name``, ignoring case if there is no exact match.

        :raises UnknownBackendError: there is no such backend; the message suggests the nearest name.
        :raises BackendConflictError: several installed packages claim it.
        :raises BackendDeniedError: an environment variable forbids it.
        """
        if not isinstance(name, str):
            raise UnknownBackendError(f"{name!r} is a {type(name).__name__}, not a backend's name.")
        # A backend registered here is found without scanning the installed packages.
        with self._lock:
            if name in self._process:
                return self._process[name]
        plugins = self._installed()
        with self._lock:
            layers = (self._process, plugins, self._torch)
            refused: BaseException | None = None
            for same in (str.__eq__, _equal_without_case):
                for layer in layers:
                    for known, record in layer.items():
                        if not same(known, name):
                            continue
                        if record.state == "conflict":
                            raise _fresh(record.error)
                        if record.state != "denied":
                            return record
                        refused = refused or record.error
        if refused is not None:
            raise _fresh(refused)
        raise UnknownBackendError(self._unknown(name))

    def records(self) -> list[Record]:
        """Return the records of all backends, including unusable and shadowed ones."""
        plugins = self._installed()
        first: set[str] = set()
        result: list[Record] = []
        with self._lock:
            for layer in (self._process, plugins, self._torch):
                for record in layer.values():
                    result.append(shadowed(record) if record.name in first else record)
                    if record.state != "denied":
                        first.add(record.name)
            return result + self._unusable

    def hook_packages(self) -> list[Record]:
        """Return the records of the hook packages."""
        self._installed()
        with self._lock:
            return list(self._hooks)

    def declared_variables(self) -> list[Record]:
        """Return the entry points with which packages declare the variables that they read."""
        self._installed()
        with self._lock:
            return list(self._variables)

    def is_registered(self, name: str) -> bool:
        """Return whether ``name`` was registered in this process, by torch or a program."""
        with self._lock:
            return name in self._process or name in self._torch

    def registered(self) -> list[Record]:
        """Return the backends registered in this process, including torch's own, oldest first."""
        with self._lock:
            return [*self._torch.values(), *self._process.values()]

    def refresh(self) -> None:
        """Forget the results of the last scan; the next lookup scans again.

        Loaded backends stay loaded while their package is installed; failed ones are tried again.
        """
        import importlib

        importlib.invalidate_caches()
        plugins, unusable, hooks = self._look()
        with self._lock:
            for name, record in plugins.items():
                before = (self._plugins or {}).get(name)
                if before is not None and before.state == "loaded" and record.state == "found":
                    plugins[name] = before if before.is_same_package(record) else record
            self._plugins, self._unusable, self._hooks = plugins, unusable, hooks
            self._misspelt = None

    # --- loading -----------------------------------------------------------------------------------

    def backend(self, name: str) -> Backend:
        """Return the backend ``name``, importing its package if necessary; see :meth:`load`."""
        backend = self.load(name).backend
        assert backend is not None, "it has just been loaded"
        return backend

    def load(self, backend: str | Record) -> Record:
        """Return the record of ``backend`` after loading it, importing its package if necessary.

        :param backend: a name or a record.
        :raises BackendLoadError: loading failed; the cause is chained. A failure is remembered and
            raised again. Looking up a name raises the errors of :meth:`find`.
        """
        record = self.find(backend) if isinstance(backend, str) else self._current(backend)
        if record.backend is not None:
            return record
        if record.error is not None:
            raise _fresh(record.error)
        loaded = self._import(record)
        with self._lock:
            now = self._current(record)
            # Another thread may have finished first with the same outcome.
            news = now.backend is None and (now.error is None or loaded.error is None)
            if news:
                self._replace(loaded)
        record = loaded if news else now
        if news and self.on_loaded is not None:
            self.on_loaded(record)
        if record.backend is None:
            raise _fresh(record.error)
        return record

    def _import(self, record: Record) -> Record:
        """Import the package of ``record`` and return the updated record, loaded or failed."""
        from rpc_backends_core import _discovery
        from rpc_backends_core._backend import NotABackendError, as_backend

        try:
            with self._adopted.loading(record):
                named = _discovery.load(record)
            try:
                backend = as_backend(named, record.distribution)
            except NotABackendError:
                handlers = self._adopted.get(record.name)
                if handlers is None:
                    raise
                backend = as_backend(handlers, record.distribution)
        except (Exception, SystemExit) as cause:
            error = not_loaded(record, cause, fallback=record.name in self._torch)
            return replace(record, state="failed", error=error)
        options_type = record.options_type or backend.options_type
        return replace(record, state="loaded", backend=backend, options_type=options_type)

    def learn_options_type(self, record: Record, options_type: type) -> None:
        """Remember a backend's options class, so that options of that class select the backend."""
        with self._lock:
            now = self._current(record)
            if now.options_type is None:
                self._replace(replace(now, options_type=options_type))

    def _layer(self, record: Record) -> dict[str, Record]:
        layers = {"process": self._process, "torch": self._torch, "plugin": self._plugins or {}}
        return layers[record.source]

    def _current(self, record: Record) -> Record:
        """Return the registry's current record of the backend, or ``record`` if it is gone."""
        with self._lock:
            now = self._layer(record).get(record.name)
            return now if now is not None and now.is_same_package(record) else record

    def _replace(self, record: Record) -> None:
        layer = self._layer(record)
        if record.name in layer:
            layer[record.name] = record

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
    ) -> Record:
        """Register a backend in this process.

        :param owner: the module that registers it.
        :param torch_own: whether one of torch's own modules registers it. It then ranks below
            installed plugins, and may have the name of a plugin.
        :param look: also look for an installed plugin of that name, which requires a scan. If the
            plugin's own package registers it, the handlers are kept for the plugin; otherwise the name
            is taken.
        :raises RuntimeError: the name is taken (torch's message).
        :raises TypeError: the name is not a string.
        """
        from rpc_backends_core._builtin_backends import registered_backend, unavailable

        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of an RPC backend must be a string, not {name!r}.")
        with self._lock:
            layer = self._torch if torch_own else self._process
            taken = name in layer or (not torch_own and name in self._torch)
        if look and not taken and not torch_own:
            plugins = self._installed()
            with self._lock:
                taken = self._usable(plugins, name)
                if taken and self._adopted.offer(plugins[name], handlers, owner):
                    return plugins[name]
        if taken:
            raise RuntimeError(f"RPC backend {name}: already registered")
        record = Record(
            name,
            "torch" if torch_own else "process",
            "torch" if torch_own else owner,
            _torch_version() if torch_own else None,
        )
        try:
            backend = registered_backend(name, handlers, options_type, torch_own=torch_own)
        except TypeError as error:  # raised when the backend is used; other backends are unaffected
            record = replace(record, state="failed", error=error)
        else:
            kind = backend.options_type
            record = replace(record, state="registered", backend=backend, options_type=kind)
        if torch_own:
            record = unavailable(record)
        with self._lock:
            if name in layer:  # another thread registered it first
                raise RuntimeError(f"RPC backend {name}: already registered")
            layer[name] = record
            if not torch_own or not look:
                self._order.setdefault(name)
        return record

    def unregister(self, name: str) -> None:
        """Remove a backend that was registered in this process.

        :raises UnknownBackendError: nothing of that name was registered here.
        """
        with self._lock:
            if self._process.pop(name, None) is not None:
                return
        where = "installed or torch's own" if self.knows(name) else "unknown"
        raise UnknownBackendError(
            f"RPC backend {name!r} was not registered in this process (it is {where}), so it "
            "cannot be unregistered. To remove an installed backend, use pip uninstall or "
            f"RPC_BACKENDS_DENY={name}."
        )

    # --- internals
    # ------------------------------------------------------------------------------------

    def _installed(self) -> dict[str, Record]:
        """Return the plugins by name; the first call scans for them."""
        with self._lock:
            if self._plugins is not None:
                return self._plugins
        plugins, unusable, hooks = self._look()
        with self._lock:
            if self._plugins is None:
                self._plugins, self._unusable, self._hooks = plugins, unusable, hooks
            return self._plugins

    def _look(self) -> tuple[dict[str, Record], list[Record], list[Record]]:
        """Scan the installed packages, without changing the registry."""
        from rpc_backends_core import _discovery
        from rpc_backends_core._builtin_backends import unavailable
        from rpc_backends_core._settings import LOCK, Choice, value

        choice = Choice()
        scanned = (self._scan or _discovery.scan)()
        if (lock := value(LOCK)) is not None:
            from rpc_backends_core import _lock

            _lock.check(lock, scanned)
        plugins, unusable = resolve_conflicts(scanned.backends)
        with self._lock:
            self._unreadable, self._variables = scanned.unreadable, scanned.variables
        with self._lock:
            choice.check((*plugins, *self._torch))
        for name, record in plugins.items():
            denial = choice.denial(name)
            if denial is not None:
                plugins[name] = replace(record, state="denied", error=denied(record, denial))
            elif record.error is None:
                plugins[name] = unavailable(record)
        return plugins, unusable, scanned.hooks

    @staticmethod
    def _usable(plugins: dict[str, Record], name: str) -> bool:
        record = plugins.get(name)
        return record is not None and record.state not in ("conflict", "denied")

    def _unknown(self, name: str) -> str:
        from rpc_backends_core import _discovery
        from rpc_backends_core._settings import nearest

        names = self.names()
        close = None if name.upper() in _PACKAGES else nearest(name, (*names, *_PACKAGES))
        hint = f" Did you mean {close!r}?" if close else ""
        if close in _PACKAGES and close not in names:
            hint += f" It is in the package {_PACKAGES[close]}, which is not installed."
        invalid = [record for record in self._unusable if record.name == name]
        if invalid:
            return str(invalid[0].error)
        if self._misspelt is None:  # programs may ask for an unknown name often
            self._misspelt = _discovery.misspelt_groups()
        for meant, record in self._misspelt:
            if record.name.casefold() == name.casefold():
                text = _discovery.misspelt_group_text(meant, record)
                return f"no RPC backend {name!r}. {record.origin} {text}"
        # Only names of this project's own packages: any other name could be registered by a stranger.
        package = _PACKAGES.get(name.upper())
        comes = f"It comes with {package}: pip install {package}. " if package else ""
        return (
            f"no RPC backend {name!r}.{hint} Installed and registered: {', '.join(names) or 'none'}. "
            f"{comes}If you have just installed its package, call rpc_backends_core.refresh() or start "
            "a new process. `rpc-backends doctor` shows what was found."
            + "".join(f" Note that {unreadable}" for unreadable in self._unreadable)
        )


def _fresh(error: BaseException | None) -> BaseException:
    """Return a copy of a remembered error, so that its traceback does not grow with each raise."""
    assert error is not None
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def _equal_without_case(name: str, other: str) -> bool:
    return name.casefold() == other.casefold()


def _torch_version() -> str | None:
    import torch

    return str(torch.__version__)


def _renew_lock_after_fork(registry: Registry) -> None:
    """Give a forked child a new lock, because another thread may hold the copied one."""
    reference = weakref.ref(registry)

    def renew() -> None:
        alive = reference()
        if alive is not None:
            alive._lock = threading.RLock()

    os.register_at_fork(after_in_child=renew)
