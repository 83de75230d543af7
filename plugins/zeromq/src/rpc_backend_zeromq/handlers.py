"""The two handlers of ZEROMQ, and its ``Backend`` record."""

from __future__ import annotations

from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions, construct_rpc_backend_options
from rpc_backend_zeromq.settings import settings_of
from rpc_backend_zeromq.transport import ZeroMQTransport
from rpc_backends_agents.engine.handlers import engine_backend, init_handler
from rpc_backends_core.spi import Capability

init_backend = init_handler(ZeroMQRpcBackendOptions, ZeroMQTransport)


def lacks_authentication(options: ZeroMQRpcBackendOptions) -> str | None:
    """Return why peers would not prove who they are, and what to do; None if they do."""
    return settings_of(options).policy.unproved


BACKEND = engine_backend(
    construct_rpc_backend_options,
    init_backend,
    ZeroMQRpcBackendOptions,
    ZeroMQTransport,
    capabilities={Capability.ENCRYPTION},
    lacks_authentication=lacks_authentication,
    description="TLS 1.3: authenticated and encrypted, no TensorPipe",
)
