"""A dynamic group: workers join and leave while the others work.

The members stand in the store, under one key that is only ever changed by compare-and-set
(`membership`). A change is made there first, and then told to all members at once; what is told is the
whole list with its version, so it does not matter in which order tellings arrive, or whether one does
not. Nobody holds a token that others wait for.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import rpc
from torch.distributed.rpc import TensorPipeAgent

from rpc_backend_tensorpipe import broadcast, devices
from rpc_backend_tensorpipe.agent_store import AgentStore
from rpc_backend_tensorpipe.agents import dumps
from rpc_backend_tensorpipe.devices import WorkerDevices
from rpc_backend_tensorpipe.liveness import LivenessListener, is_alive
from rpc_backend_tensorpipe.membership import Membership, Peer, State, logger
from rpc_backends_core.spi import (
    JOIN_PATIENCE,
    Group,
    RankMappingMixin,
    StoreError,
    torch_internals,
)

#: Seconds given to requests that are being served when a worker leaves.
_SERVING_PATIENCE = 5.0
#: Seconds in which the engine has written the last answer.
_WRITING_SECONDS = 0.3
#: Seconds between looks whether anybody is there who could still answer.
_LOOKING_SECONDS = 0.5
#: Seconds in which all calls to a worker that is gone have failed.
_ERRORS_SECONDS = 1.0
#: Seconds that each member has to learn that a worker has failed to join.
_UNDOING_PATIENCE = 5.0
#: Seconds given to deleting RRefs then: the RRefs of others to values here may well stay for ever.
_RREF_PATIENCE = timedelta(seconds=1)


class DynamicAgent(RankMappingMixin, TensorPipeAgent):
    """Torch's agent, told of its peers by the members' list in the store.

    A worker that comes back gets a new worker id, since its peers hold dead pipes to the old one;
    programs go on seeing its rank.
    """

    engine: AgentStore
    membership: Membership
    me: Peer
    listener: LivenessListener | None = None

    def begin(self, engine: AgentStore, membership: Membership, me: Peer) -> None:
        """Set what this agent knows before it is started."""
        self.engine, self.membership, self.me = engine, membership, me
        self._changing = threading.Lock()
        self._state = State()
        self.set_workers([me.info()], me.info())

    def apply(self, state: State) -> None:
        """Bring this agent's peers in line with ``state``, unless it knows a later one."""
        with self._changing:
            if state.version <= self._state.version:
                return
            old, new = self._state.peers, state.peers
            mine = self.me.devices
            reverse = devices.reverse_maps(mine, (peer.devices for peer in new.values()))
            used = devices.used_devices(mine, reverse)
            devices.initialise(used)
            for peer in old.values():
                if new.get(peer.name) != peer and peer.name != self.me.name:
                    self._tell_engine(peer, used, reverse, joins=False)
            for peer in new.values():
                if old.get(peer.name) != peer:
                    self.engine.add_address(peer.name, peer.address)
                    known = {name: map_ for name, map_ in reverse.items() if name == peer.name}
                    self._tell_engine(peer, used, known, joins=True)
            self._state = state
            self.set_workers([peer.info() for peer in new.values()], self.me.info())
            torch_internals.set_worker_names({self.me.name, *new})

    def tell(self, state: State, *, timeout: float) -> list[Peer]:
        """Tell all other members of ``state`` at once; return those that did not answer.

        :param timeout: seconds they have; 0: no limit.
        """
        self.apply(state)
        others = [one for one in state.peers.values() if one.worker_id != self.me.worker_id]
        message = broadcast.sealed(dumps(state.to_json()).encode(), self.membership.key)
        taken = broadcast.send_to_all([peer.listener for peer in others], message, timeout)
        return [peer for peer, answered in zip(others, taken, strict=True) if not answered]

    def listen(self, connection: socket.socket) -> None:
        """Take in a broadcast that another member sends to this one's listener."""
        try:
            broadcast.receive(connection, self.membership.key, self._learn)
        except Exception:
            logger.exception("RPC worker %r could not take in a change of its group", self.me.name)

    def leave_group(self, timeout: float = 0) -> None:
        """Leave: finish what is under way, take this worker off the list, tell the others.

        :param timeout: seconds each other member has to answer; 0 for the agent's own timeout.
        """
        limit = timeout or rpc.get_rpc_timeout()
        deleted = self._delete_rrefs()
        try:
            left = self.membership.remove([self.me])
        except StoreError as error:
            # The others see the connections end; of a list that nobody has changed nobody is told.
            logger.warning(
                "RPC worker %r leaves, and the list of members does not say so: %s",
                self.me.name,
                error,
            )
            others = [peer for peer in self._state.peers.values() if peer.name != self.me.name]
            left = self._state.with_peers(others)
        else:
            _warn_of(self.tell(left, timeout=limit), self.me)
        self._finish_serving(_SERVING_PATIENCE)
        if deleted or self._finish_calling(left, limit):
            self.join(shutdown=True)

    def shutdown(self) -> None:
        """Stop the agent."""
        if self.listener is not None:
            self.listener.close()
        TensorPipeAgent.shutdown(self)

    def _learn(self, text: bytes) -> None:
        self.apply(State.from_json(json.loads(text)))

    def _delete_rrefs(self) -> bool:
        """Delete this worker's RRefs; return whether their owners have confirmed all of them."""
        try:
            torch_internals.delete_rrefs(_RREF_PATIENCE)
        except RuntimeError as error:
            logger.warning("RPC worker %r leaves with RRefs not deleted: %s", self.me.name, error)
            return False
        return not torch_internals.has_unconfirmed_rrefs()

    def _finish_calling(self, others: State, seconds: float) -> bool:
        """Wait for this worker's calls; return False if there are some that will never count as ended.

        When the owner of an RRef ends before it has confirmed it, torch's callback throws, the engine
        goes on counting that call, and its ``join()`` would wait for it without end.
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
                if not any(is_alive(peer.listener) for peer in others.peers.values()):
                    # No answer can come any more, and the errors of broken pipes come at once.
                    end, look = now + _ERRORS_SECONDS, end
            time.sleep(0.02)
        return True

    def _finish_serving(self, seconds: float) -> None:
        """Wait until no request is being served here; members know that we leave and send no more."""
        end = time.monotonic() + seconds
        had_to_wait = False
        while time.monotonic() < end:
            if self.get_metrics()["agent.server_active_calls"] == "0":
                if had_to_wait:
                    # The engine counts a request as served before its answer is written, and nothing
                    # says when it is.
                    time.sleep(_WRITING_SECONDS)
                return
            had_to_wait = True
            time.sleep(0.002)

    def _tell_engine(self, peer: Peer, used: Any, reverse: Any, *, joins: bool) -> None:
        TensorPipeAgent._update_group_membership(self, peer.engine_info(), used, reverse, joins)


def start(group: Group, options: Any) -> Any:
    """Join a dynamic group with a new agent.

    :raises RuntimeError: the name or the rank is another member's.
    :raises ValueError: device maps do not fit. In both cases the group is as it was.
    """
    name, rank = group.name, group.rank
    mine = WorkerDevices.of_this_process(name, options)
    membership = Membership(group.access, min(group.timeout, JOIN_PATIENCE))
    worker_id = membership.reserve(name, rank, mine, wanted=torch_internals.fixed_worker_id())
    engine = AgentStore(name)
    agent = DynamicAgent(engine.store, name, worker_id, None, options, {}, [])
    me = Peer(name, rank, worker_id, mine)
    agent.begin(engine, membership, me)
    try:
        torch_internals.init_rpc_states(agent)
        agent.listener = LivenessListener(engine.own_address, agent.listen)
        agent.me = me = me.at(engine.own_address, agent.listener.address)
        state = membership.add(me)
        _introduce(agent, state, options)
    except BaseException:
        _withdraw(agent, membership, me)
        raise
    return agent


def _introduce(agent: DynamicAgent, state: State, options: Any) -> None:
    """Tell every member of the new one; take members off the list that are no longer there."""
    silent = agent.tell(state, timeout=options.rpc_timeout)
    gone = [peer for peer in silent if not is_alive(peer.listener)]
    _warn_of([peer for peer in silent if peer not in gone], agent.me)
    if gone:
        names = ", ".join(repr(peer.name) for peer in gone)
        logger.warning("taking RPC workers that are gone off the list of members: %s", names)
        state = agent.membership.remove(gone)
        _warn_of(agent.tell(state, timeout=options.rpc_timeout), agent.me)


def _warn_of(silent: Sequence[Peer], me: Peer) -> None:
    for peer in silent:
        logger.warning("RPC worker %r did not answer %r", peer.name, me.name)


def _withdraw(agent: DynamicAgent, membership: Membership, me: Peer) -> None:
    """Leave the group as it was before this worker tried to join."""
    try:
        state = membership.remove([me])
        if torch_internals.has_current_agent():
            _warn_of(agent.tell(state, timeout=_UNDOING_PATIENCE), me)
    except RuntimeError as error:
        logger.warning("RPC worker %r could not undo its join: %s", me.name, error)
    finally:
        agent.shutdown()
