"""Finds why workers hang, by following from call to call which worker waits for which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rpc_backends_inspect.cycles import shortest_cycles
from rpc_backends_inspect.groups import InspectedGroup
from rpc_backends_inspect.stacks import Frame, Thread
from rpc_backends_inspect.workers import Call, WorkerState

#: The file of torch's collectives.
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
#: Calls that began less than this many seconds ago do not explain a hang.
_YOUNG = 1.0
#: The most characters of an error, and the most names, that are shown.
_SHOWN = 120
_NAMES = 6


@dataclass(frozen=True)
class Cause:
    """One reason why workers wait.

    :ivar kind: ``cycle``, ``threads``, ``gone``, ``gil``, ``start``, ``shutdown``, ``rref``,
        ``missing`` or ``slow``.
    :ivar text: the reason in a sentence.
    :ivar workers: the names of the workers involved.
    :ivar stuck: those of them that can do nothing else, such as call ``shutdown``.
    """

    kind: str
    text: str
    workers: tuple[str, ...]
    stuck: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Wait:
    """One thread that waits for another worker.

    :ivar reason: the function that it has called there, or the collective that it is in.
    :ivar collective: whether it is in a collective.
    :ivar seconds: how long it has waited; 0 if that is not known.
    """

    worker: str
    target: str
    reason: str
    thread: Thread | None
    seconds: float = 0.0
    collective: bool = False

    @property
    def kind(self) -> tuple[str, str, str, bool]:
        """What waits of several threads have in common if they wait for the same."""
        return self.worker, self.target, self.reason, self.collective


def explain(group: InspectedGroup, callees: Collection[str] = ()) -> list[Cause]:
    """Return why the workers of a group wait, the most certain cause first.

    :param callees: workers; with some, only causes that involve one of them are returned.
    """
    waiting = _Group(group.states)
    causes = [
        *waiting.gone(),
        *waiting.held_gils(),
        *waiting.starts(),
        *waiting.cycles(),
        *waiting.used_up(),
    ]
    causes += [] if any(cause.kind == "threads" for cause in causes) else waiting.taken()
    stuck = {name for cause in causes for name in cause.stuck}
    causes += [*waiting.shutdowns(stuck), *waiting.rrefs()]
    for certain in (causes, waiting.missing(), waiting.slow(callees)):
        about = [
            cause for cause in certain if not callees or not set(callees).isdisjoint(cause.workers)
        ]
        if about:
            return about
    return []


class _Group:
    def __init__(self, states: Iterable[WorkerState]) -> None:
        self.by_name: dict[str, WorkerState] = {}
        # A worker that runs replaces one of an earlier run.
        for state in sorted(states, key=lambda shown: not (shown.problem or _failed(shown))):
            self.by_name[state.worker] = state

    # --- the causes -----------------------------------------------------------------------------------

    def gone(self) -> Iterator[Cause]:
        """Find workers that cannot answer although others wait for them."""
        for name, waits in self._waits_by_target.items():
            state = self.by_name.get(name)
            if state.problem if state else self._loss(name):
                text = f"{self._absence(name)}; {_calls(waits)} to it cannot be answered"
                yield Cause("gone", text, (name, *_callers(waits)))

    def held_gils(self) -> Iterator[Cause]:
        """Find workers in which one thread holds the GIL, so that no other thread can run Python."""
        for name, state in self.by_name.items():
            if state.gil_wait < _YOUNG:
                continue
            holder = state.thread(state.gil_holder)
            text = f"{name!r} (process {state.pid}) has run no Python for {state.gil_wait:.1f} s: "
            text += "one thread holds the GIL"
            if holder is not None and holder.position is not None:
                text += f", in {holder.position}"
            text += ", and all others wait for it"
            waits = self._waits_by_target.get(name, [])
            if waits:
                text += f"; {_calls(waits)} may need it"
            yield Cause("gil", text, (name, *_callers(waits)), stuck=(name,))

    def starts(self) -> Iterator[Cause]:
        """Find workers that other workers wait for in ``init_rpc``."""
        ranks = {state.start.rank for state in self.by_name.values() if state.start is not None}
        running = any(state.members for state in self.by_name.values())
        waiting = [
            state
            for state in self.by_name.values()
            if state.start and not state.start.error and state.start.seconds >= _YOUNG
        ]
        if not waiting:
            return
        names = [state.worker for state in waiting]
        who = f"{_starting(waiting)} in init_rpc"
        for state in self.by_name.values():
            if _failed(state):
                yield Cause("start", f"{who} for {_failed_start(state)}", (*names, state.worker))
        size = max(state.start.world_size for state in waiting if state.start)
        missing = [str(rank) for rank in range(size) if rank not in ranks]
        if missing and not running and min(ranks) >= 0:
            noun, were, each = (
                ("rank", "was", "it") if len(missing) == 1 else ("ranks", "were", "each")
            )
            yield Cause(
                "start",
                f"{who} at {waiting[0].group} for {noun} {', '.join(missing)}, which {were} not found "
                f"on {waiting[0].host!r}: {each} has not called init_rpc, has ended, has another "
                "address, or runs on another host",
                tuple(names),
            )

    def missing(self) -> Iterator[Cause]:
        """Find workers that were not inspected, and that others wait for."""
        for name, waits in self._waits_by_target.items():
            if name not in self.by_name:
                text = f"{self._absence(name)}; {_calls(waits)} cannot end before it answers"
                yield Cause("missing", text, (name, *_callers(waits)))

    @cached_property
    def _waits_by_target(self) -> dict[str, list[_Wait]]:
        waits: dict[str, list[_Wait]] = {}
        for wait in self._waits:
            if wait.seconds < _YOUNG and wait.target not in self.by_name:
                continue
            waits.setdefault(wait.target, []).append(wait)
        return waits

    def _absence(self, name: str) -> str:
        """Say why a worker does not answer."""
        state = self.by_name.get(name)
        if state:
            return f"{name!r} (process {state.pid}) {state.problem}"
        dumps = (
            ", or there is no dump of it"
            if any(state.reason for state in self.by_name.values())
            else ""
        )
        hosts = _names(sorted({state.host for state in self.by_name.values() if state.host}))
        return (
            f"{name!r} is not among the workers that were inspected, on {hosts}: it has ended, or it "
            f"runs elsewhere{dumps}{self._loss(name)}"
        )

    def _loss(self, name: str) -> str:
        """Return the error of the last lost call to a worker; empty if no call to it was lost."""
        for state in self.by_name.values():
            for call in reversed(state.recent):
                if call.peer == name and call.state == "lost":
                    return f" (error of {state.worker!r}: {_cut(call.error)})"
        for state in self.by_name.values():
            if repr(name) in state.likely_reason:
                return f" ({state.worker!r} when it wrote its dump: {state.likely_reason})"
        return ""

    def cycles(self) -> Iterator[Cause]:
        """Find groups of workers that wait for each other: one cause for each, with a shortest cycle."""
        oldest: dict[tuple[str, str, str, bool], _Wait] = {}
        threads: dict[tuple[str, str, str, bool], set[int]] = {}
        for wait in sorted(self._waits, key=lambda next_wait: -next_wait.seconds):
            oldest.setdefault(wait.kind, wait)
            if wait.thread is not None:
                threads.setdefault(wait.kind, set()).add(wait.thread.number)
        of_worker: dict[str, list[_Wait]] = {}
        for wait in oldest.values():
            of_worker.setdefault(wait.worker, []).append(wait)
        following: dict[_Wait, list[_Wait]] = {}
        for wait in oldest.values():
            target = self.by_name.get(wait.target)
            if target is None or target.problem:
                following[wait] = []
                continue
            ending = {thread.number for thread in self._ending(wait, target)}
            following[wait] = [
                next_wait
                for next_wait in of_worker.get(wait.target, ())
                if not ending.isdisjoint(threads.get(next_wait.kind, ()))
            ]
        for cycle, members in shortest_cycles(following):
            group = [name for name in self.by_name if name in members]
            text = self._sentence(cycle)
            if len(group) > len(cycle):
                who = f"{len(group)} workers wait for each other: {_names(group)}"
                text = f"{who}. A shortest cycle: {text}"
            yield Cause("cycle", text, tuple(group), stuck=tuple(group))

    def taken(self) -> Iterator[Cause]:
        """Find thread pools in which every thread runs a function while further calls wait for one."""
        for state in self.by_name.values():
            size = state.metrics.get("agent.thread_pool_size", "")
            serving = [thread.serves for thread in state.threads if thread.serves]
            waits = self._waits_by_target.get(state.worker, [])
            if not size.isdecimal() or len(serving) < int(size) or len(waits) <= int(size):
                continue
            counts = Counter(served.function for served in serving)
            running = [f"{count} x `{function}`" for function, count in counts.most_common()]
            yield Cause(
                "threads",
                f"{_pool(size, repr(state.worker))} taken: {_listed(running, ', ')}; {_calls(waits)} "
                "to it run or wait for a thread. Raise num_worker_threads, or make fewer calls at a time",
                (state.worker, *_callers(waits)),
            )

    def used_up(self) -> Iterator[Cause]:
        """Find thread pools in which every thread waits for the answer to a call of its own."""
        full: dict[tuple[str, tuple[str, ...]], list[tuple[str, set[str]]]] = {}
        for state in self.by_name.values():
            size = state.metrics.get("agent.thread_pool_size", "")
            serving = {thread.number: thread for thread in state.threads if thread.serves}
            if not size.isdecimal() or len(serving) < int(size):
                continue
            nested = [
                wait
                for wait in self._waits_of(state)
                if wait.thread is not None and wait.thread.number in serving
            ]
            if not nested or {wait.thread.number for wait in nested if wait.thread} != set(serving):
                continue
            functions = {
                f"`{thread.serves.function}`" for thread in serving.values() if thread.serves
            }
            key = size, tuple(sorted(functions))
            full.setdefault(key, []).append((state.worker, {wait.target for wait in nested}))
        for (size, of_all), workers in full.items():
            names = [name for name, _ in workers]
            targets = sorted(set().union(*(called for _, called in workers)))
            of = _names(names) if len(names) == 1 else f"each of {_names(names)}"
            yield Cause(
                "threads",
                f"{_pool(size, of)} used up: {'it runs' if size == '1' else 'they run'} "
                f"{_listed(of_all, ', ')} for other workers, and each waits for a call of its own "
                f"to {_names(targets)}. Raise num_worker_threads, or use rpc.functions.async_execution "
                "for calls that make calls",
                (*names, *(name for name in targets if name not in names)),
                stuck=tuple(names),
            )

    def shutdowns(self, stuck: Collection[str] = ()) -> Iterator[Cause]:
        """Find workers that wait in ``shutdown`` for others.

        :param stuck: workers that cannot call ``shutdown`` for a reason that another cause names.
        """
        here = [state for state in self.by_name.values() if _in_shutdown(state)]
        if not here:
            return
        waiting = {state.worker for state in here}
        members = sorted({name for state in here for name in state.members.values()})
        who = f"{_names(sorted(waiting))} wait{'s' * (len(here) == 1)} in shutdown for"
        for name in members:
            state = self.by_name.get(name)
            if name in waiting or name in stuck:
                continue
            if state is not None and _failed(state):
                text = f"{who} {_failed_start(state)}"
            elif state is None or state.problem:
                text = f"{who} {name!r}: {self._absence(name)}"
            else:
                text = f"{who} {name!r} (process {state.pid}), which {_doing(state)}"
            yield Cause("shutdown", text, (*sorted(waiting), name))

    def rrefs(self) -> Iterator[Cause]:
        """Find RRefs that are still held while a worker is in ``shutdown``."""
        if not any(map(_in_shutdown, self.by_name.values())):
            return
        for owner in sorted(
            {name for state in self.by_name.values() for name in state.members.values()}
        ):
            holders = {
                name: state.held_rrefs[owner]
                for name, state in self.by_name.items()
                if owner in state.held_rrefs
            }
            forks = (
                self.by_name[owner].rrefs.get("num_forks", "0") if owner in self.by_name else "0"
            )
            shared = int(forks) - sum(holders.values()) if forks.isdecimal() else 0
            held = [f"{name!r} holds {count}" for name, count in holders.items()]
            if shared > 0:
                who = [name for name in self.by_name if name != owner]
                held.append(f"{shared} that {owner!r} has shared are held by {_names(who, ' or ')}")
            if held:
                yield Cause(
                    "rref",
                    f"RRefs of {owner!r} are still in use: {', '.join(held)}. shutdown waits until they "
                    "are deleted; delete them before you call shutdown",
                    (owner, *holders),
                )

    def slow(self, callees: Collection[str]) -> Iterator[Cause]:
        """Find the oldest call that a worker is running: one of ``callees``, if there are any."""
        calls = [
            (call, state)
            for state in self.by_name.values()
            for call in state.in_flight
            if not call.incoming
            and call.seconds >= _YOUNG
            and (not callees or call.peer in callees)
        ]
        for call, state in sorted(calls, key=lambda slow: -slow[0].seconds)[:1]:
            wait = _Wait(state.worker, call.peer, _short(call), state.thread(call.thread))
            yield Cause(
                "slow",
                f"{state.worker!r} has waited {call.seconds:.1f} s for {call.peer!r} in "
                f"`{wait.reason}`{self._where(wait)}",
                (state.worker, call.peer),
            )

    # --- who waits for whom ---------------------------------------------------------------------------

    @cached_property
    def _waits(self) -> list[_Wait]:
        return [wait for state in self.by_name.values() for wait in self._waits_of(state)]

    def _waits_of(self, state: WorkerState) -> Iterator[_Wait]:
        for call in state.in_flight:
            if not call.incoming:
                thread = state.thread(call.thread)
                yield _Wait(state.worker, call.peer, _short(call), thread, call.seconds)
        for thread in state.threads:
            if collective := _collective(thread):
                for name in self._outside_of_collectives:
                    if name != state.worker:
                        yield _Wait(state.worker, name, collective, thread, collective=True)

    @cached_property
    def _outside_of_collectives(self) -> list[str]:
        """The workers of which no thread is in a collective."""
        return [
            state.worker
            for state in self.by_name.values()
            if not any(map(_collective, state.threads))
        ]

    def _ending(self, wait: _Wait, target: WorkerState) -> list[Thread]:
        """Return the target's threads that run the function, or that may still enter the collective."""
        if wait.collective:
            return target.threads[-1:]  # faulthandler writes the main thread last
        serving = [thread for thread in target.threads if thread.serves]
        return [request for request in serving if _runs(request, wait.reason)] or (
            serving if _is_full(target) else []
        )

    def _sentence(self, path: Sequence[_Wait]) -> str:
        first, *rest = path
        text = f"{first.worker!r} waits for {first.target!r} in `{first.reason}`"
        for wait in rest:
            text += f", which waits for {wait.target!r} in `{wait.reason}`"
        return text + self._where(path[-1])

    def _where(self, wait: _Wait) -> str:
        """Return text that says at which line the target of a wait is."""
        target = self.by_name.get(wait.target)
        threads = self._ending(wait, target) if target else []
        if not target or not threads or threads[0].position is None:
            return ""
        if not _runs(threads[0], wait.reason) and _is_full(target):
            return f"; all threads of {target.worker!r} are in use"
        return f"; there, {target.worker!r} is at {threads[0].position}"


