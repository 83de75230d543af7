"""The two handlers of ZEROMQ, and its ``Backend`` record."""

from __future__ import annotations

from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions, construct_rpc_backend_options
from rpc_backend_zeromq.transport import ZeroMQTransport
from rpc_backends_agents.engine.handlers import engine_backend, init_handler
from rpc_backends_core.spi import Capability

init_backend = init_handler(ZeroMQRpcBackendOptions, ZeroMQTransport)

BACKEND = engine_backend(
    construct_rpc_backend_options,
    init_backend,
    ZeroMQRpcBackendOptions,
    ZeroMQTransport,
    capabilities={Capability.ENCRYPTION},
    description="TLS 1.3: authenticated and encrypted, no TensorPipe",
)
