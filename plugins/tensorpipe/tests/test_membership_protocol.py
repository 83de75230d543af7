"""Each name and each rank has one owner, in every order of the store requests of workers that join.

The test runs the real :class:`Membership` (see `support.interleavings`), and lets processes crash before
each request.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from rpc_backend_tensorpipe import membership
from rpc_backend_tensorpipe.membership import Membership, Peer
from rpc_backends_core.spi import device_maps
from support.interleavings import ALIVE, Exploration, Program, RecordedStore, run_alone

Contest = tuple[tuple[str, int], ...]
CONTESTS: list[Contest] = [
    (("x", 0), ("x", 1), ("x", 2)),
    (("x", 0), ("y", 0), ("z", 0)),
    (("x", 0), ("x", 1), ("y", 1)),
]


#: The process that runs.
RUNNING = [""]


class Asking(Membership):
    """Asks the test whether a member is alive."""

    def __init__(self, store: RecordedStore) -> None:
        super().__init__(store, 60)  # type: ignore[arg-type]
        self._asked = store

    def is_alive(self, peer: Peer) -> bool:
        return bool(self._asked.request(ALIVE, int(peer.address)))


def worker(name: str, rank: int, number: int, *, leaves: bool) -> Program:
    """Return what a worker does: join, and perhaps leave, as `dynamic_group.start` does it."""

    def run(store: RecordedStore) -> str:
        RUNNING[0] = str(number)
        list_of_members = Asking(store)
        devices = device_maps.WorkerDevices(name, None, 0, {}, [])
        try:
            worker_id = list_of_members.reserve(name, rank, devices, wanted=None)
            me = Peer(name, rank, worker_id, devices, str(number), ("127.0.0.1", 1))
            list_of_members.add(me)
        except RuntimeError as error:
            return f"refused: {error}"
        if not leaves:
            return "member"
        store.request("is a member")
        list_of_members.remove([me])
        return "left"

    return run


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a process write the same in each run, and different from the other processes."""
    monkeypatch.setattr(membership.secrets, "token_hex", lambda size: "ab" * size)
    monkeypatch.setattr(membership, "_nonce", lambda: RUNNING[0])


@pytest.mark.parametrize("contest", CONTESTS, ids=str)
def test_three_workers_never_share_a_name_or_rank(contest: Contest) -> None:
    check(contest, leaves=False)


@pytest.mark.parametrize(
    "contest",
    [CONTESTS[0], *(pytest.param(each, marks=pytest.mark.thorough) for each in CONTESTS[1:])],
    ids=str,
)
def test_three_workers_that_leave_never_share_a_name_or_rank(contest: Contest) -> None:
    check(contest, leaves=True)


def check(contest: Contest, *, leaves: bool) -> None:
    programs = [
        worker(name, rank, number, leaves=leaves) for number, (name, rank) in enumerate(contest)
    ]
    count = 0
    for count, state in enumerate(Exploration(programs, "member").states(), 1):  # noqa: B007  # used below
        listed = json.loads(state.content.get("members", b'{"peers": []}'))["peers"]
        assert are_unique([peer[:2] for peer in listed]), state
        members = [
            who
            for who, request, result in zip(contest, state.requests, state.results, strict=True)
            if result == "member" or request == ("is a member",)
        ]
        assert are_unique(members), state
        if state.is_final:
            check_the_end(state, contest)
    assert count > 100


def are_unique(members: list[Any]) -> bool:
    """Return whether no two members share a name or a rank."""
    return all(len(set(values)) == len(values) for values in zip(*members, strict=True))


def check_the_end(state: Any, contest: Contest) -> None:
    """One of the rivals has won, or has crashed; and the next worker gets the name, if it is free."""
    if "refused" in str(state.results) and None not in state.results:
        assert "member" in state.results or "left" in state.results, state
    name, rank = contest[0]
    owners = [who for who, result in zip(contest, state.results, strict=True) if result == "member"]
    is_taken = any(name == owner[0] or rank == owner[1] for owner in owners)
    result = run_alone(
        worker(name, rank, len(contest), leaves=False),
        state.content,
        lambda number: state.results[number] == "member",
    )
    assert result.startswith("refused") if is_taken else result == "member", (state, result)
