"""SMALL: torch's TensorPipe agent over TCP only, in static groups."""

import torch.distributed as dist
from torch.distributed.rpc import TensorPipeAgent, TensorPipeRpcBackendOptions

from rpc_backend_tensorpipe.agents import StaticGroupAgent, start_static_agent
from rpc_backends_core.spi import Backend, Capability, RankMappingMixin, group_for


class Options(TensorPipeRpcBackendOptions):
    """The options of SMALL; init_rpc picks the backend by this class."""


class Agent(StaticGroupAgent, TensorPipeAgent):
    """The agent of a group where every worker id equals the rank."""


class RankedAgent(RankMappingMixin, Agent):
    """The agent of a group where a process keeps its worker id from an earlier group."""


def construct(rpc_timeout, init_method, threads=16):
    if not isinstance(threads, int) or isinstance(threads, bool):
        raise TypeError(f"threads is {threads!r}; SMALL needs an int.")
    tcp = {"_transports": ["uv"], "_channels": ["basic"]}
    return Options(
        num_worker_threads=threads, rpc_timeout=rpc_timeout, init_method=init_method, **tcp
    )


def init(store, name, rank, world_size, rpc_backend_options, group=None):
    if not isinstance(store, dist.Store) or not isinstance(rpc_backend_options, Options):
        raise TypeError("SMALL needs a torch.distributed.Store and its own Options.")
    if not world_size:
        raise ValueError("SMALL has no dynamic groups; pass world_size.")
    group = group_for(store, name, rank, world_size, rpc_backend_options, "SMALL", group)
    return start_static_agent(Agent, RankedAgent, group, rpc_backend_options, {}, [])


BACKEND = Backend(
    construct_rpc_backend_options_handler=construct,
    init_backend_handler=init,
    options_type=Options,
    spi_version=(1, 0),
    capabilities={
        Capability.STATIC_GROUPS,
        Capability.REJOIN,
        Capability.JOIN_RECOVERY,
        Capability.PEER_LOSS_DETECTION,
        Capability.TORCHSCRIPT,
        Capability.STRICT_OPTIONS,
    },
    description="TensorPipe over TCP only",
)
