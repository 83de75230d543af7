"""RPC backends for PyTorch that one can pip install.

The names below are loaded when they are first used: ``import torch`` imports this package to run its
``torch.backends`` entry point, and that must cost next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.rpc.backend_registry import BackendValue as BackendValue

    from rpc_backends_core._api import backend_registered as backend_registered
    from rpc_backends_core._api import (
        construct_rpc_backend_options as construct_rpc_backend_options,
    )
    from rpc_backends_core._api import init_backend as init_backend
    from rpc_backends_core._api import record as record
    from rpc_backends_core._api import records as records
    from rpc_backends_core._api import refresh as refresh
    from rpc_backends_core._api import register_backend as register_backend
    from rpc_backends_core._api import unregister_backend as unregister_backend
    from rpc_backends_core._backend import Backend as Backend
    from rpc_backends_core._backend import Capability as Capability
    from rpc_backends_core._backend_type import BackendType as BackendType
    from rpc_backends_core._errors import BackendConflictError as BackendConflictError
    from rpc_backends_core._errors import BackendDeniedError as BackendDeniedError
    from rpc_backends_core._errors import BackendLoadError as BackendLoadError
    from rpc_backends_core._errors import RefusedError as RefusedError
    from rpc_backends_core._errors import RpcBackendsError as RpcBackendsError
    from rpc_backends_core._errors import SettingError as SettingError
    from rpc_backends_core._errors import UnknownBackendError as UnknownBackendError
    from rpc_backends_core._hookspecs import hookimpl as hookimpl
    from rpc_backends_core._patches import install as install
    from rpc_backends_core._patches import is_installed as is_installed
    from rpc_backends_core._patches import uninstall as uninstall
    from rpc_backends_core._record import Record as Record

__version__ = "0.1.0"

_HOMES = {
    "Backend": "_backend",
    "BackendValue": "_backend",
    "Capability": "_backend",
    "BackendType": "_backend_type",
    "BackendConflictError": "_errors",
    "BackendDeniedError": "_errors",
    "BackendLoadError": "_errors",
    "RefusedError": "_errors",
    "RpcBackendsError": "_errors",
    "SettingError": "_errors",
    "UnknownBackendError": "_errors",
    "backend_registered": "_api",
    "construct_rpc_backend_options": "_api",
    "init_backend": "_api",
    "record": "_api",
    "records": "_api",
    "refresh": "_api",
    "register_backend": "_api",
    "unregister_backend": "_api",
    "hookimpl": "_hookspecs",
    "Record": "_record",
    "install": "_patches",
    "is_installed": "_patches",
    "uninstall": "_patches",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604 - they are strings


def __getattr__(name: str) -> object:
    """Import the module that holds ``name`` and hand the object over (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what can be imported from here."""
    return sorted(__all__)
