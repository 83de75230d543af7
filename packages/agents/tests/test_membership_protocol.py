"""Each name and each rank has one owner, in every order of the store requests of three processes.

The test runs the real :class:`Roster` (see `support.interleavings`), and lets processes crash before each
request.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from rpc_backends_agents.member_records import Peer
from rpc_backends_agents.roster import Roster
from support.interleavings import (
    ALIVE,
    Exploration,
    Program,
    RecordedStore,
    State,
    run_alone,
    run_steps,
)

pytestmark = pytest.mark.slow

#: Name and rank of each worker.
Contest = tuple[tuple[str, int], ...]
TWO: list[Contest] = [(("x", 0), ("x", 1)), (("x", 0), ("y", 0)), (("x", 0), ("x", 0))]
THREE: list[Contest] = [
    (("x", 0), ("x", 1), ("x", 2)),
    (("x", 0), ("y", 0), ("z", 0)),
    (("x", 0), ("x", 0), ("x", 0)),
    *itertools.permutations([("x", 0), ("x", 1), ("y", 1)]),
]


def worker(
    name: str, rank: int, worker_id: int, *, leaves: bool = False, sees_ends: bool = False
) -> Program:
    """Return what a worker does: join, and perhaps leave, as `start_agent` does it.

    :param sees_ends: whether all workers are on one host, so that they see which processes have ended.
    """

    def run(store: RecordedStore) -> str:
        roster = Roster(
            store,
            name,
            on_peer=lambda peer: True,
            on_join=lambda peer: None,
            on_leave=lambda peer, ended: None,
            has_ended=lambda peer: sees_ends and not is_alive(peer),
            access=store,  # type: ignore[arg-type]
        )

        def is_alive(peer: Peer) -> bool:
            return peer.worker_id == worker_id or bool(store.request(ALIVE, peer.worker_id))

        roster.announce(name, rank, worker_id, "")
        try:
            roster.join(is_alive)
        except RuntimeError as error:
            roster.leave()
            return f"refused: {error}"
        if not leaves:
            return "member"
        store.request("is a member")
        roster.leave()
        return "left"

    return run


def programs(contest: Contest, **options: bool) -> list[Program]:
    return [worker(name, rank, number, **options) for number, (name, rank) in enumerate(contest)]


def announced(
    programs: list[Program], *, reads: int = 0
) -> tuple[dict[str, bytes], list[tuple[Any, ...]]]:
    """Return the store when the workers have announced themselves in turn, and their answers.

    :param reads: how many requests each worker has then made to read the records.
    """
    content: dict[str, bytes] = {}
    answers = [run_steps(program, content, 2) for program in programs]
    return content, [
        run_steps(program, content, reads, had)
        for program, had in zip(programs, answers, strict=True)
    ]


def listed(content: dict[str, bytes]) -> list[tuple[str, int]]:
    """Return name and rank of each member, as a worker that has read all records sees them."""
    records = {
        int(key.partition("/")[2]): json.loads(text)
        for key, text in content.items()
        if key.startswith("record/")
    }
    numbers = {
        kind: {record["number"] for record in records.values() if record["kind"] == kind}
        for kind in ("in", "out")
    }
    members = (records[number] for number in numbers["in"] - numbers["out"])
    return [(member["name"], member["rank"]) for member in members]


def shared(members: list[tuple[str, int]]) -> list[Any]:
    """Return the names and ranks that more than one member has."""
    if len(members) < 2:
        return []
    return [value for values in zip(*members, strict=True) for value in repeated(values)]


def repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def members(state: State, contest: Contest) -> list[tuple[str, int]]:
    """Return name and rank of each worker whose start has succeeded, and that has not begun to leave."""
    return [
        who
        for who, request, result in zip(contest, state.requests, state.results, strict=True)
        if result == "member" or request == ("is a member",)
    ]


def check(exploration: Exploration, contest: Contest, **start: Any) -> int:
    """Check each state; return how many there are."""
    checked, number = {}, 0
    for number, state in enumerate(exploration.states(**start), 1):  # noqa: B007  # used below
        if id(state.content) not in checked:
            checked[id(state.content)] = state.content
            assert not shared(listed(state.content)), state
        assert not shared(members(state, contest)), state
        if state.is_final:
            check_the_end(state, contest)
    return number


def check_the_end(state: State, contest: Contest) -> None:
    """One of the rivals has won, or has crashed; and the next worker gets the name, if it is free."""
    if "refused" in str(state.results) and None not in state.results:
        assert "member" in state.results or "left" in state.results, state
    name, rank = contest[0]
    others = members(state, contest)
    is_taken = any(name == member[0] or rank == member[1] for member in others)
    result = run_alone(
        worker(name, rank, len(contest)),
        state.content,
        lambda number: state.results[number] == "member",
    )
    assert result.startswith("refused") if is_taken else result == "member", (state, result)


@pytest.fixture(autouse=True, scope="module")
def no_log() -> Iterator[None]:
    """Switch the log off: the same lines are logged thousands of times."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


THOROUGH = pytest.mark.thorough
#: How many times a worker that can go on lets another one go first. Each fault that was found in this
#: protocol needs one such change.
PREEMPTIONS = 2


@pytest.mark.parametrize("contest", TWO, ids=str)
def test_two_workers_never_share_a_name_or_rank(contest: Contest) -> None:
    assert check(Exploration(programs(contest), "member", final="record/"), contest) > 1000


@pytest.mark.parametrize(
    "contest", [TWO[0], *(pytest.param(contest, marks=THOROUGH) for contest in TWO[1:])], ids=str
)
def test_two_workers_that_leave_never_share_a_name_or_rank(contest: Contest) -> None:
    leaving = programs(contest, leaves=True)
    assert check(Exploration(leaving, "member", final="record/"), contest) > 1000


@pytest.mark.parametrize("contest", [*TWO, (("x", 0), ("y", 1))], ids=str)
def test_two_workers_that_remove_ended_ones_never_share_a_name_or_rank(contest: Contest) -> None:
    removing = programs(contest, sees_ends=True)
    assert check(Exploration(removing, "member", final="record/"), contest) > 1000


def test_three_workers_never_share_a_name() -> None:
    """In all orders with few preemptions; each worker has seen the other two."""
    joining = programs(THREE[0])
    content, answers = announced(joining, reads=3)
    exploration = Exploration(joining, "member", final="record/")
    number = check(exploration, THREE[0], content=content, answers=answers, preemptions=PREEMPTIONS)
    assert number > 10_000


@THOROUGH
@pytest.mark.parametrize("contest", THREE, ids=str)
def test_three_workers_never_share_a_name_or_rank(contest: Contest) -> None:
    joining = programs(contest)
    content, answers = announced(joining)
    exploration = Exploration(joining, "member", final="record/")
    assert check(exploration, contest, content=content, answers=answers) > 1000


@pytest.mark.parametrize("contest", [*TWO[:2], pytest.param(TWO[2], marks=THOROUGH)], ids=str)
def test_the_list_has_one_owner_of_a_name_if_live_workers_seem_dead(contest: Contest) -> None:
    """A worker that is slow loses its membership, and no list ever shows two owners."""
    exploration = Exploration(programs(contest), "member", suspicious=True, final="record/")
    for state in exploration.states():
        assert not shared(listed(state.content)), state
