"""The two handlers of UCX, and its ``Backend`` record."""

from __future__ import annotations

from rpc_backend_ucx.options import UCXRpcBackendOptions, construct_rpc_backend_options
from rpc_backend_ucx.transport import UCXTransport
from rpc_backends_agents.engine.handlers import engine_backend, init_handler

init_backend = init_handler(UCXRpcBackendOptions, UCXTransport)

BACKEND = engine_backend(
    construct_rpc_backend_options,
    init_backend,
    UCXRpcBackendOptions,
    UCXTransport,
    description="UCX: shared memory and fast networks, not encrypted, no TensorPipe",
)
