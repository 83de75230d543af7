"""What backends on torch's TensorPipe agents need, beyond what every agent does (:mod:`.agents`)."""

from __future__ import annotations

import json
from typing import Any

from rpc_backend_tensorpipe.agent_store import AgentStore, Barriers, exchanging_addresses
from rpc_backends_core.spi import Group, torch_internals, worker_info


class StaticGroupAgent:
    """Mixed in before an agent of a static group: its barriers are held through the group's store."""

    engine: AgentStore
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
    :param ranked: its class, with :class:`RankMappingMixin` too, where a process keeps the id of an
        earlier group.
    :returns: the agent, running and current.
    :raises GroupError: another worker failed meanwhile.
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
    except BaseException:
        agent.shutdown()
        raise
    return agent


def dumps(value: Any) -> str:
    """Write JSON in one form, whoever writes it, so that texts can be compared."""
    return json.dumps(value, sort_keys=True)
