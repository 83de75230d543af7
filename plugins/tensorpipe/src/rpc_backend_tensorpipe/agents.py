"""Static groups for backends that use torch's TensorPipe agents (TENSORPIPE, FAULTY_TENSORPIPE)."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from rpc_backend_tensorpipe.agent_store import AgentStore, Barriers, exchanging_addresses
from rpc_backends_core.spi import Group, is_loopback, torch_internals, worker_info

#: A text of TensorPipe, such as "eof", unless the text names the worker.
_OF_TENSORPIPE = re.compile(r"(?!RPC to )[^\n]*\(this error originated at [^)\n]*\)")
_MAY_HAVE_ENDED = "has ended or has left the group, or the network is down"
#: An address that TensorPipe listens on; for a link-local one it may have a scope.
_LISTENING = re.compile(r"uv://\[?(?P<address>[0-9a-fA-F:.]+(%\w+)?)\]?:[0-9]+")
logger = logging.getLogger("rpc_backends")
#: The text of torch for a result whose tensor has no storage.
_WITHOUT_STORAGE = re.compile(r"Cannot access storage of (?P<kind>\w+)")
#: The end of torch's text for a tensor on the device meta, which no device map can name.
_ON_META = re.compile(r"found tensor on device:? ?meta")


def warn_if_open(agent: Any) -> None:
    """Log a warning if other hosts can reach a worker that has started."""
    match = _LISTENING.search(agent.address or "")
    if match is None or is_loopback(match["address"]):
        return
    logger.warning(
        "RPC worker %r listens on %s without authentication: TENSORPIPE has none, so every process that "
        "can connect to this port can run code as this user. Run it only in a network that only the "
        "workers reach; or use ZEROMQ with a secret for all workers (RPC_BACKENDS_OVERRIDE=ZEROMQ and "
        "RPC_BACKENDS_ZEROMQ_SECRET_FILE); or, on one host, let it listen on the loopback interface "
        "(TP_SOCKET_IFNAME=lo). RPC_BACKENDS_REQUIRE_AUTH=1 refuses backends without authentication.",
        agent.engine.name,
        match["address"],
    )


class SelfDescribingAgent:
    """A mixin for torch's TensorPipe agents: what they say of themselves, and what their errors mean."""

    engine: AgentStore
    encryption = "none"

    @property
    def address(self) -> str | None:
        """The addresses that TensorPipe listens on; None before it does."""
        return self.engine.own_address if self.engine.has_own_address else None

    def has_ended(self, name: str) -> bool:
        """Return whether the process of a member is known to have ended; may take a second."""
        return False

    def explained_call_error(self, callee: str, function: str, text: str) -> str | None:
        """Return a better text of an error of TensorPipe: the worker called, what happened, what to do.

        :param text: the error of torch's agent, which the result ends with.
        :returns: None for an error of another kind, such as one of the called function.
        """
        begin = f"RPC to {callee!r} failed: worker {self.engine.name!r} called {function}, and"
        if _OF_TENSORPIPE.match(text):
            reason = "has ended" if self.has_ended(callee) else _MAY_HAVE_ENDED
            return (
                f"{begin} the connection to {callee!r} is lost. Its process {reason}; look at its "
                f"output. TensorPipe: {text}"
            )
        text = text.partition("\nException raised from ")[0]  # without the backtrace of C++
        kind = _WITHOUT_STORAGE.match(text)
        if kind:
            return (
                f"{begin} a tensor in the result cannot be sent: it has no storage of its own "
                f"({kind['kind']}), as tensors of MKL-DNN and compressed sparse tensors do not. Call "
                f".to_dense(), or .to_sparse_coo(), before you return it. torch: {text}"
            )
        if _ON_META.search(text):
            return (
                f"{begin} a tensor of the call or of its result is on meta and has no data, so it "
                f"cannot be sent; send its shape and dtype. torch: {text}"
            )
        return None


class StaticGroupAgent(SelfDescribingAgent):
    """A mixin for the agent of a static group: ``join`` runs its barriers through the group's store."""

    group: Group
    barriers: Barriers

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Wait until all workers have called ``join`` and no worker has an active call.

        :param timeout: seconds that each barrier waits for the others; 0 means the group's timeout.
        :raises RuntimeError: a barrier failed or timed out.
        """
        join = super().join  # type: ignore[misc]  # defined by the agent class
        if len(self.group.members) == 1:
            join(shutdown, timeout)
            return
        with self.barriers.held(timeout or self.group.timeout):
            join(shutdown, timeout)


def start_static_agent(
    plain: Any, ranked: Any, group: Group, options: Any, reverse_maps: Any, devices: Any
) -> Any:
    """Create and start this worker's agent; return when the agents of all workers listen.

    :param plain: the agent class to use when every worker id equals the rank, which is the normal case.
        It derives from :class:`StaticGroupAgent`. Worker lookups then run in C++ only.
    :param ranked: the agent class to use when a process keeps its worker id from an earlier group. It
        also derives from :class:`RankMappingMixin`.
    :returns: the agent, running and set as torch's current agent.
    :raises GroupError: another worker failed during the start.
    """
    engine = AgentStore(group.name)
    for member in group.members:
        engine.add_worker(member.name, member.worker_id)
    renumbered = any(member.worker_id != member.rank for member in group.members)
    agent = (ranked if renumbered else plain)(
        engine.store,
        group.name,
        group.me.worker_id,
        group.world_size,
        options,
        reverse_maps,
        devices,
    )
    agent.engine, agent.group, agent.barriers = engine, group, Barriers(engine, group)
    if renumbered:
        workers = [worker_info(m.name, m.worker_id, m.rank) for m in group.members]
        agent.set_workers(workers, workers[group.rank])
    try:
        with exchanging_addresses(engine, group):
            torch_internals.init_rpc_states(agent)
        warn_if_open(agent)
    except BaseException:
        agent.shutdown()
        raise
    return agent


def dumps(value: Any) -> str:
    """Serialise to JSON with sorted keys, so that every worker writes the same text for a value."""
    return json.dumps(value, sort_keys=True)
