"""SOCKETS: a backend whose transport is about 100 lines of Python."""

from torch.distributed.rpc import RpcBackendOptions

from rpc_backends_agents import Settings, start_agent
from rpc_backends_agents.transports.sockets import SocketTransport
from rpc_backends_core.spi import Backend, Capability, group_for


class Options(RpcBackendOptions):
    """The options of SOCKETS; init_rpc picks the backend by this class."""

    def __init__(self, *, threads=16, rpc_timeout=60.0, init_method="env://"):
        if not isinstance(threads, int) or isinstance(threads, bool):
            raise TypeError(f"threads is {threads!r}; SOCKETS needs an int.")
        super().__init__(rpc_timeout, init_method)
        self.threads = threads


def construct(rpc_timeout, init_method, threads=16):
    return Options(threads=threads, rpc_timeout=rpc_timeout, init_method=init_method)


def init(store, name, rank, world_size, rpc_backend_options, group=None):
    if not isinstance(rpc_backend_options, Options):
        raise TypeError(f"SOCKETS needs its own Options, not {rpc_backend_options!r}.")
    group = group_for(store, name, rank, world_size, rpc_backend_options, "SOCKETS", group)
    settings = Settings(
        num_worker_threads=rpc_backend_options.threads,
        rpc_timeout=rpc_backend_options.rpc_timeout,
    )
    return start_agent(SocketTransport(), group, settings)


BACKEND = Backend(
    construct_rpc_backend_options_handler=construct,
    init_backend_handler=init,
    options_type=Options,
    make_transport=lambda options, group: SocketTransport(),
    spi_version=(1, 1),
    capabilities={
        Capability.STATIC_GROUPS,
        Capability.DYNAMIC_GROUPS,
        Capability.REJOIN,
        Capability.JOIN_RECOVERY,
        Capability.CLEAN_SHUTDOWN,
        Capability.PEER_LOSS_DETECTION,
        Capability.TORCHSCRIPT,
        Capability.STRICT_OPTIONS,
    },
    description="plain TCP in Python, without authentication",
)
