"""What every agent needs: its group, and a mapping between ranks and worker ids."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch.distributed as dist
from torch.distributed.rpc import WorkerInfo

from rpc_backends_core import _handlers
from rpc_backends_core._bridge.session import NEVER
from rpc_backends_core._bridge.torch_internals import fixed_worker_id
from rpc_backends_core._errors import ArgumentError
from rpc_backends_core._group import Group, join_group


def group_for(
    store: Any,
    name: str,
    rank: int,
    world_size: int | None,
    options: Any,
    backend: str,
    group: Group | None = None,
) -> Group:
    """Return ``group`` if ``init_rpc`` formed one, else join a group on the caller's store.

    An init handler passes on the arguments it received. ``group`` is None if a program calls
    ``init_backend`` itself.

    :param options: the backend's options; their ``rpc_timeout`` limits each exchange in the group.
    :param backend: the backend's name; all workers of a static group must use the same one.
    :raises GroupError: the group cannot be formed; all its workers raise the same message.
    """
    if group is not None:
        return group
    return join_group(
        store,
        name,
        rank,
        world_size,
        backend=backend,
        timeout=float(options.rpc_timeout) or NEVER.total_seconds(),
        fixed_id=fixed_worker_id(),
    )


def check_arguments(backend: str, store: Any, options: Any, options_type: type) -> None:
    """Check the types of an init handler's arguments.

    :param backend: the backend's name, for the error.
    :param options_type: the only type of options that the backend takes.
    :raises ArgumentError: ``store`` or ``options`` has another type.
    """
    if not isinstance(store, dist.Store):
        raise ArgumentError(
            f"{backend} got the store {_handlers.shown(store)}; it must be a torch.distributed.Store."
        )
    if not isinstance(options, options_type):
        wanted = options_type.__name__
        raise ArgumentError(
            f"{backend} got rpc_backend_options of type {type(options).__name__}; it takes only "
            f"{wanted}. Pass such options or none, or choose the backend of these options. torch: "
            f"`rpc_backend_options` must be a `{wanted}`"
        )


class RankedWorkerInfo(WorkerInfo):
    """A worker whose rank differs from its worker id in the C++ agent.

    Python code reads the rank from ``id``; C++ code reads the worker id.
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
        # Unpickles as a plain WorkerInfo with the worker id, which every process can call.
        return (WorkerInfo, (self.name, super().id))


def worker_info(name: str, worker_id: int, rank: int) -> WorkerInfo:
    """Return the ``WorkerInfo`` of a worker, as programs see it."""
    if worker_id == rank:
        return WorkerInfo(name, worker_id)
    return RankedWorkerInfo(name, worker_id, rank)


class RankMappingMixin:
    """Mixin, placed before an agent class: looks workers up by rank instead of by worker id.

    The agent calls :meth:`set_workers` when its group is known and whenever the group changes.
    """

    #: How former workers have left, by name and by rank.
    _left: Mapping[str | int, str] = MappingProxyType({})

    def set_workers(self, workers: list[WorkerInfo], me: WorkerInfo) -> None:
        """Set the workers of the group, including this one."""
        self._by_name = {worker.name: worker for worker in workers}
        self._by_rank = {worker.id: worker for worker in workers}
        self._me = me

    def note_leave(self, name: str, rank: int, *, ended: bool) -> str:
        """Remember how a worker has left, for the errors of later calls.

        :param ended: whether its process has ended, and it did not leave.
        :returns: how it has left, as these errors say it.
        """
        how = "has ended without shutdown()" if ended else "has left the group"
        text = f"worker {name!r} {how}"
        self._left = {**self._left, name: text, rank: text}
        return text

    def knows(self, who: str | int) -> bool:
        """Return whether the group has a worker of that name or rank."""
        return who in (self._by_rank if isinstance(who, int) else self._by_name)

    def get_worker_info(self, who: str | int | None = None) -> WorkerInfo:
        """Return a worker by name or rank; without an argument, this worker.

        :raises RuntimeError: there is no such worker.
        """
        if who is None:
            return self._me
        table: dict[Any, WorkerInfo] = self._by_rank if isinstance(who, int) else self._by_name
        try:
            return table[who]
        except KeyError:
            how = self._left.get(who)
            reason = f", because {how}" if how else f" ({', '.join(sorted(self._by_name))})"
            raise RuntimeError(
                f"Unknown destination worker {who}: could not find destination among the members "
                f"of the group{reason}."
            ) from None

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return all workers of the group."""
        return list(self._by_name.values())
