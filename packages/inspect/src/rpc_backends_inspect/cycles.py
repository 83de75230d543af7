"""Finds who waits for each other in a graph: groups of owners, and one shortest cycle in each."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar


class Edge(Protocol):
    """A wait of ``worker`` for ``target``."""

    @property
    def worker(self) -> str: ...  # noqa: D102, see the class
    @property
    def target(self) -> str: ...  # noqa: D102, see the class


EdgeT = TypeVar("EdgeT", bound=Edge)


def shortest_cycles(
    following: Mapping[EdgeT, Collection[EdgeT]],
) -> Iterator[tuple[list[EdgeT], list[str]]]:
    """Yield, for each group of workers that wait for each other, a shortest cycle and the group.

    Takes at most (number of workers) x (size of the graph) steps, however many cycles there are.

    :param following: each wait, with the waits of its target that must end before it can.
    """
    starts: dict[str, list[EdgeT]] = {}
    for wait in following:
        starts.setdefault(wait.worker, []).append(wait)
    cycles = {
        worker: cycle for worker, first in starts.items() if (cycle := _cycle(first, following))
    }
    targets: dict[str, set[str]] = {worker: set() for worker in cycles}
    for wait in following:
        if wait.worker in cycles and wait.target in cycles:
            targets[wait.worker].add(wait.target)
    for group in _components(targets):
        shortest = min((cycles[worker] for worker in group), key=len)
        yield shortest, group


def _cycle(first: Iterable[EdgeT], following: Mapping[EdgeT, Collection[EdgeT]]) -> list[EdgeT]:
    """Return a shortest chain from a worker's waits to a wait for this worker; empty if there is none."""
    before: dict[EdgeT, EdgeT | None] = dict.fromkeys(first)
    worker = next(iter(before)).worker
    waiting = deque(before)
    while waiting:
        wait = waiting.popleft()
        if wait.target == worker and before[wait] is not None:
            chain = [wait]
            while (previous := before[chain[-1]]) is not None:
                chain.append(previous)
            return chain[::-1]
        for after in following.get(wait, ()):
            if after not in before:
                before[after] = wait
                waiting.append(after)
    return []


def _components(targets: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components, each in the order of ``targets``."""
    callers: dict[str, set[str]] = {worker: set() for worker in targets}
    for worker, called in targets.items():
        for target in called:
            callers[target].add(worker)
    left = dict.fromkeys(targets)
    while left:
        worker = next(iter(left))
        component = _reachable(worker, targets) & _reachable(worker, callers)
        members = [member for member in left if member in component]
        yield members
        for member in members:
            del left[member]


def _reachable(worker: str, targets: Mapping[str, Collection[str]]) -> set[str]:
    reached = {worker}
    waiting = [worker]
    while waiting:
        for target in targets[waiting.pop()]:
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached
