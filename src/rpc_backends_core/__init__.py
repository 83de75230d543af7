"""RPC backends for PyTorch that one can pip install.

The names below are loaded when they are first used: ``import torch`` imports this package to run its
``torch.backends`` entry point, and that must cost next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.rpc.backend_registry import BackendValue as BackendValue

    from rpc_backends_core.backend import Backend as Backend
    from rpc_backends_core.backend import Capability as Capability
    from rpc_backends_core.backend_record import Record as Record
    from rpc_backends_core.backend_type import BackendType as BackendType
    from rpc_backends_core.errors import BackendConflictError as BackendConflictError
    from rpc_backends_core.errors import BackendDeniedError as BackendDeniedError
    from rpc_backends_core.errors import BackendLoadError as BackendLoadError
    from rpc_backends_core.errors import RefusedError as RefusedError
    from rpc_backends_core.errors import RpcBackendsError as RpcBackendsError
    from rpc_backends_core.errors import SettingError as SettingError
    from rpc_backends_core.errors import UnknownBackendError as UnknownBackendError
    from rpc_backends_core.functions import backend_registered as backend_registered
    from rpc_backends_core.functions import (
        construct_rpc_backend_options as construct_rpc_backend_options,
    )
    from rpc_backends_core.functions import init_backend as init_backend
    from rpc_backends_core.functions import record as record
    from rpc_backends_core.functions import records as records
    from rpc_backends_core.functions import refresh as refresh
    from rpc_backends_core.functions import register_backend as register_backend
    from rpc_backends_core.functions import unregister_backend as unregister_backend
    from rpc_backends_core.hookspecs import hookimpl as hookimpl
    from rpc_backends_core.torch_bridge import install as install
    from rpc_backends_core.torch_bridge import is_installed as is_installed
    from rpc_backends_core.torch_bridge import uninstall as uninstall

__version__ = "0.1.0"

_HOMES = {
    "Backend": "backend",
    "BackendValue": "backend",
    "Capability": "backend",
    "BackendType": "backend_type",
    "BackendConflictError": "errors",
    "BackendDeniedError": "errors",
    "BackendLoadError": "errors",
    "RefusedError": "errors",
    "RpcBackendsError": "errors",
    "SettingError": "errors",
    "UnknownBackendError": "errors",
    "backend_registered": "functions",
    "construct_rpc_backend_options": "functions",
    "init_backend": "functions",
    "record": "functions",
    "records": "functions",
    "refresh": "functions",
    "register_backend": "functions",
    "unregister_backend": "functions",
    "hookimpl": "hookspecs",
    "Record": "backend_record",
    "install": "torch_bridge",
    "is_installed": "torch_bridge",
    "uninstall": "torch_bridge",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604 - they are strings


def __getattr__(name: str) -> object:
    """Import the module that holds ``name`` and hand the object over (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    # `record` is a function and a submodule; what users see is the function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what can be imported from here."""
    return sorted(__all__)
