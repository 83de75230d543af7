"""The member list of a dynamic group is a log in the store; all workers read the same members."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from rpc_backends_agents import roster
from rpc_backends_agents.member_records import Peer
from rpc_backends_agents.roster import Roster
from rpc_backends_core.spi import StoreError, processes


class View:
    """A worker's view of the member list.

    :ivar seen: the callbacks so far: "peer", "in" or "out", and the worker's name.
    """

    def __init__(self, store: Any, name: str, rank: int, *, keeps_out: str = "") -> None:
        self.seen: list[tuple[str, str]] = []
        self.name, self.rank = name, rank
        self.keeps_out = keeps_out
        self.ended: set[str] = set()
        self.roster = Roster(
            store,
            name,
            on_peer=self._on_peer,
            on_join=lambda peer: self.seen.append(("in", peer.name)),
            on_leave=lambda peer, ended: self.seen.append(("ended" if ended else "out", peer.name)),
            has_ended=lambda peer: peer.name in self.ended,
        )

    def _on_peer(self, peer: Peer) -> bool:
        self.seen.append(("peer", peer.name))
        return peer.name != self.keeps_out

    def join(self, *, others_live: bool = True) -> View:
        worker_id = self.roster.take_id(self.rank)
        self.roster.announce(self.name, self.rank, worker_id, f"at {self.name}")
        self.roster.join(lambda _: others_live)
        return self

    def changes(self) -> list[tuple[str, str]]:
        """Read the list; return the new callbacks."""
        self.seen.clear()
        self.roster.refresh()
        return list(self.seen)


@pytest.fixture
def store() -> Any:
    return dist.HashStore()


def test_workers_see_the_others_in_the_same_order(store: Any) -> None:
    a, b = View(store, "a", 0).join(), View(store, "b", 1).join()
    assert b.seen == [("peer", "a"), ("in", "a"), ("in", "b")]
    assert a.changes() == [("peer", "b"), ("in", "b")]
    b.roster.leave()
    assert a.changes() == [("out", "b")]
    assert a.changes() == []


def test_a_joining_worker_is_known_before_it_is_a_member(store: Any) -> None:
    a, b = View(store, "a", 0).join(), View(store, "b", 1)
    b.roster.announce("b", 1, b.roster.take_id(1), "at b")
    assert a.changes() == [("peer", "b")]


def test_a_late_worker_reads_all_records(store: Any) -> None:
    for number in range(4):
        View(store, f"w{number}", number).join().roster.leave()
    late = View(store, "late", 9).join()
    assert late.seen[-1] == ("in", "late")
    assert [name for what, name in late.seen if what == "out"] == ["w0", "w1", "w2", "w3"]


def test_records_are_never_changed(store: Any) -> None:
    a, b = View(store, "a", 0).join(), View(store, "b", 1).join()

    def log() -> list[bytes]:
        count = store.add("records", 0)
        return [store.get(f"record/{number}") for number in range(1, count + 1)]

    before = log()
    b.roster.leave()
    a.roster.refresh()
    View(store, "b", 1).join(others_live=False)
    assert log()[: len(before)] == before
    assert [json.loads(text)["kind"] for text in log()] == [
        "peer",
        "in",
        "peer",
        "in",
        "out",
        "peer",
        "in",
    ]


def test_a_member_whose_process_has_ended_is_removed_for_all(store: Any) -> None:
    members = [View(store, name, rank).join() for rank, name in enumerate("abcd")]
    a, _, c, _ = members
    a.roster.refresh()
    a.seen.clear()
    a.ended = {"b"}
    a.roster.remove_ended()
    assert a.seen == [("ended", "b")]
    assert c.changes() == [("peer", "d"), ("in", "d"), ("ended", "b")]
    late = View(store, "late", 9)
    late.ended = {"c"}
    late.join()
    assert late.seen[-2:] == [("ended", "c"), ("in", "late")]


def test_the_end_of_a_process_is_recorded_by_few(store: Any) -> None:
    members = [View(store, name, rank).join() for rank, name in enumerate("abcdefgh")]
    before = store.add("records", 0)
    for view in members[1:]:
        view.ended = {"a"}
        view.roster.remove_ended()
    assert store.add("records", 0) - before == 2


def test_an_ended_member_is_removed_while_the_store_is_lost(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = View(store, "a", 0).join(), View(store, "b", 1).join()

    def lost(*arguments: Any) -> Any:
        raise StoreError("it is lost")

    monkeypatch.setattr(b.roster._access, "ask", lost)
    b.seen.clear()
    b.ended = {"a"}
    b.roster.remove_ended()
    assert b.seen == [("ended", "a")]
    assert a.changes() == [("peer", "b"), ("in", "b")]


HOSTILE_PROCESSES = [
    "process",
    [],
    ["host", 1],
    ["host", -1, "1"],
    ["host", 2**80, "1"],
    ["host", True, "1"],
    [["host"], 1, "1"],
]


@pytest.mark.parametrize("process", HOSTILE_PROCESSES, ids=str)
def test_an_invalid_process_in_a_record_is_that_of_another_host(store: Any, process: Any) -> None:
    a = View(store, "a", 0).join()
    if isinstance(process, list) and process[:1] == ["host"]:
        process = [*processes.this_process()[:1], *process[1:]]
    record = {"kind": "peer", "name": "b", "rank": 1, "id": 1, "address": "", "process": process}
    for text in (record, {"kind": "in", "number": store.add("records", 0) + 1}):
        store.set(f"record/{store.add('records', 1)}", json.dumps(text))
    assert a.changes() == [("peer", "b"), ("in", "b")]
    assert a.roster.elsewhere() == [1]


def test_a_late_record_is_read_later(store: Any) -> None:
    a = View(store, "a", 0).join()
    # A worker has taken a number, but has not written its record yet.
    number = store.add("records", 1)
    b = View(store, "b", 1).join()
    assert a.changes() == [("peer", "b"), ("in", "b")]
    record = {"kind": "peer", "name": "slow", "rank": 2, "id": 2, "address": ""}
    store.set(f"record/{number}", json.dumps(record))
    assert a.changes() == [("peer", "slow")]
    assert b.changes() == [("peer", "slow")]


def test_worker_ids_are_never_reused(store: Any) -> None:
    ids = [View(store, str(number), 0).roster.take_id(0) for number in range(5)]
    assert ids == [0, 32767, 32766, 32765, 32764]


@pytest.mark.parametrize(("name", "rank", "what"), [("a", 5, "name a"), ("c", 0, "rank 0")])
def test_the_name_or_rank_of_a_live_member_is_refused(
    store: Any, name: str, rank: int, what: str
) -> None:
    View(store, "a", 0).join()
    with pytest.raises(RuntimeError, match=f"{what} is not unique: the member 'a' .rank 0. has it"):
        View(store, name, rank).join()


def test_the_name_of_a_dead_member_is_taken_over(store: Any) -> None:
    View(store, "a", 0).join()
    successor = View(store, "b", 1).join()
    View(store, "a", 0).join(others_live=False)
    assert successor.changes() == [("peer", "a"), ("out", "a"), ("in", "a")]


def test_the_name_of_a_member_that_left_is_free(store: Any) -> None:
    View(store, "a", 0).join().roster.leave()
    again = View(store, "a", 0).join()
    assert again.seen[-1] == ("in", "a")


def test_a_worker_that_is_kept_out_is_not_a_member(store: Any) -> None:
    a = View(store, "a", 0, keeps_out="b").join()
    b = View(store, "b", 1).join()
    assert a.changes() == [("peer", "b")]
    b.roster.leave()
    assert a.changes() == []


def test_leaving_before_announcing_does_nothing(store: Any) -> None:
    View(store, "a", 0).roster.leave()
    assert store.add("records", 0) == 0


def test_the_requests_of_a_join_do_not_grow_with_the_group(store: Any) -> None:
    class Counting:
        def __init__(self) -> None:
            self.requests = 0

        def __getattr__(self, name: str) -> Any:
            def request(*args: Any) -> Any:
                self.requests += 1
                return getattr(store, name)(*args)

            return request

    def cost(number: int) -> int:
        counting = Counting()
        View(counting, f"w{number}", number).join()
        return counting.requests

    cost(0), cost(1)
    third = cost(2)
    for number in range(3, 20):
        View(store, f"w{number}", number).join()
    assert cost(20) == third


# --- data that no worker wrote --------------------------------------------------------------------


def test_records_after_missing_ones_are_read(
    store: Any,
) -> None:
    a = View(store, "a", 0).join()
    store.add("records", 100_000)
    late = View(store, "late", 9).join()

    # Each refresh reads as many records as its time limit allows.
    while not a.roster._read >= 100_000:
        a.roster.refresh()

    assert ("in", "late") in [*a.seen, *a.changes()]
    assert len(a.roster._missing) == len(late.roster._missing) == 512


@pytest.mark.parametrize("count", ["none", "-1", "1e3", "3000000", "9" * 400, ""])
def test_an_invalid_count_is_logged_once_and_members_stay(
    store: Any, caplog: pytest.LogCaptureFixture, count: str
) -> None:
    a = View(store, "a", 0).join()
    store.set("records", count)

    for _ in range(3):
        assert a.changes() == []

    assert caplog.text.count("cannot read the member list") == 1
    assert "under 'records'" in a.roster.trouble
    store.set("records", "2")
    a.roster.refresh()
    assert a.roster.trouble == ""


def test_invalid_records_are_ignored(store: Any, caplog: pytest.LogCaptureFixture) -> None:
    a = View(store, "a", 0).join()
    peer = {"kind": "peer", "name": "b", "rank": 1, "id": 1, "address": ""}
    records = [
        peer,
        {**peer, "name": "c"},
        {**peer, "id": 0},
        {**peer, "id": 2, "address": "x" * 70_000},
    ]
    for record in [*records, {**peer, "id": 3, "name": "no name"}]:
        store.set(f"record/{store.add('records', 1)}", json.dumps(record))

    assert a.changes() == [("peer", "b")]
    assert caplog.text.count("in the member list, which is not valid") == 4


@pytest.mark.parametrize(
    ("key", "text"), [("name/b", "none"), ("rank/1", "9" * 30), ("spare_ids", "-3"), ("id/1", "x")]
)
def test_a_join_fails_on_a_key_that_no_worker_wrote(store: Any, key: str, text: str) -> None:
    View(store, "a", 0).join()
    store.add("id/1", 1)  # so that the id is not free
    store.set(key, text)
    with pytest.raises(StoreError, match=f"under '{key}'"):
        View(store, "b", 1).join()


def test_an_exception_in_a_callback_does_not_hide_later_changes(store: Any) -> None:
    a = View(store, "a", 0).join()

    def fail(peer: Peer) -> None:
        raise OSError("no")

    a.roster._on_join = fail
    View(store, "b", 1).join()
    a.roster.refresh()
    a.roster._on_join = lambda peer: a.seen.append(("in", peer.name))
    View(store, "c", 2).join()
    assert ("in", "c") in a.changes()


def test_a_loss_is_reported_while_the_member_is_removed(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread sees that the process of the lost member has ended."""
    monkeypatch.setattr(roster, "STORE_TIMEOUT", 0.05)  # how long that thread waits for this one
    a, b = View(store, "a", 0).join(), View(store, "b", 1).join()
    a.roster.refresh()
    a.ended = {"b"}

    class Members(set[int]):
        def __iter__(self) -> Iterator[int]:
            for number in [*super().__iter__()]:
                if threading.current_thread() is threading.main_thread():
                    remover = threading.Thread(target=a.roster.remove_ended)
                    remover.start()
                    remover.join()
                yield number

    a.roster._joined = Members(a.roster._joined)
    a.roster.report_loss(b.rank)
