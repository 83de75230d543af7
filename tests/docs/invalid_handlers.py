"""Handlers and an agent that break the contract; mypy must refuse each of them."""

from __future__ import annotations

from typing import Any

from torch.distributed.rpc import RpcAgent, RpcBackendOptions

from rpc_backends_core.spi import Agent, ConstructOptionsHandler, InitBackendHandler


def without_init_method(rpc_timeout: float) -> RpcBackendOptions:
    return RpcBackendOptions(rpc_timeout)


def without_world_size(store: Any, name: str, rank: int, rpc_backend_options: Any) -> RpcAgent:
    raise NotImplementedError


class Incomplete:
    """An agent with only one of the required methods."""

    def join(self, shutdown: bool = False, timeout: float = 0) -> None: ...


CONSTRUCT: ConstructOptionsHandler = without_init_method
INIT: InitBackendHandler = without_world_size
AGENT: type[Agent] = Incomplete
