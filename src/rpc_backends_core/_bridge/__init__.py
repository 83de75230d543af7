"""The bridge: puts the registry into ``torch.distributed.rpc`` and takes it out again.

This package is the only place that touches torch's private names; `torch_internals` lists each of them.
What is imported here runs at every ``import torch``, so it is little; the rest is imported on first use.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._bridge import patches
from rpc_backends_core._default_registry import default_registry, prepare_registry
from rpc_backends_core._process_state import STATE

if TYPE_CHECKING:
    from rpc_backends_core._registry import Registry


def install() -> None:
    """Put the registry into ``torch.distributed.rpc``. Twice is once; no RPC in torch, no change.

    Backends that torch, or a package whose ``torch.backends`` entry point ran earlier, has registered by
    then are taken over.
    """
    import torch.distributed

    if (
        STATE.patches
        or not torch.distributed.is_available()
        or not torch.distributed.rpc.is_available()
    ):
        return
    from torch.distributed import rpc

    torchs: Any = rpc.backend_registry.BackendType
    if torchs is not BackendType:
        prepare_registry(lambda registry: _take_over(registry, torchs))
    for module, name, value in _replacements(rpc):
        STATE.patches.append((module, name, module.__dict__.get(name, _ABSENT)))
        setattr(module, name, value)


def uninstall() -> None:
    """Give ``torch.distributed.rpc`` back what it had; what was registered since stays registered."""
    if not STATE.patches:
        return
    rpc = sys.modules["torch.distributed.rpc"]
    while STATE.patches:
        module, name, value = STATE.patches.pop()
        if value is _ABSENT:
            delattr(module, name)
        else:
            setattr(module, name, value)
    for record in default_registry().registered():
        if record.backend and not rpc.backend_registry.backend_registered(record.name):
            rpc.backend_registry.register_backend(record.name, *record.backend.value)
            rpc.__dict__["BackendType"] = rpc.backend_registry.BackendType


def is_installed() -> bool:
    """Return whether the registry is in ``torch.distributed.rpc``."""
    return bool(STATE.patches)


_ABSENT: Any = object()
_DELETE_RREFS = "_delete_all_user_and_unforked_owner_rrefs"


def _replacements(rpc: Any) -> list[tuple[Any, str, Any]]:
    registry_module, api = rpc.backend_registry, rpc.api
    options: Any = getattr(rpc, "TensorPipeRpcBackendOptions", None)
    shared = {
        "BackendType": BackendType,
        "backend_registered": patches.backend_registered,
        "register_backend": patches.register_backend,
        "construct_rpc_backend_options": patches.construct_rpc_backend_options,
        "init_backend": patches.init_backend,
    }
    return [
        *((registry_module, name, value) for name, value in shared.items()),
        *((rpc, name, value) for name, value in shared.items()),
        (rpc, "BackendValue", registry_module.BackendValue),
        (rpc, "init_rpc", patches.init_rpc),
        (rpc, "_init_rpc_backend", patches._init_rpc_backend),
        (rpc, "shutdown", patches.shutdown),
        (api, "shutdown", patches.shutdown),
        (api, "_wait_all_workers", patches._wait_all_workers),
        (api, "_set_and_start_rpc_agent", patches._set_and_start_rpc_agent),
        (api, "_reset_current_rpc_agent", patches._reset_current_rpc_agent),
        (api, _DELETE_RREFS, patches._delete_all_user_and_unforked_owner_rrefs),
        *([(options, "__init__", patches.keeping_arguments(options.__init__))] if options else []),
    ]


def _take_over(registry: Registry, torchs: Any) -> None:
    """Register the members of an enum that torch made."""
    from rpc_backends_core._builtin_backends import options_type_of

    for member in reversed(torchs):  # torch puts the newest first
        if registry.is_registered(member.name):
            continue
        own = _is_torchs(member.value)
        registry.register(
            member.name,
            tuple(member.value),
            owner=_home(member.value),
            torch_own=own,
            options_type=options_type_of(member.name) if own else None,
            look=False,
        )


def _is_torchs(value: Any) -> bool:
    return _home(value).startswith("torch.distributed.")


def _home(value: Any) -> str:
    return str(getattr(value[1], "__module__", None) or "__main__")
