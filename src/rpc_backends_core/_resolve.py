"""Choosing the backend of a call: by name, member, options, default or override."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rpc_backends_core import _handlers, _hooks
from rpc_backends_core._backend_type import coerce_member
from rpc_backends_core._builtin_backends import options_type_of
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._errors import (
    BackendLoadError,
    HookError,
    RefusedError,
    RpcBackendsError,
    SettingError,
    UnknownBackendError,
)
from rpc_backends_core._record import Record, ResolvedBackend
from rpc_backends_core._registry import Registry
from rpc_backends_core._settings import DEFAULT, OVERRIDE, REQUIRE_AUTH, Settings

logger = logging.getLogger("rpc_backends")

_TORCHS_DEFAULT = "TENSORPIPE"
#: Torch's defaults.
DEFAULT_TIMEOUT = 60.0
DEFAULT_INIT_METHOD = "env://"


def check_authentication(resolved: ResolvedBackend) -> None:
    """Refuse a start in which workers do not prove who they are.

    :raises RefusedError: they do not; the text says what to do.
    """
    lacks = resolved.backend.lacks_authentication
    begin = f"{REQUIRE_AUTH} permits only workers that prove who they are, and "
    if lacks is None:
        raise RefusedError(
            f"{begin}{resolved.name} cannot authenticate its peers: every process that reaches "
            "the port of a worker can run code in it. Use a backend that can, for all workers, such as "
            "ZEROMQ (RPC_BACKENDS_OVERRIDE=ZEROMQ), or unset the variable."
        )
    reason = lacks(resolved.options)
    if reason is not None:
        raise RefusedError(f"{begin}{resolved.name} would not authenticate its peers: {reason}")


def resolve(backend: Any) -> ResolvedBackend:
    """Load and return the backend for ``backend``: our member, torch's member, or a name.

    :raises TypeError: ``backend`` is none of these (torch's message).
    """
    registry = default_registry()
    return _loaded(registry, name_of(backend))


def resolve_start(
    backend: Any, options: Any, settings: Settings, *, is_dynamic: bool = False
) -> ResolvedBackend:
    """Return the backend, and its options, for an ``init_rpc`` with these arguments.

    ``RPC_BACKENDS_OVERRIDE`` comes first, then ``backend``, the type of ``options``,
    ``RPC_BACKENDS_DEFAULT``, and TENSORPIPE. If torch was built without TensorPipe, another installed
    backend takes its place.

    :param is_dynamic: whether the start joins a dynamic group.
    :raises TypeError: ``backend`` is neither a member nor a name, or no backend has this type of
        options.
    :raises SettingError: a variable names an unknown or unusable backend.
    :raises BackendContractError: the backend constructs something other than options.
    """
    registry = default_registry()
    asked = None if backend is None else name_of(backend)
    if settings.has_others:
        _warn_of_variables(registry, settings.override or asked or settings.default)
    if settings.override is not None:
        resolved = _overriding(registry, settings.override, asked, options)
    elif asked is not None:
        resolved = _loaded(registry, asked)
    elif options is not None:
        resolved = _loaded(registry, _by_options(registry, options, settings.default))
    else:
        resolved = _default(registry, settings.default)
    replaced_by = None if settings.override is None else OVERRIDE
    if resolved.record.state == "unavailable":
        from rpc_backends_core import _without_tensorpipe

        wanted = _without_tensorpipe.needs(options, is_dynamic=is_dynamic)
        record = _without_tensorpipe.replacement(registry, wanted)
        replaced_by = _without_tensorpipe.REASON
        if settings.override is not None:
            wish = f"{OVERRIDE}={settings.override}"
        elif asked is None and options is None and settings.default is not None:
            wish = f"{DEFAULT}={settings.default}"
        else:
            wish = _asked(asked, options)
        logger.info("%s: asked for %s, starting %s", replaced_by, wish, record.name)
        resolved = _loaded(registry, record)
    if options is None:
        options = construct_options(resolved, DEFAULT_TIMEOUT, DEFAULT_INIT_METHOD, {})
        _handlers.check_options(resolved, options)
    elif replaced_by is not None and not _takes(registry, resolved.record, options):
        from rpc_backends_core._carried_options import carried_options

        values = carried_options(resolved, options, replaced_by)
        options = construct_options(resolved, options.rpc_timeout, options.init_method, values)
        _handlers.check_options(resolved, options)
    return replace(resolved, options=options)


def construct_options(
    resolved: ResolvedBackend, rpc_timeout: float, init_method: str, options: Mapping[str, Any]
) -> Any:
    """Construct a backend's options through the hooks, and remember their type for lookups."""
    handler = _handlers.noted(resolved, _handlers.CONSTRUCT)
    constructed = resolved.hooks.rpc_backends_construct_options(
        backend=resolved.name,
        rpc_timeout=rpc_timeout,
        init_method=init_method,
        options=MappingProxyType(dict(options)),
        proceed=lambda: handler(rpc_timeout, init_method, **options),
    )
    if resolved.record.options_type is None and constructed is not None:
        default_registry().learn_options_type(resolved.record, type(constructed))
    return constructed


def check_default_options(name: str) -> None:
    """Construct the options of a backend without arguments and without hooks, and check them.

    :raises BackendContractError: the handler returns something other than options.
    """
    record = default_registry().load(name)
    assert record.backend is not None, "it has just been loaded"
    resolved = ResolvedBackend(record, record.backend, _hooks.Hooks([]).callers)
    options = construct_options(resolved, DEFAULT_TIMEOUT, DEFAULT_INIT_METHOD, {})
    _handlers.check_options(resolved, options)


def name_of(backend: Any) -> str:
    """Return the name for ``backend``: our member, torch's member, or a name.

    :raises TypeError: ``backend`` is none of these (torch's message).
    """
    if isinstance(backend, str):
        return backend
    member = coerce_member(backend)
    if member is None:
        raise TypeError(
            "Argument backend must be a member of BackendType, or a name; got "
            f"{backend!r} of type {type(backend).__name__}."
        )
    return str(member.name)


def _loaded(registry: Registry, name: str | Record) -> ResolvedBackend:
    """Load a backend. TENSORPIPE gets a stand-in if torch was built without TensorPipe."""
    try:
        record = registry.load(name)
        backend = record.backend
        assert backend is not None, "the registry has just loaded it"
    except BackendLoadError:
        record = registry.find(name) if isinstance(name, str) else name
        if record.state != "unavailable" or record.name != _TORCHS_DEFAULT:
            raise
        from rpc_backends_core import _without_tensorpipe

        backend = _without_tensorpipe.stand_in()
    return ResolvedBackend(record, backend, _hooks.loaded_hooks(registry))


def _default(registry: Registry, name: str | None) -> ResolvedBackend:
    try:
        return _loaded(registry, name or _TORCHS_DEFAULT)
    except UnknownBackendError as error:
        if name is None:
            raise
        raise _named(DEFAULT, name, error) from error.__cause__


def _overriding(registry: Registry, name: str, asked: str | None, options: Any) -> ResolvedBackend:
    try:
        resolved = _loaded(registry, name)
    except RpcBackendsError as error:
        raise _named(OVERRIDE, name, error) from error.__cause__
    is_same = asked is not None and asked.casefold() == resolved.name.casefold()
    if not is_same and resolved.record.state != "unavailable":
        logger.info(
            "%s: asked for %s, starting %s", OVERRIDE, _asked(asked, options), resolved.name
        )
    return resolved


def _asked(name: str | None, options: Any) -> str:
    """Return what a program has asked for, for the log."""
    if name is not None:
        return name
    return "no backend" if options is None else f"the backend of its {type(options).__name__}"


def _warn_of_variables(registry: Registry, starts: str | None) -> None:
    """Warn of variables that are probably misspelt, or whose package is not installed.

    :raises SettingError: such a variable asks for a protection of the worker.
    :param starts: the backend that starts, if that is known; this project's backends look at their own
        variables.
    """
    from rpc_backends_core import _other_variables

    records = [*registry.records(), *registry.hook_packages()]
    for variable in _other_variables.other_variables(
        records, os.environ, registry.declared_variables()
    ):
        if variable.problem is not None and variable.protects:
            raise SettingError(
                f"the environment variable {variable.name} asks for a protection that is not there: it "
                f"{variable.problem}"
            )
        is_of_started = starts is not None and variable.is_of(starts)
        if variable.problem is not None and not is_of_started:
            logger.warning("the environment variable %s %s", variable.name, variable.problem)


def _named(variable: str, name: str, error: RpcBackendsError) -> SettingError:
    """Return the error of a lookup, with the variable that has the name."""
    return SettingError(f"{variable}={name!r}: {error}")


def _takes(registry: Registry, record: Record, options: Any) -> bool:
    """Return whether a backend accepts ``options`` unchanged."""
    from torch.distributed.rpc import RpcBackendOptions

    kind = _known_type(record) or _constructed_type(registry, record)
    if kind is RpcBackendOptions:
        return type(options) is kind  # the base class would match every backend
    return kind is not None and isinstance(options, kind)


# --- by the type of options -------------------------------------------------------------------------


def _by_options(registry: Registry, options: Any, default: str | None) -> Record:
    """Find the backend with the nearest options type, loading and constructing as little as possible.

    An exact match anywhere takes precedence over a base class. The search goes through the known
    types, then the plugins of the package that defines the class, then all other plugins, and last
    the old-style backends, whose type is only known by constructing default options.
    """
    records = []
    for name in registry.names():
        try:
            records.append(registry.find(name))
        except RpcBackendsError:
            # Ignore an unusable backend unless these options are its own.
            if options_type_of(name) in type(options).__mro__:
                raise
    records.sort(key=lambda record: record.name.casefold() != (default or "").casefold())
    by_name = {record.name: record for record in records}
    loaded_type = functools.cache(lambda name: _loaded_type(registry, by_name[name]))
    constructed_type = functools.cache(lambda name: _constructed_type(registry, by_name[name]))

    for kind in type(options).__mro__:
        package = kind.__module__.partition(".")[0]
        own = [record for record in records if _package(record) == package]
        for candidates, type_of in (
            (records, lambda name: _known_type(by_name[name])),
            (own, loaded_type),
            (records, loaded_type),
            (records, constructed_type),
        ):
            for record in candidates:
                if type_of(record.name) is kind:
                    _report_inferred(record)
                    return record
    now = map(registry.find, by_name)  # loading may have revealed more options types
    types = ", ".join(
        f"{record.name}: {known.__name__}" for record in now if (known := _known_type(record))
    )
    raise TypeError(
        f"Could not infer backend for options {options!r} of type {type(options).__name__}. Pass "
        f"backend=NAME, or options of one of these types ({types})."
    )


def _report_inferred(record: Record) -> None:
    from torch.distributed import rpc

    if record.name != _TORCHS_DEFAULT:
        rpc.logger.warning(
            "init_rpc was given options of %(name)s and no backend, so it uses %(name)s rather "
            "than TENSORPIPE. Pass backend=%(name)r to make the choice explicit.",
            {"name": record.name},
        )


def _package(record: Record) -> str | None:
    """Return the Python package of an installed backend; None for other backends."""
    return record.value.partition(":")[0].partition(".")[0] if record.value else None


def _known_type(record: Record) -> type | None:
    return record.options_type or options_type_of(record.name)


def _loaded_type(registry: Registry, record: Record) -> type | None:
    if record.source != "plugin":
        return None
    try:
        return registry.load(record).options_type
    except RpcBackendsError:
        return None  # kept in its record, and raised if a program names this backend


def _constructed_type(registry: Registry, record: Record) -> type | None:
    """Return the type of an old-style backend's default options; None if it is unknown."""
    try:
        record = registry.load(record)
        if record.options_type is None:
            options = construct_options(
                _loaded(registry, record), DEFAULT_TIMEOUT, DEFAULT_INIT_METHOD, {}
            )
            return None if options is None else type(options)
    except HookError:
        raise  # not a failure of the backend
    except Exception:
        return None  # it has required options; a program that names it gets the error
    return record.options_type
