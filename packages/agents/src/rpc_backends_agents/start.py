"""Starts a transport agent in a group that the workers form on a store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rpc_backends_agents import _C
from rpc_backends_agents.addressing import HasCapsule, Native, addressing
from rpc_backends_agents.agent import (
    DynamicGroupAgent,
    RankedStaticAgent,
    StaticGroupAgent,
    class_for,
)
from rpc_backends_agents.devices import AgentDevices, published, worker_devices
from rpc_backends_agents.member_records import Peer
from rpc_backends_agents.presence import is_alive
from rpc_backends_agents.roster import Roster
from rpc_backends_agents.settings import Settings
from rpc_backends_agents.transport import Transport
from rpc_backends_core.spi import JOIN_TIMEOUT, Group, device_maps, torch_internals, worker_info

logger = logging.getLogger("rpc_backends.agents")

#: What start_agent does with its transport in place of a start; see `taking_transports`.
_taken: ContextVar[list[Any] | None] = ContextVar("taken", default=None)


@contextmanager
def taking_transports() -> Iterator[list[Any]]:
    """Yield a list for the transports that :func:`start_agent` gets in the block, on this thread.

    It starts no agent there, and returns None. Tests find the transport of a backend in this way.
    """
    taken: list[Any] = []
    token = _taken.set(taken)
    try:
        yield taken
    finally:
        _taken.reset(token)


def start_agent(transport: Any, group: Group, settings: Settings) -> _C.TransportAgent:
    """Start this worker's agent on ``transport``.

    :param transport: a :class:`~rpc_backends_agents.Transport`, or a
        :class:`~rpc_backends_agents.addressing.Native` for a transport in C++.
    :param group: the group, from :func:`rpc_backends_core.spi.group_for`.
    :returns: the agent, running and set as torch's current agent.
    :raises GroupError: another worker failed; all workers raise its reason.
    :raises ValueError: a worker's device maps are wrong; all workers of a static group raise this.
    :raises RuntimeError: another member of a dynamic group has the name or rank.
    :raises TypeError: an argument has the wrong type, or a method of the transport returned the wrong
        type.
    """
    _check_arguments(transport, group, settings)
    taken = _taken.get()
    if taken is not None:
        taken.append(transport)
        return None  # type: ignore[return-value]  # nothing uses the result
    _C.send_warnings_to(logger.warning)
    if group.world_size is None:
        return _start_dynamic(transport, group, settings)
    return _start_static(transport, group, settings)


#: The methods of a transport that the agent calls in any case.
_METHODS = ("listen", "learn", "send", "forget", "close")


def _check_arguments(transport: Any, group: Any, settings: Any) -> None:
    if isinstance(transport, type):
        raise TypeError(
            f"start_agent got the class {transport.__qualname__} as its transport; pass an instance."
        )
    missing = [name for name in _METHODS if not callable(getattr(transport, name, None))]
    if missing and not isinstance(transport, HasCapsule):
        raise TypeError(
            f"start_agent got {transport!r} as its transport, which has no {', '.join(missing)}; pass "
            "an instance of a rpc_backends_agents.Transport, or an object with __rpc_transport__()."
        )
    if not isinstance(group, Group):
        raise TypeError(
            f"start_agent got {group!r} as its group; pass what rpc_backends_core.spi.group_for returns."
        )
    if not isinstance(settings, Settings):
        raise TypeError(
            f"start_agent got {settings!r} as its settings; pass rpc_backends_agents.Settings."
        )


def _start_static(transport: Any, group: Group, settings: Settings) -> _C.TransportAgent:
    renumbered = any(member.worker_id != member.rank for member in group.members)
    kind: Any = RankedStaticAgent if renumbered else StaticGroupAgent
    agent = _make(kind, group, group.me.worker_id, transport, settings)
    agent.group = group
    if renumbered:
        workers = [worker_info(m.name, m.worker_id, m.rank) for m in group.members]
        agent.set_workers(workers, workers[group.rank])
    book = addressing(transport, agent, group.name)
    try:
        devices = AgentDevices(agent, group.name, settings)
        told = group.exchange(devices.publication(book.listen(group.me.worker_id)))
        declared = {}
        for member, value in zip(group.members, told, strict=True):
            address, declared[member.worker_id] = published(
                f"exchange/1/{member.rank}", member.name, value
            )
            if member.rank != group.rank:
                book.learn(member.worker_id, member.name, member.rank, address)
                agent.add_member(member.name, member.worker_id)
        device_maps.check(list(declared.values()), complete=True)
        devices.add(declared)
        torch_internals.init_rpc_states(agent)
    except BaseException:
        _give_up(agent)
        raise
    return agent  # type: ignore[no-any-return]


def _start_dynamic(transport: Any, group: Group, settings: Settings) -> _C.TransportAgent:
    def learn(peer: Peer) -> bool:
        of_peer = worker_devices(peer.name, peer.devices)
        book.learn(peer.worker_id, peer.name, peer.rank, peer.address)
        devices.add({peer.worker_id: of_peer})
        return True

    def add(peer: Peer) -> None:
        if peer.worker_id != worker_id:
            agent.add_member(peer.name, peer.worker_id)
        members[peer.worker_id] = worker_info(peer.name, peer.worker_id, peer.rank)
        agent.set_workers(list(members.values()), mine)
        agent.note_join(peer.name)
        torch_internals.set_worker_names(info.name for info in members.values())

    def remove(peer: Peer, ended: bool) -> None:
        how = agent.note_leave(peer.name, peer.rank, ended=ended)
        was_member = members.pop(peer.worker_id, None) is not None
        devices.remove(peer.worker_id)
        if was_member:
            agent.set_workers(list(members.values()), mine)
            torch_internals.set_worker_names(info.name for info in members.values())
        if peer.worker_id != worker_id:
            agent.remove_member(peer.worker_id, how)

    roster = Roster(
        group.store,
        group.name,
        on_peer=learn,
        on_join=add,
        on_leave=remove,
        on_loss=lambda peer: agent.presence.check(peer.worker_id),
        access=group.access,
        timeout=min(group.timeout, JOIN_TIMEOUT),
    )
    wanted = torch_internals.fixed_worker_id()
    worker_id = roster.take_id(group.rank if wanted is None else wanted)
    mine = worker_info(group.name, worker_id, group.rank)
    members = {worker_id: mine}
    agent = _make(DynamicGroupAgent, group, worker_id, transport, settings)
    agent.roster = roster
    agent.follow(members)
    agent.set_workers([mine], mine)
    devices = AgentDevices(agent, group.name, settings)
    devices.add({worker_id: worker_devices(group.name, devices.declared())})
    book = addressing(transport, agent, group.name)
    book.refresh_before_refusing(roster.refresh)
    agent.on_unknown_member(roster.refresh)
    agent.on_lost(lambda lost_id, _reason: agent.note_loss(lost_id))
    try:
        roster.announce(
            group.name, group.rank, worker_id, book.listen(worker_id), devices.declared()
        )
        torch_internals.init_rpc_states(agent)
        roster.join(
            lambda peer: _is_alive(agent, peer),
            admit=lambda: devices.check(list(members)),
        )
    except BaseException:
        try:
            roster.leave()
        finally:
            _give_up(agent)
        raise
    return agent  # type: ignore[no-any-return]


def _make(kind: Any, group: Group, worker_id: int, transport: Any, settings: Settings) -> Any:
    try:
        agent: Any = class_for(kind, group.backend)(
            group.name,
            worker_id,
            transport,
            **settings.native(),
        )
    except BaseException:
        if isinstance(transport, (Native, Transport)):
            transport.close(0)
        raise
    agent.transport = transport
    return agent


def _give_up(agent: Any) -> None:
    """Shut down an agent whose start has failed."""
    if isinstance(agent.transport, Native):
        # Closed first: the C++ transport may be waiting for this Python object, which may wait for peers.
        agent.transport.close(0)
    agent.shutdown()


def _is_alive(agent: Any, peer: Peer) -> bool:
    agent.add_member(peer.name, peer.worker_id)
    return is_alive(peer.name, peer.worker_id)