def _collective(thread: Thread) -> str | None:
    """Return the collective that a thread is in: the outermost frame in torch's file of collectives."""
    functions = [frame.function for frame in thread.frames if frame.file.endswith(_COLLECTIVES)]
    return functions[-1] if functions else None


def _runs(thread: Thread, function: str) -> bool:
    return thread.serves is not None and thread.serves.function == function


def _is_full(state: WorkerState) -> bool:
    size = state.metrics.get("agent.thread_pool_size", "")
    return size.isdecimal() and sum(thread.serves is not None for thread in state.threads) >= int(
        size
    )


def _in_shutdown(state: WorkerState) -> bool:
    return any(
        frame.is_rpc and frame.function == "shutdown"
        for thread in state.threads
        for frame in thread.frames
    )


def _doing(state: WorkerState) -> str:
    position: Frame | None = state.threads[-1].position if state.threads else None
    return f"is in {position}" if position else "is not in shutdown"


def _failed_start(state: WorkerState) -> str:
    error = _cut(state.start.error) if state.start else ""
    return f"{state.worker!r} (process {state.pid}), whose init_rpc failed: {error}"


def _failed(state: WorkerState) -> bool:
    return state.start is not None and bool(state.start.error)


def _short(call: Call) -> str:
    """Return the last part of the name of a call's function."""
    return call.name.rpartition(".")[2]


