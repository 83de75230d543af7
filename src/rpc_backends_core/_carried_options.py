"""Options of one backend, carried over to another that ``RPC_BACKENDS_OVERRIDE`` puts in its place."""

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

#: What a handler gets by position.
_COMMON = ("rpc_timeout", "init_method")
#: Tensors would go elsewhere without these, so they are never left out.
_DEVICES = ("device_maps", "devices")
#: Defaults that torch's own classes do not tell, being in C++.
_DEFAULTS = {"num_worker_threads": DEFAULT_NUM_WORKER_THREADS}
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def carried_options(resolved: ResolvedBackend, options: Any) -> dict[str, Any]:
    """Return the keywords for the construct handler of a backend that say what ``options`` say.

    An option that the handler has no keyword for is named in a warning, unless it has its default.

    :param options: of any other backend.
    :raises ValueError: they have devices or device maps, and the handler takes none.
    """
    taken = _keywords(resolved.backend.construct_rpc_backend_options_handler)
    changed = _changed(options)
    left_out = {name: value for name, value in changed.items() if name not in taken}
    _refuse_devices(resolved.name, left_out)
    if left_out:
        # Names alone: a value may be a secret.
        logger.warning(
            "%s: %s runs without %s, for which it has no option; the %s of the program set it.",
            _settings.OVERRIDE,
            resolved.name,
            ", ".join(left_out),
            type(options).__name__,
        )
    carried = {name: value for name, value in changed.items() if name in taken}
    if "num_worker_threads" in taken and hasattr(options, "num_worker_threads"):
        # Its default too: the program would have had so many threads.
        carried["num_worker_threads"] = options.num_worker_threads
    return carried


def _keywords(handler: Callable[..., Any]) -> set[str]:
    """Return the options that a construct handler names; none where its signature cannot be read."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return set()  # written in C, without a signature
    by_position = [p.name for p in parameters if p.kind in _BY_POSITION]
    return {p.name for p in parameters if p.kind in _BY_KEYWORD} - {*by_position[: len(_COMMON)]}


def _changed(options: Any) -> dict[str, Any]:
    """Return the options that are not their default, by name, without those that all backends have."""
    kind = type(options)
    defaults = _defaults(kind)
    names = dict.fromkeys((*_settable(kind), *getattr(options, "__dict__", ()), *defaults))
    changed = {}
    for name in names:
        if name in _COMMON or not hasattr(options, name):
            continue
        if name.startswith("_") and name not in defaults:
            continue  # an attribute of its own and no option
        value, default = getattr(options, name), defaults.get(name)
        if value != default and (value or default):
            changed[name] = value
    return changed


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


def _refuse_devices(name: str, left_out: Mapping[str, Any]) -> None:
    devices = [one for one in _DEVICES if one in left_out]
    if devices:
        asked = " and ".join(f"{one}={_plain(left_out[one])!r}" for one in devices)
        raise ValueError(
            f"{_settings.OVERRIDE} puts {name} in the place of the program's backend, and the "
            f"program's options have {asked}. {name} has no device maps and takes no devices, so "
            f"tensors would not go where the program wants them. Take {' and '.join(devices)} out of the "
            f"options, or unset {_settings.OVERRIDE}."
        )


def _plain(value: Any) -> Any:
    """Return devices as people write them."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, torch.device) else value
