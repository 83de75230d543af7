"""Each name and each rank has one owner, in every order of the store requests of three processes.

The test runs the real :class:`Roster` (see `support.interleavings`), and lets processes crash before each
request.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from rpc_backends_agents.roster import Peer, Roster
from support.interleavings import Exploration, Program, RecordedStore, Request, State, run_alone, run_steps

#: Name and rank of each worker.
CONTESTS = {
    "one name": [("x", 0), ("x", 1), ("x", 2)],
    "one rank": [("x", 0), ("y", 0), ("z", 0)],
    "one name and rank": [("x", 0), ("x", 0), ("x", 0)],
    "a name of one and a rank of another": [("x", 0), ("x", 1), ("y", 1)],
}


def worker(name: str, rank: int, worker_id: int, *, leaves: bool = False) -> Program:
    """Return what a worker does: join, and perhaps leave, as `start_agent` does it."""

    def run(store: RecordedStore) -> str:
        roster = Roster(
            store,
            name,
            on_peer=lambda peer: True,
            on_join=lambda peer: None,
            on_leave=lambda peer: None,
            access=store,  # type: ignore[arg-type]
        )

        def is_alive(peer: Peer) -> bool:
            return bool(store.request("is alive", peer.worker_id))

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


def programs(contest: str, *, leaves: bool = False) -> list[Program]:
    return [
        worker(name, rank, number, leaves=leaves)
        for number, (name, rank) in enumerate(CONTESTS[contest])
    ]


def announced(programs: list[Program]) -> tuple[dict[str, bytes], list[tuple[Any, ...]]]:
    """Return the store when the workers have announced themselves in turn, and their answers."""
    content: dict[str, bytes] = {}
    answers = [run_steps(program, content, 2) for program in programs]
    return content, answers


def lives(state: State, process: int) -> bool:
    """Whether a process answers: it has not crashed, nor ended without being a member."""
    result = state.results[process]
    return not state.crashed[process] and (result is None or result == "member")


def liveness(state: State, request: Request) -> Sequence[Any]:
    return [lives(state, request[1])] if request[0] == "is alive" else [None]


def any_liveness(state: State, request: Request) -> Sequence[Any]:
    """A live process may be slow, and another one may conclude that it has died."""
    return [True, False] if liveness(state, request) == [True] else [False]


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
    names, ranks = zip(*members, strict=True) if members else ((), ())
    return [value for value, count in [*Counter(names).items(), *Counter(ranks).items()] if count > 1]


def live_members(state: State, contest: str) -> list[tuple[str, int]]:
    return [
        CONTESTS[contest][process]
        for process, result in enumerate(state.results)
        if result == "member"
        or (state.requests[process] == ("is a member",) and not state.crashed[process])
    ]


@pytest.mark.parametrize("contest", CONTESTS)
def test_three_joining_workers_never_share_a_name_or_rank(contest: str) -> None:
    for state in Exploration(programs(contest), liveness).states():
        assert not shared(listed(state.content)), state
        assert not shared(live_members(state, contest)), state
