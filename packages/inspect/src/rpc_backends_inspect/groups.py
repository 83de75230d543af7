"""Sorts the states of workers by the group that they are in.

Groups of several programs can have workers of the same names, and even the same address if one program
runs after the other. What all workers of a group share, and no other worker has, is the group's id. A
worker that waits in ``init_rpc`` has none before its group is complete; until then its address counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from rpc_backends_inspect.sockets import key_of_address
from rpc_backends_inspect.workers import WorkerState

#: The characters of an id that are shown.
_SHORT = 8


@dataclass(frozen=True)
class InspectedGroup:
    """A group of workers.

    :ivar key: the group's id, or an ``@`` and a hash of its address while it has no id; empty for workers
        of which nothing is known.
    :ivar address: where its workers meet; empty if no worker has said it.
    :ivar members: the names of all its members, if a worker has said them.
    """

    key: str
    address: str
    backend: str
    members: tuple[str, ...]
    states: tuple[WorkerState, ...]

    def is_called(self, text: str) -> bool:
        """Return whether ``text`` is the group's address, its id, or the first characters of its id."""
        return bool(text) and (text == self.address or self.key.startswith(text))

    def joined_by(self, states: Iterable[WorkerState]) -> InspectedGroup:
        """Return the group with more workers."""
        return replace(self, states=(*self.states, *states))


def short_id(group: InspectedGroup) -> str:
    """Return the start of the group's id, or its address if there is no id: names for ``--group``."""
    return group.key[:_SHORT] if group.key and not group.key.startswith("@") else group.address


def grouped(states: Iterable[WorkerState]) -> list[InspectedGroup]:
    """Return the groups of these states, in the order of the states."""
    by_key: dict[str, list[WorkerState]] = {}
    for state in states:
        by_key.setdefault(state.group_key, []).append(state)
    groups = {key: _group(key, members) for key, members in by_key.items()}
    for group in groups.values():
        if group.key.startswith("@"):
            for state in group.states:
                _add_where_it_is_missed(state, group.key, groups)
    return list(groups.values())


def chosen(
    states: Sequence[WorkerState],
    *,
    worker: str | None = None,
    pids: Collection[int] = (),
    group: str | None = None,
) -> list[WorkerState]:
    """Return some of the states.

    :param worker: only workers with this name.
    :param pids: only workers of these processes; none means all.
    :param group: only workers of this group; see :meth:`InspectedGroup.is_called`.
    """
    of_group = [
        state for each in grouped(states) if each.is_called(group or "") for state in each.states
    ]
    return [
        state
        for state in states
        if worker in {None, state.worker}
        and (not pids or state.pid in pids)
        and (group is None or state in of_group)
    ]


def group_of(states: Sequence[WorkerState], pid: int, worker: str) -> InspectedGroup | None:
    """Return the group of one of the workers; None if its state is not among these."""
    for group in grouped(states):
        if any((state.pid, state.worker) == (pid, worker) for state in group.states):
            return group
    return None


def _group(key: str, states: Sequence[WorkerState]) -> InspectedGroup:
    known = [state for state in states if not state.problem]
    members = max((tuple(state.members.values()) for state in known), key=len, default=())
    return InspectedGroup(
        key=key,
        address=known[0].group if known else "",
        backend=", ".join(sorted({state.backend for state in known if state.backend})),
        members=members,
        states=tuple(states),
    )


def _add_where_it_is_missed(
    state: WorkerState, key: str, groups: dict[str, InspectedGroup]
) -> None:
    """Add a worker whose start has not ended well to the group at its address that lacks this member."""
    if state.start is not None and not state.start.error:
        return
    for group in list(groups.values()):
        is_there = group.key != key and key_of_address(group.address) == key
        names = {state.worker for state in group.states}
        may_be_member = state.worker in group.members or not group.members
        if is_there and may_be_member and state.worker not in names:
            groups[group.key] = _group(group.key, [*group.states, state])
