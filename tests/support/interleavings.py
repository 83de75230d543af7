"""Explores all orders in which several processes can make their requests to a store.

The processes run the real code of a protocol. A request is one step. A process is run again from its
beginning with the answers that it has had so far, up to its next request; the result is remembered. Two
such runs are the same state of the process if its objects and local variables are equal. A state of the
whole is the content of the store and the state of each process. Each is visited once.

A process may crash before each of its requests. That is decided late: to others a crashed process is like
one that makes no more requests, until they ask whether it is alive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

#: What a process runs, with its view of the store; the return value is its result.
Program = Callable[["RecordedStore"], str]
#: The name of a request, and its arguments.
Request = tuple[Any, ...]

#: The content and the state of a process after its next request, and whether no other order matters; or
#: the process that it asks for; None if it cannot go on.
_Move = tuple[int, int, bool] | int | None

CRASHED = -1
#: The request that asks whether another process, by number, is alive.
ALIVE = "is alive"


class _NextRequest(BaseException):
    """Ends a process at the first request that has no recorded answer.

    :ivar state: the local variables of the process.
    """

    def __init__(self, request: Request, state: Any) -> None:
        super().__init__(request)
        self.request = request
        self.state = state


class RecordedStore:
    """The store as a process sees it: gives the recorded answers, and stops the process after them."""

    def __init__(self, answers: Sequence[Any], snapshot: Callable[[], Any] = lambda: None) -> None:
        self._answers = answers
        self._snapshot = snapshot
        self._given = 0
        self._stop: _NextRequest | None = None
        self.began = 0  # how many answers had been given when the current `ask` began

    def request(self, *request: Any) -> Any:
        """Make a request; the questions of a test are requests, too."""
        if self._stop is not None:
            raise self._stop  # the process handles its own end
        if self._given == len(self._answers):
            self._stop = _NextRequest(request, self._snapshot())
            raise self._stop
        self._given += 1
        return self._answers[self._given - 1]

    def forget(self) -> None:
        """Make no answer so far a part of the state: the local variables of the process have all."""
        self.began = self._given

    def get(self, key: str) -> bytes:
        return bytes(self.request("get", key))

    def set(self, key: str, value: str) -> None:
        self.request("set", key, value)

    def add(self, key: str, amount: int) -> int:
        return int(self.request("add", key, amount))

    def compare_set(self, key: str, before: str, after: str) -> bytes:
        return bytes(self.request("compare_set", key, before, after))

    def check(self, keys: list[str]) -> bool:
        return bool(self.request("check", tuple(keys)))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return list(self.request("multi_get", tuple(keys)))

    def has_extended_api(self) -> bool:
        return True

    def ask(self, request: Callable[[Any], Any], seconds: float = 0) -> Any:
        """Take the place of :class:`rpc_backends_core.spi.StoreAccess`."""
        del seconds
        self.began = self._given
        return request(self)

    ask_plainly = ask


class PrefixedStore(RecordedStore):
    """Takes the place of torch's ``PrefixStore``, and of a store whose requests have a time limit.

    Code that uses it may have its own loops between two requests, so its local variables are a part of
    the state of the process.
    """

    def __init__(self, prefix: str, store: RecordedStore) -> None:
        self._prefix = prefix
        self._store = store

    def request(self, name: str, *arguments: Any) -> Any:
        if name in _STORE:
            key, *rest = arguments
            key = self._prefixed(key) if isinstance(key, str) else tuple(map(self._prefixed, key))
            arguments = (key, *rest)
        answer = self._store.request(name, *arguments)
        self._store.forget()
        return answer

    def forget(self) -> None:
        self._store.forget()

    def _prefixed(self, key: str) -> str:
        return f"{self._prefix}/{key}"


class State(NamedTuple):
    """One state of the store and the processes.

    :ivar content: the content of the store; the same object for the same content.
    :ivar requests: the next request of each process; None if it has ended or crashed.
    :ivar results: the result of each process; None if it has not ended, or has crashed.
    """

    content: dict[str, bytes]
    requests: list[Request | None]
    results: list[str | None]

    @property
    def is_final(self) -> bool:
        """Whether no process can go on."""
        return not any(self.requests)


class Exploration:
    """All states that some processes can reach.

    :param programs: what the processes run.
    :param serving: the results of processes that still answer after their end.
    :param suspicious: whether a process may also conclude that a live one has died, as if that one were
        too slow.
    :param final: the beginning of the keys that are written once. The order of reading them, once they
        are there, and of other requests makes no difference, so one order is enough.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        serving: str = "",
        *,
        suspicious: bool = False,
        final: str = "\n",
    ) -> None:
        self._programs = programs
        self._serving = serving
        self._suspicious = suspicious
        self._final = final
        self._nodes: list[dict[tuple[Any, ...], int]] = [{} for _ in programs]
        self._same: list[dict[Any, int]] = [{} for _ in programs]
        self._runs: list[list[tuple[tuple[Any, ...], Request | None, str | None]]] = [
            [] for _ in programs
        ]
        self._contents: list[dict[str, bytes]] = []
        self._content_ids: dict[frozenset[tuple[str, bytes]], int] = {}
        self._moves: list[dict[tuple[int, int], _Move]] = [{} for _ in programs]
        self._before: dict[tuple[int, ...], list[tuple[int, ...]]] = {}

    def states(
        self,
        content: dict[str, bytes] | None = None,
        answers: Sequence[tuple[Any, ...]] = (),
        *,
        preemptions: int | None = None,
        is_last: Callable[[dict[str, bytes]], bool] = lambda content: False,
    ) -> Iterator[State]:
        """Yield each state once.

        :param content: the content of the store at the beginning.
        :param answers: the answers that each process has had by then.
        :param preemptions: how many times, in one order, another process takes its turn although the
            last one can go on; None for any number.
        :param is_last: whether to go no further from states with this content; for protocols in which
            a counter has no limit.
        """
        had = answers or [()] * len(self._programs)
        start = (
            self._content_id(content or {}),
            *(self._node(process, each) for process, each in enumerate(had)),
        )
        # The most preemptions that are left in a state, by the process that made the last request.
        unlimited = preemptions is None
        left = {(start, -1): preemptions or 0}
        seen, waiting = {start}, [(start, -1)]
        yield self._state(start)
        while waiting:
            place, last = waiting.pop()
            if is_last(self._contents[place[0]]):
                continue
            moves = self._following(place)
            goes_on = not unlimited and any(process == last for process, _ in moves)
            budget = left[place, last]
            for process, following in moves:
                self._before.setdefault(following, []).append(place)
                rest = budget - (goes_on and process != last)
                key = following, -1 if unlimited else process
                if rest > left.get(key, -1):
                    left[key] = rest
                    waiting.append(key)
                    if following not in seen:
                        seen.add(following)
                        yield self._state(following)

    def stuck(self, has_ended: Callable[[State], bool]) -> list[State]:
        """Return the states, of those that have been yielded, from which no order leads to an end."""
        places = {place for places in self._before.values() for place in places} | set(self._before)
        waiting = [place for place in places if has_ended(self._state(place))]
        while waiting:
            place = waiting.pop()
            if place in places:
                places.remove(place)
                waiting += self._before.get(place, ())
        return [self._state(place) for place in places]

    def _following(self, place: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        """Return the process that makes each possible request, and the state after it."""
        content, *nodes = place
        moves: list[tuple[int, tuple[int, ...]]] = []
        for process, node in enumerate(nodes):
            before, after = place[1 : process + 1], place[process + 2 :]
            move = self._move(process, content, node)
            if isinstance(move, tuple):
                changed, moved, is_first = move
                following = (changed, *before, moved, *after)
                if is_first:
                    return [(process, following)]
                moves.append((process, following))
            elif move is not None:
                answers = self._runs[process][node][0]
                for answer, crashed in self._liveness(place, move):
                    each = [content, *before, self._node(process, (*answers, answer)), *after]
                    if crashed is not None:
                        each[crashed + 1] = CRASHED
                    moves.append((process, tuple(each)))
        return moves

    def _move(self, process: int, content: int, node: int) -> _Move:
        """Return what the next request of a process does."""
        if node == CRASHED:
            return None
        known = self._moves[process]
        if (content, node) not in known:
            known[content, node] = self._new_move(process, content, node)
        return known[content, node]

    def _new_move(self, process: int, content: int, node: int) -> _Move:
        answers, request, _ = self._runs[process][node]
        if request is None:
            return None
        if request[0] == ALIVE:
            return int(request[1])
        if request[0] not in _STORE:
            return content, self._node(process, (*answers, None)), False
        is_first = request[0] in ("check", "multi_get") and all(
            key.startswith(self._final) and key in self._contents[content] for key in request[1]
        )
        after = dict(self._contents[content])
        answer = _STORE[request[0]](after, *request[1:])
        if answer is _NOT_YET:
            return None
        return self._content_id(after), self._node(process, (*answers, answer)), is_first

    def _liveness(self, place: tuple[int, ...], asked: int) -> Iterator[tuple[bool, int | None]]:
        """Yield each answer to whether a process is alive, and which process has crashed then."""
        node = place[asked + 1]
        if node == CRASHED:
            yield False, None
            return
        _, request, result = self._runs[asked][node]
        lives = request is not None or result == self._serving
        yield lives, None
        if lives:
            yield False, None if self._suspicious else asked

    def _node(self, process: int, answers: tuple[Any, ...]) -> int:
        """Return the number of a process after some answers; run it if that is new."""
        nodes = self._nodes[process]
        if answers not in nodes:
            request = result = None
            store = RecordedStore(answers, _snapshot_of_process)
            try:
                result = self._programs[process](store)
                state: Any = result
            except _NextRequest as stop:
                request = stop.request
                state = (request, answers[store.began :], stop.state)
            runs = self._runs[process]
            nodes[answers] = self._same[process].setdefault(state, len(runs))
            if nodes[answers] == len(runs):
                runs.append((answers, request, result))
        return nodes[answers]

    def _content_id(self, content: dict[str, bytes]) -> int:
        key = frozenset(content.items())
        if key not in self._content_ids:
            self._content_ids[key] = len(self._contents)
            self._contents.append(content)
        return self._content_ids[key]

    def _state(self, place: tuple[int, ...]) -> State:
        runs = [
            _NO_RUN if node == CRASHED else runs[node]
            for runs, node in zip(self._runs, place[1:], strict=True)
        ]
        return State(self._contents[place[0]], [run[1] for run in runs], [run[2] for run in runs])


_NO_RUN: tuple[tuple[Any, ...], None, None] = ((), None, None)


def run_steps(
    program: Program, content: dict[str, bytes], most: int, answers: tuple[Any, ...] = ()
) -> tuple[Any, ...]:
    """Let a process make some requests; change ``content``, and return all its answers.

    :param answers: the answers that it has had.
    """
    for _ in range(most):
        try:
            program(RecordedStore(answers))
        except _NextRequest as stop:
            name, *arguments = stop.request
            answers = (*answers, _STORE[name](content, *arguments))
    return answers


def run_alone(program: Program, content: dict[str, bytes], is_alive: Callable[[int], bool]) -> str:
    """Run a process to its end while no other one makes requests.

    :param is_alive: whether another process, by number, is alive.
    """
    content = dict(content)
    answers: tuple[Any, ...] = ()
    while True:
        try:
            return program(RecordedStore(answers))
        except _NextRequest as stop:
            name, *arguments = stop.request
            if name in _STORE:
                reply = _STORE[name](content, *arguments)
            else:
                reply = is_alive(arguments[0]) if name == ALIVE else None
            assert reply is not _NOT_YET, stop.request
            answers = (*answers, reply)


# --- the state of a process -----------------------------------------------------------------------

_ATOMS = {str, bytes, int, bool, type(None)}


def _snapshot_of_process() -> Any:
    """Return the local variables of a process, outside of its current request to the store."""
    frames: list[Any] = []
    known: dict[int, Any] = {}  # the frames refer to the same objects
    frame = sys._getframe(1)
    while frame.f_code is not Exploration._node.__code__ and frame.f_back is not None:
        local = frame.f_locals
        if isinstance(local.get("self"), RecordedStore):
            frames.clear()  # the answers of the request are a part of the state instead
        elif frame.f_code.co_filename != __file__:
            frames.append((frame.f_code.co_name, frame.f_lasti, _new_snapshot(dict(local), known)))
        frame = frame.f_back
    return tuple(frames)


def _snapshot(value: Any, known: dict[int, Any]) -> Any:
    """Return the content of a value, as a value that can be hashed; times and functions are left out."""
    if type(value) in _ATOMS:
        return value
    place = id(value)
    if place not in known:
        known[place] = _new_snapshot(value, known)
    return known[place]


def _new_snapshot(value: Any, known: dict[int, Any]) -> Any:
    if isinstance(value, dict):
        return frozenset([(key, _snapshot(inner, known)) for key, inner in value.items()])
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if isinstance(value, list | tuple):
        return tuple([_snapshot(inner, known) for inner in value])
    if type(value).__module__.startswith("rpc_backend"):
        return (type(value).__name__, _snapshot(vars(value), known))
    return type(value).__name__


# --- the store: each function changes the content and returns the answer --------------------------

_NOT_YET = object()


def _get(content: dict[str, bytes], key: str) -> Any:
    return content.get(key, _NOT_YET)  # a store waits for a key


def _set(content: dict[str, bytes], key: str, value: str) -> None:
    content[key] = value.encode() if isinstance(value, str) else value


def _add(content: dict[str, bytes], key: str, amount: int) -> int:
    total = int(content.get(key, b"0")) + amount
    content[key] = str(total).encode()
    return total


def _compare_set(content: dict[str, bytes], key: str, before: str, after: str) -> bytes:
    if content.get(key, b"") == before.encode():
        content[key] = after.encode()
    return content.get(key, before.encode())


def _check(content: dict[str, bytes], keys: tuple[str, ...]) -> bool:
    return all(key in content for key in keys)


def _multi_get(content: dict[str, bytes], keys: tuple[str, ...]) -> Any:
    values = [content.get(key, _NOT_YET) for key in keys]
    return _NOT_YET if _NOT_YET in values else tuple(values)


_STORE: dict[str, Callable[..., Any]] = {
    "get": _get,
    "set": _set,
    "add": _add,
    "compare_set": _compare_set,
    "check": _check,
    "multi_get": _multi_get,
}
