"""UCX for ``torch.distributed.rpc``: workers communicate over shared memory and fast networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc_backend_ucx.handlers import BACKEND
    from rpc_backend_ucx.options import UCXRpcBackendOptions

__all__ = ["BACKEND", "UCXRpcBackendOptions"]
__version__ = "0.1.0"

_MODULES = {
    "BACKEND": "rpc_backend_ucx.handlers",
    "UCXRpcBackendOptions": "rpc_backend_ucx.options",
}


def __getattr__(name: str) -> Any:
    # Imported on demand: `rpc-backends doctor` reads parts of this package without torch.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
