"""Which backend a program means that names it, gives options, or does neither."""

from __future__ import annotations

from typing import Any

from rpc_backends_core import _settings as settings
from rpc_backends_core._api import as_member, construct_rpc_backend_options
from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._bridge import options_type_of_torchs
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._entries import Entry
from rpc_backends_core._errors import RpcBackendsError, SettingError, UnknownBackendError

_TORCHS_DEFAULT = "TENSORPIPE"


def choose(backend: Any, options: Any) -> Any:
    """Return the member that ``backend`` and ``options`` of an ``init_rpc`` call mean.

    :raises TypeError: ``backend`` is neither a member nor a name, or no backend has options of that type.
    :raises SettingError: ``RPC_BACKENDS_DEFAULT`` names no backend.
    """
    if backend is not None:
        return as_member(backend)
    if options is not None:
        return _by_options(options)
    return _default()


def _default() -> Any:
    name = settings.default_backend()
    if name is None:
        return BackendType[_TORCHS_DEFAULT]
    try:
        return BackendType[name]
    except UnknownBackendError as error:
        raise SettingError(f"{settings.DEFAULT}={name!r}: {error}") from error


def _by_options(options: Any) -> Any:
    """Find the backend whose options type is nearest, loading and constructing as little as can be.

    From the options' own class to its bases: first types that are known, then plugins of the package
    that the class is from. Only then all other plugins; and last old-style backends, of which nothing
    but their default options tells the type.
    """
    registry = default_registry()
    entries = []
    for name in registry.names():
        try:
            entries.append(registry.entry(name))
        except RpcBackendsError:
            # A name that cannot be used is in nobody's way, unless the options are its own.
            if options_type_of_torchs(name) in type(options).__mro__:
                raise
    default = (settings.default_backend() or "").casefold()
    entries.sort(key=lambda entry: entry.name.casefold() != default)

    for kind in type(options).__mro__:
        package = kind.__module__.partition(".")[0]
        for entry in entries:
            if _known_type(entry) is kind:
                return BackendType[entry.name]
        for entry in entries:
            if _package(entry) == package and _loaded_type(entry) is kind:
                return BackendType[entry.name]
    for learn in (_loaded_type, _constructed_type):
        learned = [(entry, learn(entry)) for entry in entries]
        for kind in type(options).__mro__:
            for entry, own in learned:
                if own is kind:
                    return BackendType[entry.name]
    types = ", ".join(
        f"{entry.name}: {known.__name__}" for entry in entries if (known := _known_type(entry))
    )
    raise TypeError(
        f"Could not infer backend for options {options!r} of type {type(options).__name__}. Pass "
        f"backend=NAME, or options of one of these types ({types})."
    )


def options_type(entry: Entry) -> type | None:
    """Return the class of a backend's options, loading and constructing if need be; None if not known."""
    return _known_type(entry) or _loaded_type(entry) or _constructed_type(entry)


def _package(entry: Entry) -> str | None:
    """Return the package that an installed backend is in, None for any other backend."""
    return entry.value.partition(":")[0].partition(".")[0] if entry.value else None


def _known_type(entry: Entry) -> type | None:
    return entry.options_type or options_type_of_torchs(entry.name)


def _loaded_type(entry: Entry) -> type | None:
    if entry.source != "plugin":
        return None
    try:
        return default_registry().load(entry).options_type
    except RpcBackendsError:
        return None  # kept on its record; whoever names that backend is told


def _constructed_type(entry: Entry) -> type | None:
    """Return the type of an old-style backend's default options, None if it cannot be known."""
    if entry.options_type is not None or entry.state not in ("registered", "loaded"):
        return entry.options_type
    try:
        return type(construct_rpc_backend_options(entry.name))
    except Exception:
        return None
