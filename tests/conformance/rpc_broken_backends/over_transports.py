"""Backends whose transport breaks a promise; the agent on it is sound."""

from __future__ import annotations

from typing import Any

from torch.distributed.rpc import RpcBackendOptions

from rpc_backends_agents import Settings, start_agent
from rpc_backends_core.spi import Backend, Capability, group_for
from rpc_broken_backends import Broken, transports


class Options(RpcBackendOptions):
    """The options of all these backends."""

    def __init__(self, rpc_timeout: float = 60.0, init_method: str = "env://") -> None:
        super().__init__(rpc_timeout, init_method)


def construct(rpc_timeout: float, init_method: str) -> Options:
    """Return the options; these backends add none to torch's."""
    return Options(rpc_timeout, init_method)


def over(transport: Any) -> Backend:
    """Return a backend that uses transports of this class."""

    def init(
        store: Any,
        name: str,
        rank: int,
        world_size: int | None,
        rpc_backend_options: Any,
        group: Any = None,
    ) -> Any:
        group = group_for(store, name, rank, world_size, rpc_backend_options, "BROKEN", group)
        settings = Settings(rpc_timeout=rpc_backend_options.rpc_timeout)
        return start_agent(transport(), group, settings)

    return Backend(
        construct_rpc_backend_options_handler=construct,
        init_backend_handler=init,
        capabilities=frozenset({Capability.STATIC_GROUPS}),
        make_transport=lambda options, group: transport(),
    )


def _broken(transport: type[Any], requirement: str, words: str) -> Broken:
    # Other chapters fail, too: messages of all calls go through the transport.
    return Broken(over(transport), "transport", (f"transport.{requirement}", words), spreads=True)


BROKEN = {
    "SWAPS_PARTS": _broken(transports.SwapsParts, "one_message", "the same parts in another order"),
    "MERGES_PARTS": _broken(transports.MergesParts, "one_message", "divided into other parts"),
    "ANSWERS_BY_THE_WRONG_CONNECTION": _broken(
        transports.AnswersByTheWrongConnection, "no_reply_on_another_connection", "send(0"
    ),
    "LOSES_A_PEER_FOR_GOOD": _broken(
        transports.LosesAPeerForGood, "lost_peer_is_found", "found(1)"
    ),
    "CLOSE_RAISES": _broken(transports.CloseRaises, "close_twice", "close(0)"),
}
