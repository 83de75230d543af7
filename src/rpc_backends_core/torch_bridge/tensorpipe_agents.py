"""What every backend on torch's TensorPipe agents needs: its group, and ranks beside worker ids."""

from __future__ import annotations

import json
from typing import Any

from torch._C._distributed_rpc import WorkerInfo
from torch.distributed import rpc

from rpc_backends_core.group import Group, join_group
from rpc_backends_core.torch_bridge.engine_store import Barriers, EngineStore, exchanging_addresses
from rpc_backends_core.torch_bridge.session import (
    NEVER,
    current_group,
    fixed_worker_id,
    rpc_seconds,
)


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


class StaticGroupAgent:
    """Mixed in before an agent of a static group: its barriers are held through the group's store."""

    engine: EngineStore
    group: Group
    barriers: Barriers

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Wait until all workers have come here and no call is active anywhere.

        :param timeout: seconds to wait for the others at a time; 0 for the agent's own timeout.
        """
        join = super().join  # type: ignore[misc]  # the agent's
        if len(self.group.members) == 1:
            join(shutdown, timeout)
            return
        with self.barriers.held(timeout or self.group.timeout):
            join(shutdown, timeout)


def start_static_agent(
    plain: Any, ranked: Any, group: Group, options: Any, reverse_maps: Any, devices: Any
) -> Any:
    """Make and start the agent of one worker; returns when the agents of all workers listen.

    :param plain: the agent's class where every worker id is the rank, which is the rule: no Python of
        ours is then asked for a worker. It has :class:`StaticGroupAgent`.
    :param ranked: its class, with :class:`Ranked` too, where a process keeps the id of an earlier group.
    :returns: the agent, running and current.
    :raises GroupError: another worker failed meanwhile.
    """
    engine = EngineStore(group.name)
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
            rpc.api._init_rpc_states(agent)
    except BaseException:
        agent.shutdown()
        raise
    return agent


def dumps(value: Any) -> str:
    """Write JSON in one form, whoever writes it, so that texts can be compared."""
    return json.dumps(value, sort_keys=True)
