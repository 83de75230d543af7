"""The two handlers of UCX, and its ``Backend`` record."""

from __future__ import annotations

from rpc_backend_ucx.options import UCXRpcBackendOptions, construct_rpc_backend_options
from rpc_backend_ucx.settings import settings_of
from rpc_backend_ucx.transport import UCXTransport
from rpc_backends_agents.engine.handlers import engine_backend, init_handler

init_backend = init_handler(UCXRpcBackendOptions, UCXTransport)


def lacks_authentication(options: UCXRpcBackendOptions) -> str | None:
    """Return why peers would not prove who they are, and what to do; None if they do."""
    settings = settings_of(options)
    if settings.secret is not None or settings.certificates is not None:
        return None
    return (
        "there is no secret. Make one with `rpc-backends secret --out FILE` and give that file to every "
        f"worker ({UCXRpcBackendOptions.secret_file.variable}=FILE, or the option secret_file)."
    )


BACKEND = engine_backend(
    construct_rpc_backend_options,
    init_backend,
    UCXRpcBackendOptions,
    UCXTransport,
    lacks_authentication=lacks_authentication,
    description="UCX: shared memory and fast networks, not encrypted, no TensorPipe",
)
