"""Members of a static group exchange data; if one fails, all others learn why."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from core.kit import Workers, form, joining
from rpc_backends_core._errors import GroupError, GroupTimeoutError, StoreError
from rpc_backends_core._group import Group, answers
from rpc_backends_core._group import group as group_module
from support.command import wait_until


@pytest.fixture
def store() -> Any:
    return dist.HashStore()


def start(groups: list[Any], work: Any, *, but: int | None = None) -> Workers:
    workers = Workers()
    for group in groups:
        if group.rank != but:
            workers.start(group.rank, lambda group=group: work(group))  # type: ignore[misc]
    return workers


@pytest.mark.parametrize(
    "payload", [None, "", "ä\x00\n", 0, [1, [2, None]], {"a": {"b": [True, 1.5]}}, "x" * 100_000]
)
def test_each_member_gets_all_payloads_by_rank(store: Any, payload: Any) -> None:
    groups = form(store, 3)
    results = start(groups, lambda group: group.exchange([group.rank, payload])).all_results()
    assert results == [[[rank, payload] for rank in range(3)]] * 3


def test_consecutive_exchanges_are_separate(store: Any) -> None:
    def twice(group: Any) -> Any:
        return [group.exchange(turn * 10 + group.rank) for turn in range(5)]

    results = start(form(store, 3), twice).all_results()
    assert results == [[[turn * 10 + rank for rank in range(3)] for turn in range(5)]] * 3


def test_the_timeout_names_the_missing_member(
    store: Any,
) -> None:
    groups = form(store, 3, timeout=0.5)
    workers = Workers()
    workers.start(2, lambda: groups[2].exchange(None, timeout=60))
    wait_until(lambda: groups[0].store.check(["exchange/1/2"]))
    workers.start(0, lambda: groups[0].exchange(None))
    workers.join()
    (text,) = {str(error) for error in workers.errors.values()}
    assert "'w1' (rank 1)" in text
    assert "waited 0.5 s" in text
    assert len(workers.errors) == 2
    assert {type(error) for error in workers.errors.values()} == {GroupTimeoutError}
    # A member that comes later does not wait for those that have given up.
    with pytest.raises(GroupError, match="waited"):
        groups[1].exchange(None)


def test_a_failure_ends_the_wait_of_the_others(store: Any) -> None:
    groups = form(store, 3)
    workers = start(groups, lambda group: group.exchange(None), but=2)
    groups[2].fail("the disk is full")
    workers.join()
    assert {str(error) for error in workers.errors.values()} == {"the disk is full"}
    assert {type(error) for error in workers.errors.values()} == {GroupError}


@pytest.mark.parametrize("stages", [0, 1, 2])
def test_a_failure_between_exchanges_ends_the_next_one(store: Any, stages: int) -> None:
    groups = form(store, 2)
    for _ in range(stages):
        start(groups, lambda group: group.exchange(None)).all_results()
    workers = start(groups, lambda group: group.exchange(None), but=1)
    groups[1].fail("bad device map", "ValueError")
    workers.join()
    assert type(workers.errors[0]) is ValueError
    assert str(workers.errors[0]) == "bad device map"


def test_a_failure_keeps_completed_exchanges(store: Any) -> None:
    groups = form(store, 2)
    results = start(groups, lambda group: group.exchange(group.rank)).all_results()
    groups[0].fail("too late for that one")
    assert results == [[0, 1]] * 2
    with pytest.raises(GroupError, match="too late"):
        groups[1].exchange(None)


def test_members_read_the_first_of_several_failures(store: Any) -> None:
    groups = form(store, 3)
    groups[0].fail("first")
    groups[1].fail("second")
    with pytest.raises(GroupError, match="first"):
        groups[2].exchange(None)


def test_a_group_has_ended_when_all_members_left(store: Any) -> None:
    groups = form(store, 3)
    for group in groups[:2]:
        group.end()
        group.end()  # a second call does nothing
    assert groups[0].wait_until_ended(0.2) is False
    groups[2].end()
    assert groups[0].wait_until_ended(5) is True


def test_a_meeting_lasts_until_the_last_arrives(store: Any) -> None:
    groups = form(store, 3)
    for turn, late in enumerate((2, 0)):
        workers = start(groups, lambda group: group.meet(), but=late)
        assert not groups[0].store.check([f"meeting/{turn + 1}/all"])
        groups[late].meet()
        workers.all_results()


def test_the_timeout_of_a_meeting_names_the_missing_member(store: Any) -> None:
    groups = form(store, 3)
    workers = Workers()
    workers.start(2, groups[2].meet)
    wait_until(lambda: groups[0].store.check(["meeting/1/2"]))
    workers.start(0, lambda: groups[0].meet(0.3))
    workers.join()
    assert len(workers.errors) == 2
    for error in workers.errors.values():
        assert isinstance(error, GroupTimeoutError)
        assert "waited 0.3 s for 'w1' (rank 1). All workers of a static group must call" in str(
            error
        )


def test_a_message_names_five_missing_members_and_counts_the_rest(store: Any) -> None:
    groups = form(store, 9, timeout=0.3)
    with pytest.raises(
        GroupTimeoutError, match=r"for 'w1' \(rank 1\), .*'w5' \(rank 5\) and 3 more\."
    ):
        groups[0].exchange(None)


def test_a_failure_ends_a_meeting(store: Any) -> None:
    groups = form(store, 3)
    workers = start(groups, lambda group: group.meet(), but=1)
    groups[1].fail("the disk is full")
    workers.join()
    assert {str(error) for error in workers.errors.values()} == {"the disk is full"}


def test_an_exchange_may_have_its_own_timeout(store: Any) -> None:
    groups = form(store, 2, timeout=60)
    with pytest.raises(GroupTimeoutError, match=r"waited 0\.3 s for 'w1' \(rank 1\)"):
        groups[0].exchange(None, timeout=0.3)


class Hanging:
    """A TCP store whose host is suspended."""

    host, port = "10.0.0.7", 29500

    def add(self, *_: Any) -> None:
        threading.Event().wait()

    set = compare_set = add


@pytest.mark.parametrize(
    "request_of",
    [lambda group: group.meet(0.2), lambda group: group.fail("the disk is full")],
    ids=["meet", "fail"],
)
def test_a_hanging_store_is_named_with_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, request_of: Any
) -> None:
    monkeypatch.setattr(group_module, "STORE_TIMEOUT", 0.3)
    group = Group(Hanging(), "w0", 0, 2, (), 60.0, 0, _stage=1)
    with pytest.raises(
        StoreError, match=r"store at 10\.0\.0\.7:29500 has not answered for [0-9.]+ s"
    ):
        request_of(group)


# --- answers that are too long for one value -----------------------------------------------------

#: So many payloads exceed a value of torch's TCP store, as those of 15,000 workers of ZEROMQ do.
MANY = 3_000
ADDRESS = "x" * 3_000


@pytest.fixture
def connect() -> Callable[[], Any]:
    """Return a function that makes clients of one TCP store."""
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def connect_client() -> Any:
        return dist.TCPStore("127.0.0.1", host.port, is_master=False)

    connect_client.host = host  # type: ignore[attr-defined]
    return connect_client


def test_the_tcp_store_refuses_the_payloads_of_many_members(connect: Callable[[], Any]) -> None:
    """This is why answers are shared out. If this fails, torch has changed its limit."""
    with pytest.raises(RuntimeError):
        connect().compare_set("key", "", ADDRESS * MANY)


def test_many_members_exchange_more_than_a_value_holds(connect: Callable[[], Any]) -> None:
    """All members except two are made up."""
    store = connect()
    made_up = range(MANY - 2)
    for rank in made_up:
        store.set(f"exchange/1/{rank}", json.dumps(f"{rank} {ADDRESS}"))
    store.add("exchange/1/arrived", len(made_up))
    groups = [Group(connect(), "w", rank, MANY, (), 60.0, 0) for rank in (MANY - 2, MANY - 1)]

    results = start(groups, lambda group: group.exchange(f"{group.rank} {ADDRESS}")).all_results()

    assert results == [[f"{rank} {ADDRESS}" for rank in range(MANY)]] * 2


def test_many_members_with_long_names_form_a_group(connect: Callable[[], Any]) -> None:
    """All members except the last are made up."""
    store = connect()
    made_up = range(MANY - 1)
    names = [f"{ADDRESS}{rank}" for rank in made_up]
    for rank, name in enumerate(names):
        arrival = {"name": name, "rank": rank, "backend": "PIGEON", "nonce": "n", "fixed_id": None}
        store.set(f"rpc_backends/0/slot/{rank}", json.dumps(arrival))
    store.add("rpc_backends/0/arrived", len(made_up))

    group = joining(connect(), "last", MANY - 1, MANY, join_timeout=60.0)()

    assert [member.name for member in group.members] == [*names, "last"]


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_damaged_piece_of_an_answer_names_the_key(
    store: Any, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(answers, "_LONGEST_VALUE", 100)
    answers.settle(store, "exchange/1/all", {"payloads": ["x" * 1000]})
    value = bytes(store.get("exchange/1/all"))
    piece = f"exchange/1/all/{json.loads(value)['digest']}/3"
    assert store.delete_key(piece)
    if damage == "changed":
        store.set(piece, "something else")
    with pytest.raises(StoreError, match="under 'exchange/1/all', which no worker"):
        answers.whole_answer(store, "exchange/1/all", value, 1)


@pytest.mark.parametrize("digest", ['"x"', "7", '"' + "a" * 64 + '"'])
@pytest.mark.parametrize("count", ["0", "1", "-1", "1e9", "1000000", "null"])
def test_an_invalid_list_of_pieces_names_the_key(store: Any, count: str, digest: str) -> None:
    value = f'{{"pieces": {count}, "digest": {digest}}}'.encode()
    with pytest.raises(StoreError, match="under 'exchange/1/all', which no worker"):
        answers.whole_answer(store, "exchange/1/all", value, 2)
