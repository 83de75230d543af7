"""A dynamic group: workers join and leave while the others work.

The member list is in the store, under one key that is changed by compare-and-set only (`membership`).
A worker first changes the list there and then broadcasts it to all members. A broadcast carries the
whole list with its version, so broadcasts may arrive in any order, and one may be lost. No worker holds
a token that others wait for.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import rpc
from torch.distributed.rpc import TensorPipeAgent, WorkerInfo

from rpc_backend_tensorpipe import broadcast
from rpc_backend_tensorpipe.agent_store import AgentStore
from rpc_backend_tensorpipe.agents import SelfDescribingAgent, dumps, warn_if_open
from rpc_backend_tensorpipe.liveness import LivenessListener, refused
from rpc_backend_tensorpipe.membership import Membership, Peer, State, logger
from rpc_backends_core.spi import (
    JOIN_TIMEOUT,
    Group,
    RankMappingMixin,
    StoreError,
    device_maps,
    processes,
    torch_internals,
)

#: Seconds that a leaving worker gives to the requests it is serving.
_SERVING_TIMEOUT = 5.0
#: Seconds that the engine may need to write the last response.
_WRITING_SECONDS = 0.3
#: Seconds between checks whether any peer that could still respond is alive.
_LOOKING_SECONDS = 0.5
#: Seconds within which all calls to a worker that is gone fail.
_ERRORS_SECONDS = 1.0
#: Seconds between two searches for dead members: at least the first, and so many for each member.
_SEARCH_INTERVAL, _SEARCH_INTERVAL_PER_MEMBER = 1.0, 0.05
#: Seconds for the search, and then for telling the other members of what it has found.
_SEARCH_SECONDS = 1.0
#: Seconds that a worker waits at most for members to acknowledge an update, and where calls have no limit
#: also for its active calls when it leaves: a suspended member says nothing.
_LONGEST_WAIT = 60.0
#: Seconds that the members have to learn that a join was undone.
_UNDOING_TIMEOUT = 5.0
#: How long a leaving worker waits for the deletion of RRefs. Other workers may hold RRefs to values
#: here for ever.
_RREF_TIMEOUT = timedelta(seconds=1)

#: Instead of a worker id, so that the engine removes only a name.
_NO_ID = -1


class TensorPipeDynamicAgent(RankMappingMixin, SelfDescribingAgent, TensorPipeAgent):
    """Torch's agent, which learns of its peers from the member list in the store.

    A worker that rejoins gets a new worker id, because its peers still hold dead pipes to the old id.
    Programs still see its rank.
    """

    membership: Membership
    me: Peer
    listener: LivenessListener | None = None
    is_listed = False

    def begin(self, engine: AgentStore, membership: Membership, me: Peer) -> None:
        """Set the agent's state; call this before the agent starts."""
        self.engine, self.membership, self.me = engine, membership, me
        self._changing = threading.Lock()
        self._state = State()
        self._next_search = 0.0
        self._in_engine: set[str] = set()  # names of members, and of former ones
        self.set_workers([me.info()], me.info())

    def apply(self, state: State) -> None:
        """Update this agent's peers to ``state``, unless the agent already has a later state."""
        with self._changing:
            if state.version <= self._state.version:
                return
            old, new = self._state.peers, state.peers
            mine = self.me.devices
            reverse = device_maps.reverse_maps(mine, (peer.devices for peer in new.values()))
            used = device_maps.used_devices(mine, reverse)
            device_maps.initialise(used)
            for peer in new.values():
                if old.get(peer.name) != peer:
                    self._add_to_engine(peer, used, reverse)
            for peer in old.values():
                if new.get(peer.name) != peer:
                    self.note_leave(peer.name, peer.rank, ended=peer.worker_id in state.ended)
            self._state = state
            self.set_workers([peer.info() for peer in new.values()], self.me.info())
            torch_internals.set_worker_names({self.me.name, *new})

    def notify(self, state: State, *, timeout: float) -> list[Peer]:
        """Broadcast ``state`` to all its other members; return the members that did not acknowledge it.

        :param timeout: seconds for the whole broadcast, of which a minute counts; 0 means a minute.
        """
        self.apply(state)
        others = [
            member for member in state.peers.values() if member.worker_id != self.me.worker_id
        ]
        reached = [peer for peer in others if not peer.process_has_ended()]
        message = broadcast.sealed(dumps(state.to_json()).encode(), self.membership.key)
        seconds = min(timeout or _LONGEST_WAIT, _LONGEST_WAIT)
        taken = broadcast.send_to_all([peer.listener for peer in reached], message, seconds)
        told = {peer.name for peer, answered in zip(reached, taken, strict=True) if answered}
        return [peer for peer in others if peer.name not in told]

    def listen(self, connection: socket.socket) -> None:
        """Apply a broadcast that another member sends to this worker's listener."""
        try:
            broadcast.receive(connection, self.membership.key, self.me.worker_id, self._learn)
        except Exception:
            logger.exception("RPC worker %r could not apply a membership update", self.me.name)

    def has_ended(self, name: str) -> bool:
        """Return whether the process of a member has ended."""
        return bool(_ended([peer for peer in self._state.peers.values() if peer.name == name]))

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return the current members of the group, after a search for those whose process has ended."""
        now = time.monotonic()
        if self.is_listed and now >= self._next_search:
            pause = _SEARCH_INTERVAL_PER_MEMBER * len(self._state.peers)
            self._next_search = now + max(_SEARCH_INTERVAL, pause)
            self._remove_dead()
        return super().get_worker_infos()

    def _remove_dead(self) -> None:
        """Remove members whose process has ended from the list, and tell the others."""
        others = [peer for peer in self._state.peers.values() if peer.name != self.me.name]
        dead = _ended(others)
        if not dead:
            return
        # If the store is lost, the list stays as it is.
        with contextlib.suppress(StoreError):
            _warn_of(
                self.notify(self.membership.remove(dead, ended=True), timeout=_SEARCH_SECONDS),
                self.me,
            )

    def leave_group(self, timeout: float = 0) -> None:
        """Leave the group: remove this worker from the list, tell the others, finish active calls.

        :param timeout: seconds that the other members have to acknowledge, and then active calls to
            end; 0 means the RPC timeout, or a minute if calls have no limit.
        """
        limit = timeout or rpc.get_rpc_timeout() or _LONGEST_WAIT
        deleted = self._delete_rrefs()
        self.is_listed = False
        try:
            left = self.membership.remove([self.me])
        except StoreError as error:
            # The list is unchanged, so there is nothing to broadcast. The others see their connections
            # to this worker end.
            logger.warning(
                "RPC worker %r is leaving, but could not remove itself from the member list: %s",
                self.me.name,
                error,
            )
            others = [peer for peer in self._state.peers.values() if peer.name != self.me.name]
            left = self._state.with_peers(others)
        else:
            _warn_of(self.notify(left, timeout=limit), self.me)
        self._finish_serving(_SERVING_TIMEOUT)
        if deleted or self._finish_calling(left, limit):
            self.join(shutdown=True)

    def shutdown(self) -> None:
        """Stop the agent, and remove this worker from the list if it has not left the group.

        If it stayed on the list, other workers would send liveness questions to its port, which another
        agent may have by then (:mod:`.liveness`).
        """
        if self.is_listed:
            self.is_listed = False
            # If the store is lost, the others only see their connections end.
            with contextlib.suppress(StoreError):
                self.membership.remove([self.me])
        if self.listener is not None:
            self.listener.close()
        TensorPipeAgent.shutdown(self)

    def _learn(self, text: bytes) -> None:
        self.apply(State.from_json(json.loads(text)))

    def _delete_rrefs(self) -> bool:
        """Delete this worker's RRefs; return whether their owners have confirmed every deletion."""
        try:
            torch_internals.delete_rrefs(_RREF_TIMEOUT)
        except RuntimeError as error:
            logger.warning(
                "RPC worker %r is leaving, but not all of its RRefs were deleted: %s",
                self.me.name,
                error,
            )
            return False
        return not torch_internals.has_unconfirmed_rrefs()

    def _finish_calling(self, others: State, seconds: float) -> bool:
        """Wait for this worker's active calls; return False if some of them will never end.

        If the owner of an RRef exits before it has confirmed the RRef, torch's callback throws. The
        engine still counts that call as active, and its ``join()`` would wait for it for ever.
        """
        now = time.monotonic()
        end = now + seconds
        look = now
        while self.get_metrics()["agent.client_active_calls"] != "0":
            now = time.monotonic()
            if now > end:
                return False
            if now >= look:
                look = now + _LOOKING_SECONDS
                if not any(map(self.membership.is_alive, others.peers.values())):
                    # No response can arrive any more, and broken pipes fail their calls soon.
                    end, look = now + _ERRORS_SECONDS, end
            time.sleep(0.02)
        return True

    def _finish_serving(self, seconds: float) -> None:
        """Wait until this worker serves no request. Members know that it leaves, and send no more."""
        end = time.monotonic() + seconds
        had_to_wait = False
        while time.monotonic() < end:
            if self.get_metrics()["agent.server_active_calls"] == "0":
                if had_to_wait:
                    # The engine counts a request as served before it has written the response, and it
                    # does not show when it has.
                    time.sleep(_WRITING_SECONDS)
                return
            had_to_wait = True
            time.sleep(0.002)

    def _add_to_engine(self, peer: Peer, used: Any, reverse: Any) -> None:
        """Add a peer to the engine, in place of an earlier one of that name.

        The engine keeps peers that have left. While torch repeats a message to the owner of an RRef, it
        holds a reference to the engine's entry for the owner's id, and ends the process if the engine has
        no address for the owner's name.
        """
        update = functools.partial(TensorPipeAgent._update_group_membership, self)
        if peer.name in self._in_engine and peer.name != self.me.name:
            update(WorkerInfo(peer.name, _NO_ID), used, reverse, False)
        self._in_engine.add(peer.name)
        self.engine.add_address(peer.name, peer.address)
        known = {name: map_ for name, map_ in reverse.items() if name == peer.name}
        update(peer.engine_info(), used, known, True)