def _callers(waits: Iterable[_Wait]) -> list[str]:
    return sorted({wait.worker for wait in waits})


def _calls(waits: list[_Wait]) -> str:
    return f"{len(waits)} call{'s' * (len(waits) > 1)} of {_names(_callers(waits))}"


def _cut(text: str) -> str:
    """Return the first line, without its end if it is long."""
    line = text.partition("\n")[0]
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _starting(states: Sequence[WorkerState]) -> str:
    """Return who waits in ``init_rpc``, with the verb."""
    if len(states) > 1:
        return f"{_names([state.worker for state in states])} wait"
    (state,) = states
    size = state.start.world_size if state.start else 0
    rank = f" (rank {state.start.rank} of {size})" if state.start and size else ""
    return f"{state.worker!r}{rank} waits"


def _names(names: Collection[str], between: str = " and ") -> str:
    return _listed([repr(name) for name in names], between)


def _listed(texts: Sequence[str], between: str) -> str:
    """Return the texts, or the first ones and the number of the others."""
    shown = list(texts)
    if len(shown) > _NAMES:
        shown[_NAMES - 1 :] = [f"{len(shown) - _NAMES + 1} more"]
        between = " and "
    return between.join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def _pool(size: str, of: str) -> str:
    """Say which threads a cause is about, with the verb."""
    return f"the only thread of {of} is" if size == "1" else f"all {size} threads of {of} are"
