"""What every backend on torch's TensorPipe agents needs: the agents' store, and ranks beside worker ids.

Torch's agents find each other by keys that they write into a store in C++ (`names/ID`, `addrs/NAME`,
`shutdown/..._ID_N`; seen in torch 2.13). The stores here stand between the agent and the group's store:
they answer from what the group already knows, so that a start costs a constant number of requests, and
they number the barriers of a shutdown per group where torch numbers them per process.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_rpc import WorkerInfo
from torch.distributed import rpc

from rpc_backends_core.group import Group, join_group
from rpc_backends_core.torch_bridge.session import (
    NEVER,
    current_group,
    fixed_worker_id,
    rpc_seconds,
)

_BARRIER_KEY = re.compile(r"(shutdown/.*_ID_)(\d+)$")


def group_for(
    store: Any, name: str, rank: int, world_size: int | None, options: Any, backend: str
) -> Group:
    """Return the group that ``init_rpc`` has formed for ``store``, or join one on a caller's store."""
    group = current_group(store)
    if group is not None:
        return group
    return join_group(
        store,
        name,
        rank,
        world_size,
        backend=backend,
        timeout=rpc_seconds(options.rpc_timeout) or NEVER.total_seconds(),
        fixed_id=fixed_worker_id(),
    )


class AgentStore(dist.Store):
    """The store that a TensorPipe agent in C++ sees, in front of the store of its group."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner
        self._first_barrier: int | None = None
        #: The agent's own address, once it listens.
        self.own_address: str | None = None

    def set(self, key: str, value: Any) -> None:
        """Keep the agent's own address; its name is known already."""
        kind, _, _ = key.partition("/")
        if kind == "addrs":
            self.own_address = _text(value)
        elif kind != "names":
            self._inner.set(self._renumbered(key), _text(value))

    def get(self, key: str) -> bytes:
        """Return the name or the address of a worker from what the group knows."""
        kind, _, which = key.partition("/")
        if kind == "names":
            return self.name_of(which).encode()
        if kind == "addrs":
            return self.address_of(which).encode()
        value: bytes = self._inner.get(self._renumbered(key))
        return value

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Grant the agent its id and its kind of group: the group has checked both."""
        if key.startswith("names/") or key == "rpcIsStaticGroup":
            return _text(desired).encode()
        value: bytes = self._inner.compare_set(
            self._renumbered(key), _text(expected), _text(desired)
        )
        return value

    def check(self, keys: list[str]) -> bool:
        """Return whether the keys are there; the agent asks for its own list of members."""
        if any(key.startswith("names/") for key in keys):
            return False
        return bool(self._inner.check([self._renumbered(key) for key in keys]))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter of the group."""
        return int(self._inner.add(self._renumbered(key), amount))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for keys of the group."""
        renumbered = [self._renumbered(key) for key in keys]
        if timeout is None:
            self._inner.wait(renumbered)
        else:
            self._inner.wait(renumbered, timeout)

    def name_of(self, worker_id: str) -> str:
        """Return the name of a worker by its id, "" for what is not a worker."""
        raise NotImplementedError

    def address_of(self, name: str) -> str:
        """Return the address of the worker ``name``."""
        raise NotImplementedError

    def _renumbered(self, key: str) -> str:
        """Count barriers from the first one of this group, not of this process."""
        match = _BARRIER_KEY.match(key)
        if match is None:
            return key
        number = int(match[2])
        if self._first_barrier is None:
            self._first_barrier = number
        return f"{match[1]}{number - self._first_barrier}"


class StaticAgentStore(AgentStore):
    """The agent's store in a static group: names are known, addresses are exchanged once."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.store)
        self._group = group
        self._names = {str(member.worker_id): member.name for member in group.members}
        self._addresses: dict[str, str] = {}

    def name_of(self, worker_id: str) -> str:
        """Return the name of a worker by its id."""
        return self._names[worker_id]

    def address_of(self, name: str) -> str:
        """Return a worker's address; the first question is a barrier of all workers."""
        if not self._addresses:
            addresses = self._group.exchange(self.own_address)
            names = (member.name for member in self._group.members)
            self._addresses = dict(zip(names, addresses, strict=True))
        return self._addresses[name]


class RankedWorkerInfo(WorkerInfo):
    """A worker whose rank is not the id that the agent in C++ knows it by.

    Python sees the rank as ``id``; C++, given this object, sees the worker id.
    """

    def __init__(self, name: str, worker_id: int, rank: int) -> None:
        super().__init__(name, worker_id)
        self.rank = rank

    @property
    def id(self) -> int:
        """The rank."""
        return self.rank

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.rank}, name={self.name})"

    def __reduce__(self) -> Any:
        # In another process it is torch's own, by worker id: good to call, whoever receives it.
        return (WorkerInfo, (self.name, super().id))


def worker_info(name: str, worker_id: int, rank: int) -> WorkerInfo:
    """Return what a program is to see of a worker."""
    if worker_id == rank:
        return WorkerInfo(name, worker_id)
    return RankedWorkerInfo(name, worker_id, rank)


class Ranked:
    """Mixed in before an agent: answers by rank where the agent in C++ goes by worker id.

    The agent calls :meth:`set_workers` when its group is known, and whenever it changes.
    """

    def set_workers(self, workers: list[WorkerInfo], me: WorkerInfo) -> None:
        """Set the workers of the group, this one among them."""
        self._by_name = {worker.name: worker for worker in workers}
        self._by_rank = {worker.id: worker for worker in workers}
        self._me = me

    def get_worker_info(self, who: str | int | None = None) -> WorkerInfo:
        """Return a worker by name or rank, or this one.

        :raises RuntimeError: there is no such worker.
        """
        if who is None:
            return self._me
        table: dict[Any, WorkerInfo] = self._by_rank if isinstance(who, int) else self._by_name
        try:
            return table[who]
        except KeyError:
            names = ", ".join(sorted(self._by_name))
            raise RuntimeError(
                f"Unknown destination worker {who}: could not find destination among the members "
                f"of the group ({names})."
            ) from None

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return all workers of the group."""
        return list(self._by_name.values())


def static_agent(plain: type, ranked: type, group: Group, options: Any, *maps: Any) -> Any:
    """Make the agent of a static group.

    :param plain: the agent's class where every worker id is the rank, which is the rule: no Python of
        ours is then asked for a worker.
    :param ranked: its class, with :class:`Ranked`, where a process keeps the id of an earlier group.
    :param maps: reverse device maps and devices.
    """
    me = group.me
    renumbered = any(member.worker_id != member.rank for member in group.members)
    store = StaticAgentStore(group)
    agent = (ranked if renumbered else plain)(
        store, group.name, me.worker_id, group.world_size, options, *maps
    )
    agent.agent_store = store  # C++ keeps the store, but not its Python methods
    if renumbered:
        workers = [worker_info(m.name, m.worker_id, m.rank) for m in group.members]
        agent.set_workers(workers, workers[group.rank])
    return agent


def start_static_agent(agent: Any, group: Group) -> Any:
    """Make ``agent`` current and start it; all workers of the group do so together."""
    try:
        rpc.api._init_rpc_states(agent)
    except BaseException:
        agent.shutdown()
        raise
    return agent


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


def dumps(value: Any) -> str:
    """Write JSON in one form, whoever writes it, so that texts can be compared."""
    return json.dumps(value, sort_keys=True)
