"""RPC backends for PyTorch that you can pip install.

The names below are imported on first use, because every ``import torch`` imports this package (for
its ``torch.backends`` entry point) and must stay fast. Their types are in ``__init__.pyi``.
"""

from __future__ import annotations

__version__ = "0.1.0"

_HOMES = {
    "Backend": "_backend",
    "BackendValue": "_backend",
    "Capability": "_backend",
    "BackendType": "_backend_type",
    "BackendConflictError": "_errors",
    "BackendContractError": "_errors",
    "BackendDeniedError": "_errors",
    "BackendLoadError": "_errors",
    "LockError": "_errors",
    "RefusedError": "_errors",
    "ResultError": "_errors",
    "RpcBackendsError": "_errors",
    "SettingError": "_errors",
    "UnknownBackendError": "_errors",
    "CurrentBackend": "_bridge.running",
    "backend_registered": "_api",
    "construct_rpc_backend_options": "_api",
    "current_backend": "_bridge.running",
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
    """Import ``name`` from the module that defines it (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
