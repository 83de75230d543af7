"""Backends whose agent breaks a promise of `rpc_backends_core.spi.Agent`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rpc_backend_tensorpipe.handlers import BACKEND
from rpc_backends_core import Backend
from rpc_broken_backends import Broken
from rpc_broken_backends.seams import tensorpipe


def with_agent(change: Callable[[Any], None]) -> Backend:
    """Return TENSORPIPE, with ``change`` called for each agent after its start."""

    def init_backend(
        store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: Any
    ) -> Any:
        agent = BACKEND.init_backend_handler(store, name, rank, world_size, rpc_backend_options)
        change(agent)
        return agent

    return tensorpipe(lambda: None, init_backend_handler=init_backend)


def no_metrics_in_debug_info(agent: Any) -> None:
    agent.get_debug_info = lambda: {"state": "well"}


def numbers_in_debug_info(agent: Any) -> None:
    measure = agent.get_debug_info
    agent.get_debug_info = lambda: {**measure(), "agent.answers": 42}


def any_worker_is_itself(agent: Any) -> None:
    find = agent.get_worker_info

    def get_worker_info(*who: Any) -> Any:
        try:
            return find(*who)
        except RuntimeError:
            return find()

    agent.get_worker_info = get_worker_info


def workers_without_itself(agent: Any) -> None:
    members = agent.get_worker_infos
    me = agent.get_worker_info().name
    agent.get_worker_infos = lambda: [info for info in members() if info.name != me]


def no_worker_by_rank(agent: Any) -> None:
    find = agent.get_worker_info

    def get_worker_info(*who: Any) -> Any:
        if who and isinstance(who[0], int):
            raise RuntimeError("workers are known by their names")
        return find(*who)

    agent.get_worker_info = get_worker_info


BROKEN = {
    "DEBUG_INFO_WITHOUT_METRICS": Broken(
        with_agent(no_metrics_in_debug_info), "metrics", ("metrics.debug_info", "get_debug_info()")
    ),
    "DEBUG_INFO_OF_NUMBERS": Broken(
        with_agent(numbers_in_debug_info), "metrics", ("metrics.debug_info", "dict of str to str")
    ),
    "FINDS_ANY_WORKER": Broken(
        with_agent(any_worker_is_itself), "life", ("life.unknown_worker", "no error"), spreads=True
    ),
    "LISTS_ONLY_THE_OTHERS": Broken(
        with_agent(workers_without_itself),
        "life",
        ("life.static_group", "get_worker_infos"),
        spreads=True,
    ),
    "KNOWS_NO_RANKS": Broken(
        with_agent(no_worker_by_rank), "life", ("life.worker_info", "by their names"), spreads=True
    ),
}
