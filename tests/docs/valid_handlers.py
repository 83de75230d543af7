"""The handlers and agents of the installed backends; mypy must accept them."""

from __future__ import annotations

from torch.distributed.rpc import TensorPipeAgent

import rpc_backend_faulty_tensorpipe.handlers as faulty_tensorpipe
import rpc_backend_faulty_tensorpipe.options as faulty_tensorpipe_options
import rpc_backend_tensorpipe.handlers as tensorpipe
from rpc_backend_tensorpipe.dynamic_group import TensorPipeDynamicAgent
from rpc_backends_core.spi import Agent, ConstructOptionsHandler, InitBackendHandler, LeavingAgent

CONSTRUCT: list[ConstructOptionsHandler] = [
    tensorpipe.construct_rpc_backend_options,
    faulty_tensorpipe_options.construct_rpc_backend_options,
]
INIT: list[InitBackendHandler] = [tensorpipe.init_backend, faulty_tensorpipe.init_backend]
AGENTS: list[type[Agent]] = [TensorPipeAgent]
LEAVING: list[type[LeavingAgent]] = [TensorPipeDynamicAgent]
