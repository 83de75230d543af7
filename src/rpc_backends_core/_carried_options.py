"""Converting a program's options to those of the backend that is started in place of its own."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.rpc.constants import DEFAULT_NUM_WORKER_THREADS

from rpc_backends_core import _settings

if TYPE_CHECKING:
    from rpc_backends_core._record import ResolvedBackend

logger = logging.getLogger("rpc_backends")

#: The arguments that a handler takes by position.
_COMMON = ("rpc_timeout", "init_method")
#: Never dropped: without them, tensors would end up on other devices.
_DEVICES = ("device_maps", "devices")
#: Defaults of torch's own classes, which cannot be read from C++.
_DEFAULTS = {"num_worker_threads": DEFAULT_NUM_WORKER_THREADS}
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def carried_options(resolved: ResolvedBackend, options: Any, reason: str) -> dict[str, Any]:
    """Return ``options`` as keywords for the construct handler of another backend.

    Options that the handler does not take are dropped. A warning names those that differ from
    their default.

    :param options: the options of any other backend.
    :param reason: why another backend is started: ``RPC_BACKENDS_OVERRIDE``, or a sentence.
    :raises ValueError: the options have devices or device maps, and the handler does not take them.
    """
    taken = _keywords(resolved.backend.construct_rpc_backend_options_handler)
    changed = _changed(options)
    left_out = {name: value for name, value in changed.items() if name not in taken}
    _refuse_devices(resolved.name, left_out)
    if left_out:
        # Only names are logged: a value may be a secret.
        logger.warning(
            "%s: %s runs without %s, which the program's %s set: it has no such option.",
            reason,
            resolved.name,
            ", ".join(left_out),
            type(options).__name__,
        )
    carried = {name: value for name, value in changed.items() if name in taken}
    if "num_worker_threads" in taken and hasattr(options, "num_worker_threads"):
        # Passed even at its default, so that the program keeps its number of threads.
        carried["num_worker_threads"] = options.num_worker_threads
    return carried


def _keywords(handler: Callable[..., Any]) -> set[str]:
    """Return the names of a construct handler's options; empty if its signature cannot be read."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return set()  # written in C, without a signature
    by_position = [p.name for p in parameters if p.kind in _BY_POSITION]
    return {p.name for p in parameters if p.kind in _BY_KEYWORD} - {*by_position[: len(_COMMON)]}


def _changed(options: Any) -> dict[str, Any]:
    """Return the options that differ from their defaults, except those that all backends share."""
    kind = type(options)
    defaults = _defaults(kind)
    names = dict.fromkeys((*_settable(kind), *getattr(options, "__dict__", ()), *defaults))
    changed = {}
    for name in names:
        if name in _COMMON or not hasattr(options, name):
            continue
        if name.startswith("_") and name not in defaults:
            continue  # a private attribute, not an option
        value, default = getattr(options, name), defaults.get(name)
        if value != default and (value or default):
            changed[name] = value
    return changed


def _defaults(kind: type) -> dict[str, Any]:
    """Return the constructor's parameters with their defaults, or None for a required one."""
    defaults: dict[str, Any] = dict(_DEFAULTS)
    for base in reversed(kind.__mro__):
        try:
            _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        except (KeyError, TypeError, ValueError):
            continue  # no __init__ of its own, or one written in C
        for parameter in parameters:
            if parameter.kind in _BY_KEYWORD:
                defaults[parameter.name] = (
                    None if parameter.default is parameter.empty else parameter.default
                )
    return defaults


def _settable(kind: type) -> list[str]:
    """Return the names of a class's settable attributes (in torch's classes, C++ properties)."""
    return [
        name
        for base in reversed(kind.__mro__)
        for name, what in vars(base).items()
        if inspect.ismemberdescriptor(what) or (isinstance(what, property) and what.fset)
    ]


def _refuse_devices(name: str, left_out: Mapping[str, Any]) -> None:
    devices = [option for option in _DEVICES if option in left_out]
    if devices:
        asked = " and ".join(f"{device}={_plain(left_out[device])!r}" for device in devices)
        raise ValueError(
            f"{_settings.OVERRIDE} replaces the program's backend with {name}, but the program's "
            f"options set {asked}. {name} does not support devices or device maps, so tensors "
            f"would end up on the wrong device. Remove {' and '.join(devices)} from the options, "
            f"or unset {_settings.OVERRIDE}."
        )


def _plain(value: Any) -> Any:
    """Return devices as strings, for the error message."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, torch.device) else value
