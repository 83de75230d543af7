"""A static group forms as one, in every order of the store requests of its workers.

The test runs the real :func:`join_group` and the first exchange, as `init_rpc` does it (see
`support.interleavings`). Two processes have the same rank: both live, or a launcher has started the
second one after the first one had died, before any of its requests.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

import pytest

from rpc_backends_core._errors import GroupError
from rpc_backends_core._group import formation, group
from rpc_backends_core._group.answers import ReplacedGroupError
from support.interleavings import ALIVE, Exploration, PrefixedStore, Program, RecordedStore, State

#: The process that runs, and how many times it has arrived.
RUNNING: list[Any] = ["", 0]
SIZE = 2
STARTED = "has started"
GENERATION = "rpc_backends/generation"
MOST_STATES = 1_000_000


def nonce() -> str:
    """Return the nonce of the last arrival of the process that runs."""
    return f"{RUNNING[0]} {RUNNING[1]}"


class Access:
    """Takes the place of :class:`StoreAccess`, without threads."""

    def __init__(self, store: Any, host: str = "") -> None:
        del host
        self._store = store

    def ask(self, request: Callable[[Any], Any], seconds: float = 0) -> Any:
        del seconds
        return request(self._store)


def wait(
    store: Any,
    key: str,
    *_: Any,
    meanwhile: Callable[[], None] | None = None,
    **__: Any,
) -> bytes:
    """Wait for a key as `wait_for` does it, but for ever."""
    while not store.check([key]):
        if meanwhile is not None:
            meanwhile()
    return bytes(store.get(key))


@pytest.fixture(autouse=True)
def without_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a process write the same in each run, and wait for nothing but the store."""

    def fresh() -> Any:
        RUNNING[1] += 1
        return types.SimpleNamespace(hex=nonce())

    values = types.SimpleNamespace(uuid4=fresh)
    clock = types.SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None)
    monkeypatch.setattr("torch.distributed.PrefixStore", PrefixedStore)
    monkeypatch.setattr(formation, "BoundedStore", lambda store, seconds: store)
    monkeypatch.setattr(formation, "uuid", values)
    monkeypatch.setattr(formation, "time", clock)
    monkeypatch.setattr(formation, "this_process", list)
    for module in (formation, group):
        monkeypatch.setattr(module, "wait_for", wait)
    monkeypatch.setattr(group, "StoreAccess", Access)


def worker(rank: int, label: str, *, name: str = "", replaces: int | None = None) -> Program:
    """Return what a worker does: join and exchange, again while the group is replaced.

    :param replaces: the process that has to be dead before this one starts.
    """

    def run(store: RecordedStore) -> str:
        RUNNING[:] = label, 0
        if replaces is not None and store.request(ALIVE, replaces):
            return "not needed"
        store.forget()
        try:
            while True:
                joined = formation.join_group(
                    store, name or f"w{rank}", rank, SIZE, backend="B", timeout=60, join_timeout=60
                )
                try:
                    labels = joined.exchange(nonce())
                except ReplacedGroupError:
                    joined.end()
                    continue
                break
        except GroupError as error:
            return f"failed: {error}"
        store.request(STARTED, joined.store._prefix, tuple(labels))
        return "member"

    return run


def explored(programs: list[Program]) -> int:
    """Check each state that the programs reach; return how many there are."""
    exploration = Exploration(programs, "member")
    number = 0
    for number, state in enumerate(exploration.states(), 1):
        assert number < MOST_STATES, ("the workers make requests for ever", state)
        check(state)
    stuck = exploration.stuck(is_settled)
    assert not stuck, (len(stuck), stuck[0])
    return number


def check(state: State) -> None:
    for key, text in state.content.items():
        if key.endswith("/group") and "members" in (answer := json.loads(text)):
            names, ranks, *_ = zip(*answer["members"], strict=True)
            assert len(set(names)) == len(set(ranks)) == SIZE, state
    for label, request in enumerate(state.requests):
        if request is not None and request[0] == STARTED:
            assert str(label) in [text.split()[0] for text in request[2]], state
            generation = request[1]
            answer = json.loads(state.content[f"rpc_backends/{generation}/group"])
            assert list(request[2]) == answer["nonces"], state


def is_settled(state: State) -> bool:
    """Return whether all workers have ended, or wait only for workers that do not start again."""
    return state.is_final or "member" in state.results


@pytest.mark.parametrize("rank", [0, 1])
def test_two_workers_and_a_restarted_one_form_one_group(rank: int) -> None:
    programs = [worker(0, "0"), worker(1, "1"), worker(rank, "2", replaces=rank)]
    assert explored(programs) > 1000


@pytest.mark.thorough
def test_two_workers_that_are_both_restarted_form_one_group() -> None:
    programs = [worker(0, "0"), worker(1, "1"), worker(1, "2", replaces=1)]
    programs.append(worker(0, "3", replaces=0))
    assert explored(programs) > 1000


def test_two_live_workers_of_one_rank_never_start_in_one_group() -> None:
    """They replace each other; the test follows that for two groups."""
    exploration = Exploration([worker(0, "0"), worker(1, "1"), worker(1, "2")], "member")
    number = 0
    for number, state in enumerate(  # noqa: B007  # used below
        exploration.states(is_last=lambda content: content.get(GENERATION) == b"2"), 1
    ):
        check(state)
    assert number > 1000


def test_workers_of_one_name_form_no_group() -> None:
    programs = [worker(0, "0", name="x"), worker(1, "1", name="x")]
    for state in Exploration(programs).states():
        check(state)
        if state.is_final:
            assert all(str(result).startswith("failed: ") for result in state.results), state
