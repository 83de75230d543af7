"""ZEROMQ for ``torch.distributed.rpc``: workers communicate over TLS and Unix sockets, authenticated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc_backend_zeromq.handlers import BACKEND
    from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions

__all__ = ["BACKEND", "ZeroMQRpcBackendOptions"]
__version__ = "0.1.0"

_MODULES = {
    "BACKEND": "rpc_backend_zeromq.handlers",
    "ZeroMQRpcBackendOptions": "rpc_backend_zeromq.options",
}


def __getattr__(name: str) -> Any:
    # Imported on demand: `rpc-backends secret` is in this package and needs neither torch nor C++.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
