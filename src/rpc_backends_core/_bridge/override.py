"""``RPC_BACKENDS_OVERRIDE``: a backend in the place of the one that a program means.

Most programs that use torch's RPC name a backend, or pass the options of one. What those options have in
common with the options of the other backend is carried over.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed import rpc
from torch.distributed.rpc.constants import DEFAULT_NUM_WORKER_THREADS

from rpc_backends_core import _settings as settings
from rpc_backends_core._api import as_member, construct_rpc_backend_options
from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._bridge.resolve import options_type
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._errors import RpcBackendsError, SettingError

logger = logging.getLogger("rpc_backends")

#: What a handler gets by position.
_COMMON = ("rpc_timeout", "init_method")
#: Tensors would go elsewhere without these, so they are never left out.
_DEVICES = ("device_maps", "devices")
#: Defaults that torch's own classes do not tell, being in C++.
_DEFAULTS = {"num_worker_threads": DEFAULT_NUM_WORKER_THREADS}
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def backend_for(backend: Any, options: Any) -> Any:
    """Return the member that goes in the place of what a start means; None if none is set.

    :param backend: what the start names. A name need not be one that is known here.
    :param options: what it passes.
    :raises TypeError: ``backend`` is neither a member nor a name.
    :raises SettingError: the backend that is set is unknown or cannot be used.
    """
    name = settings.override_backend()
    if name is None:
        return None
    if backend is not None and not isinstance(backend, str):
        backend = as_member(backend).name
    try:
        member = BackendType[name]
        default_registry().backend(member.name)
    except RpcBackendsError as error:
        raise SettingError(f"{settings.OVERRIDE}={name!r}: {error}") from error
    asked = backend
    if asked is None:
        asked = "none" if options is None else f"the one of its {type(options).__name__}"
    if asked.casefold() != member.name.casefold():
        logger.info("%s: asked for %s, starting %s", settings.OVERRIDE, asked, member.name)
    return member


def options_for(member: Any, options: Any) -> Any:
    """Return options of ``member`` that say what ``options``, of any backend, say.

    Its own are returned as they are. Others are made anew by its construct handler, with each option that
    the handler has a keyword for. What it has none for is named in a warning if it is not the default.

    :raises ValueError: they have devices or device maps, and the handler takes none.
    """
    entry = default_registry().entry(member.name)
    if _is_of(options, options_type(entry)):
        return options
    taken = _keywords(default_registry().load(entry).construct_rpc_backend_options_handler)
    said = _said(options)
    left_out = {name: value for name, value in said.items() if name not in taken}
    _refuse_devices(member, left_out)
    if left_out:
        # Names alone: a value may be a secret.
        logger.warning(
            "%s: %s runs without %s, for which it has no option; the %s of the program set it.",
            settings.OVERRIDE,
            member.name,
            ", ".join(left_out),
            type(options).__name__,
        )
    carried = {name: value for name, value in said.items() if name in taken}
    if "num_worker_threads" in taken and hasattr(options, "num_worker_threads"):
        # Also its default: so many threads the program would have had.
        carried["num_worker_threads"] = options.num_worker_threads
    return construct_rpc_backend_options(
        member, options.rpc_timeout, options.init_method, **carried
    )


def _is_of(options: Any, kind: type | None) -> bool:
    """Return whether a backend whose options are of type ``kind`` takes ``options`` as they are."""
    if kind is rpc.RpcBackendOptions:
        return type(options) is kind  # the base of all: it would be every backend's
    return kind is not None and isinstance(options, kind)


def _keywords(handler: Callable[..., Any]) -> set[str]:
    """Return the options that a construct handler names; none where its signature cannot be read."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return set()  # written in C, without a signature
    by_position = [p.name for p in parameters if p.kind in _BY_POSITION]
    return {p.name for p in parameters if p.kind in _BY_KEYWORD} - {*by_position[: len(_COMMON)]}


def _said(options: Any) -> dict[str, Any]:
    """Return the options that are not their default, by name, without those that all backends have."""
    kind = type(options)
    defaults = _defaults(kind)
    names = dict.fromkeys((*_settable(kind), *getattr(options, "__dict__", ()), *defaults))
    said = {}
    for name in names:
        if name in _COMMON or not hasattr(options, name):
            continue
        if name.startswith("_") and name not in defaults:
            continue  # no option, but something it keeps
        value, default = getattr(options, name), defaults.get(name)
        if value != default and (value or default):
            said[name] = value
    return said


def _defaults(kind: type) -> dict[str, Any]:
    """Return what constructing options takes, with the defaults; None where there is no other."""
    defaults: dict[str, Any] = dict(_DEFAULTS)
    for base in reversed(kind.__mro__):
        try:
            _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        except (KeyError, TypeError, ValueError):
            continue  # it has none of its own, or one in C
        for one in parameters:
            if one.kind in _BY_KEYWORD:
                defaults[one.name] = None if one.default is one.empty else one.default
    return defaults


def _settable(kind: type) -> list[str]:
    """Return the names of what a class declares that can be set: torch's are properties in C++."""
    return [
        name
        for base in reversed(kind.__mro__)
        for name, what in vars(base).items()
        if inspect.ismemberdescriptor(what) or (isinstance(what, property) and what.fset)
    ]


def _refuse_devices(member: Any, left_out: Mapping[str, Any]) -> None:
    devices = [name for name in _DEVICES if name in left_out]
    if devices:
        asked = " and ".join(f"{name}={_plain(left_out[name])!r}" for name in devices)
        raise ValueError(
            f"{settings.OVERRIDE} puts {member.name} in the place of the program's backend, and the "
            f"program's options have {asked}. {member.name} has no device maps and takes no devices, so "
            f"tensors would not go where the program wants them. Take {' and '.join(devices)} out of the "
            f"options, or unset {settings.OVERRIDE}."
        )


def _plain(value: Any) -> Any:
    """Return devices as people write them."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, torch.device) else value