def start(group: Group, options: Any) -> Any:
    """Join a dynamic group with a new agent.

    On an error the group is as it was before.

    :raises RuntimeError: another member has this name or rank.
    :raises ValueError: the device maps are inconsistent.
    """
    name, rank = group.name, group.rank
    mine = device_maps.WorkerDevices.of_this_process(name, options)
    membership = Membership(group.access, min(group.timeout, JOIN_TIMEOUT))
    worker_id = membership.reserve(name, rank, mine, wanted=torch_internals.fixed_worker_id())
    engine = AgentStore(name)
    agent = TensorPipeDynamicAgent(engine.store, name, worker_id, None, options, {}, [])
    me = Peer(name, rank, worker_id, mine, process=tuple(processes.this_process()))
    agent.begin(engine, membership, me)
    try:
        torch_internals.init_rpc_states(agent)
        agent.listener = LivenessListener(engine.own_address, agent.listen)
        agent.me = me = me.at(engine.own_address, agent.listener.address)
        state = membership.add(me)
        agent.is_listed = True
        _introduce(agent, state, options)
        warn_if_open(agent)
    except BaseException:
        _withdraw(agent, membership, me)
        raise
    return agent


def _introduce(agent: TensorPipeDynamicAgent, state: State, options: Any) -> None:
    """Tell every member about this new worker, and remove members that are gone from the list."""
    silent = agent.notify(state, timeout=options.rpc_timeout)
    gone = [peer for peer in silent if not agent.membership.is_alive(peer)]
    _warn_of([peer for peer in silent if peer not in gone], agent.me)
    if gone:
        names = ", ".join(repr(peer.name) for peer in gone)
        logger.warning("removing RPC workers that are gone from the member list: %s", names)
        state = agent.membership.remove(gone, ended=True)
        _warn_of(agent.notify(state, timeout=options.rpc_timeout), agent.me)


