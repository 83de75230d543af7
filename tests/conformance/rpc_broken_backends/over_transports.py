"""Backends whose transport breaks a promise; the agent on it is sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.rpc import RpcBackendOptions

from rpc_backends_agents import Settings, start_agent
from rpc_backends_agents import start as starting
from rpc_backends_agents.transports.sockets import SocketTransport
from rpc_backends_core.spi import Backend, Capability, group_for
from rpc_broken_backends import Broken, transports


class Options(RpcBackendOptions):
    """The options of all these backends."""

    def __init__(self, rpc_timeout: float = 60.0, init_method: str = "env://") -> None:
        super().__init__(rpc_timeout, init_method)


def construct(rpc_timeout: float, init_method: str) -> Options:
    """Return the options; these backends add none to torch's."""
    return Options(rpc_timeout, init_method)


def over(
    transport: Any, *, declared: bool = True, start_agent: Callable[..., Any] = start_agent
) -> Backend:
    """Return a backend that uses transports of this class.

    :param declared: whether it declares how its transport is made.
    :param start_agent: called with a transport, the group and settings.
    """

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
        make_transport=(lambda options, group: transport()) if declared else None,
    )


def _broken(transport: type[Any], requirement: str, words: str, *, declared: bool = True) -> Broken:
    # Other chapters fail, too: messages of all calls go through the transport.
    backend = over(transport, declared=declared)
    return Broken(backend, "transport", (f"transport.{requirement}", words), spreads=True)


#: Correct backends that do not declare how their transport is made.
SOUND = {
    "UNDECLARED": over(SocketTransport, declared=False),
    # The suite cannot see what this one starts.
    "HIDDEN": over(SocketTransport, declared=False, start_agent=starting._start_static),
}
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
    # Without make_transport, the suite takes the transport from the init handler.
    "CLOSE_RAISES_UNDECLARED": _broken(
        transports.CloseRaises, "close_twice", "close(0)", declared=False
    ),
    "LOSES_A_PEER_UNDECLARED": _broken(
        transports.LosesAPeerForGood, "lost_peer_is_found", "found(1)", declared=False
    ),
}