def _ended(peers: Sequence[Peer]) -> list[Peer]:
    """Return the members whose process has ended: seen on this host, else nothing listens there."""
    here = {peer.name: peer.process_has_ended() for peer in peers}
    elsewhere = [peer for peer in peers if here[peer.name] is None]
    is_refused = refused([peer.listener for peer in elsewhere], _SEARCH_SECONDS)
    gone = {peer.name for peer, ended in zip(elsewhere, is_refused, strict=True) if ended}
    return [peer for peer in peers if here[peer.name] or peer.name in gone]


def _warn_of(silent: Sequence[Peer], me: Peer) -> None:
    for peer in silent:
        logger.warning(
            "RPC worker %r did not acknowledge a membership update from %r", peer.name, me.name
        )


def _withdraw(agent: TensorPipeDynamicAgent, membership: Membership, me: Peer) -> None:
    """Undo a failed join: remove this worker from the list, tell the members, stop the agent."""
    agent.is_listed = False
    try:
        state = membership.remove([me])
        if torch_internals.has_current_agent():
            _warn_of(agent.notify(state, timeout=_UNDOING_TIMEOUT), me)
    except RuntimeError as error:
        logger.warning("RPC worker %r could not undo its join: %s", me.name, error)
    finally:
        agent.shutdown()
