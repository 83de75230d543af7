"""Workers meet on a store and become a group, or all learn why not. Threads stand for workers."""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from core.kit import Workers, form, joining
from rpc_backends_core._errors import GroupError, GroupTimeoutError, SettingError
from rpc_backends_core._group import ReplacedGroupError, formation
from support.command import wait_until
from support.stores import CountingStore

pytestmark = pytest.mark.usefixtures("short_slices")

MakeStore = Callable[[], Any]


@pytest.fixture
def store() -> Any:
    return dist.HashStore()


@pytest.fixture(params=["HashStore", "FileStore", "TCPStore"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    """Yield a function that connects one more worker to the store; each kind of store in turn."""
    if request.param == "HashStore":
        shared = dist.HashStore()
        yield lambda: shared
    elif request.param == "FileStore":
        yield lambda: dist.FileStore(str(tmp_path / "store"), -1)
    else:
        timeout = timedelta(seconds=20)
        host = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout
        )
        yield lambda: dist.TCPStore(
            "127.0.0.1", host.port, is_master=False, wait_for_workers=False, timeout=timeout
        )


def assert_same_error(workers: Workers, kind: type[Exception] = GroupError) -> str:
    """Check that all workers got the same error; return its text."""
    workers.join()
    assert workers.results == {}
    assert {type(error) for error in workers.errors.values()} == {kind}
    (text,) = {str(error) for error in workers.errors.values()}
    return text


# --- static groups ---------------------------------------------------------------------------------


def test_every_kind_of_store_forms_a_group(connect: MakeStore) -> None:
    workers = Workers()
    for rank in range(3):
        workers.start(rank, joining(connect(), f"w{rank}", rank, 3))
    groups = workers.all_results()
    assert len({group.members for group in groups}) == 1
    assert [(m.name, m.rank, m.worker_id, m.autograd_id) for m in groups[0].members] == [
        ("w0", 0, 0, 0),
        ("w1", 1, 1, 1),
        ("w2", 2, 2, 2),
    ]
    assert [group.me.name for group in groups] == ["w0", "w1", "w2"]


def test_a_group_of_one_is_complete_at_once(store: Any) -> None:
    (group,) = form(store, 1)
    assert [member.name for member in group.members] == ["w0"]


def test_consecutive_groups_on_one_store_are_separate(store: Any) -> None:
    first = form(store, 2)
    first[0].store.set("key", "first")
    second = form(store, 2)
    assert not second[0].store.check(["key"])
    second[1].store.set("key", "second")
    assert first[1].store.get("key") == b"first"


def test_consecutive_groups_may_differ_in_size(store: Any) -> None:
    for size in (2, 3, 1, 2):
        groups = form(store, size)
        assert len(groups[0].members) == size
        for group in groups:
            group.end()


def test_a_rank_outside_the_world_size_is_refused(
    store: Any,
) -> None:
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"rank {rank} of worker 'w' is not below the world"):
            joining(store, "w", rank, 2)()
    assert len(form(store, 2)) == 2


def test_a_restarted_worker_takes_over_its_slot(store: Any) -> None:
    # This thread stands for a killed process, which cannot tell the others.
    dead = Workers()
    dead.start(0, joining(store, "w0", 0, 2))
    wait_for_key(store, "0/arrived")
    slot = "rpc_backends/0/slot/0"
    before = store.get(slot)
    workers = Workers()
    workers.start(0, joining(store, "w0", 0, 2))
    wait_until(lambda: store.get(slot) != before)
    workers.start(1, joining(store, "w1", 1, 2))
    groups = workers.all_results()
    assert [member.name for member in groups[0].members] == ["w0", "w1"]
    assert groups[0].members == groups[1].members
    # If the first attempt is alive after all, it waits for the next group.
    store.set("rpc_backends/1/group", '{"error": "it waited here"}')
    dead.join()
    assert str(dead.errors[0]) == "it waited here"


def wait_for_key(store: Any, key: str) -> None:
    # The store's own wait does not work: a HashStore wakes no waiter when a counter appears.
    wait_until(lambda: bool(store.check([f"rpc_backends/{key}"])))


def die_while_arriving(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Make the next worker stop right before or after it adds itself to the number of arrivals."""
    real = dist.PrefixStore.add

    def dying(store: Any, key: str, amount: int) -> int:
        if key.endswith("/arrived") and amount == 1:
            if when == "after":
                real(store, key, amount)
            raise KeyboardInterrupt
        return real(store, key, amount)

    monkeypatch.setattr(dist.PrefixStore, "add", dying)
    for name in ("_give_up", "_let_others_read"):  # a killed process tells nobody
        monkeypatch.setattr(formation._Arrival, name, lambda *_: None)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("dying_rank", [0, 1])
def test_a_worker_killed_while_arriving_can_be_restarted(
    store: Any, monkeypatch: pytest.MonkeyPatch, when: str, dying_rank: int
) -> None:
    workers = Workers()
    if dying_rank == 1:  # then the dying worker is the last to arrive
        workers.start(0, joining(store, "w0", 0, 2))
        wait_for_key(store, "0/arrived")
    die_while_arriving(monkeypatch, when)
    with pytest.raises(KeyboardInterrupt):
        joining(store, f"w{dying_rank}", dying_rank, 2)()
    monkeypatch.undo()
    slot = f"rpc_backends/0/slot/{dying_rank}"
    before = store.get(slot)
    workers.start(dying_rank, joining(store, f"w{dying_rank}", dying_rank, 2))
    if dying_rank == 0:
        # If worker 1 arrived before the slot is taken over, it would count the dead worker as a member.
        wait_until(lambda: bool(store.get(slot) != before))
        workers.start(1, joining(store, "w1", 1, 2))
    assert len(workers.all_results()) == 2


def arrive_and_die(store: Any, rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what a worker does that is killed while it waits for the others."""

    def die(*_: Any, **__: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(formation, "wait_for", die)
    monkeypatch.setattr(formation._Arrival, "_give_up", lambda *_: None)
    with pytest.raises(SystemExit):
        joining(store, f"w{rank}", rank, size)()
    monkeypatch.undo()


def join_and_exchange(store: Any, rank: int, size: int) -> Callable[[], Any]:
    """Return a function that starts a worker as ``init_rpc`` does."""

    def start() -> Any:
        while True:
            group = joining(store, f"w{rank}", rank, size)()
            try:
                return group.exchange(f"new {rank}")
            except ReplacedGroupError:
                group.end()

    return start


def test_members_do_not_wait_for_processes_of_an_earlier_attempt(
    connect: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker of the second attempt completes a group with dead processes."""
    for rank in (0, 1):
        with monkeypatch.context() as patch:
            arrive_and_die(connect(), rank, 3, patch)
    store = connect()
    workers = Workers()
    workers.start(2, join_and_exchange(store, 2, 3))
    wait_for_key(connect(), "0/group")
    for rank in (0, 1):
        workers.start(rank, join_and_exchange(connect(), rank, 3))

    assert workers.all_results() == [["new 0", "new 1", "new 2"]] * 3


def test_a_complete_start_is_not_replaced(store: Any) -> None:
    groups = form(store, 2)
    workers = Workers()
    for rank, group in enumerate(groups):
        workers.start(rank, lambda group=group: group.exchange("first"))  # type: ignore[misc]
    workers.all_results()

    form(store, 2)

    for rank, group in enumerate(groups):
        workers.start(rank, lambda group=group: group.exchange("second"))  # type: ignore[misc]
    assert workers.all_results() == [["second"] * 2] * 2


def test_torchrun_may_restart_with_another_world_size(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        arrive_and_die(store, 0, 3, patch)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert len(form(store, 2)) == 2


def test_a_name_used_twice_is_an_error_for_all(store: Any) -> None:
    workers = Workers()
    for rank, name in enumerate(["a", "b", "a"]):
        workers.start(rank, joining(store, name, rank, 3))
    assert assert_same_error(workers) == "RPC worker name a is not unique: ranks 0 and 2 share it."


def test_different_backends_are_an_error_for_all(store: Any) -> None:
    workers = Workers()
    for rank, backend in enumerate(["PIGEON", "CARRIER"]):
        workers.start(rank, joining(store, f"w{rank}", rank, 2, backend=backend))
    text = assert_same_error(workers)
    assert "'w0' (rank 0): PIGEON" in text
    assert "'w1' (rank 1): CARRIER" in text


def test_different_world_sizes_are_an_error_for_all(store: Any) -> None:
    workers = Workers()
    workers.start(0, joining(store, "w0", 0, 2))
    wait_for_key(store, "0/arrived")
    workers.start(1, joining(store, "w1", 1, 3))
    text = assert_same_error(workers)
    assert "'w1' (rank 1) has 3, but an earlier worker has 2" in text


def test_the_reason_survives_the_loss_of_the_host(
    store: Any,
) -> None:
    class LosesTheHostAtTheEnd(CountingStore):
        def add(self, key: str, amount: int) -> int:
            total = super().add(key, amount)
            if key.endswith("/read"):
                raise dist.DistNetworkError("failed to recv, got 0 bytes")
            return total

    workers = Workers()
    workers.start(0, joining(store, "w0", 0, 2))
    workers.start(1, joining(LosesTheHostAtTheEnd(store), "w1", 1, 3))
    assert "disagree on world_size" in assert_same_error(workers)


def test_workers_may_try_again_after_a_failure(store: Any) -> None:
    workers = Workers()
    for rank in range(2):
        workers.start(rank, joining(store, "same", rank, 2))
    assert_same_error(workers)
    assert [member.name for member in form(store, 2)[0].members] == ["w0", "w1"]


# --- waiting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("present", "missing"), [([0, 2], "Missing: rank 1."), ([1], "Missing: ranks 0, 2.")]
)
def test_the_timeout_names_the_missing_ranks(store: Any, present: list[int], missing: str) -> None:
    workers = Workers()
    for rank in present:
        workers.start(rank, joining(store, f"w{rank}", rank, 3, join_timeout=1.0))
    text = assert_same_error(workers, GroupTimeoutError)
    assert "the group of 3 workers was not complete after 1 s" in text
    assert missing in text
    assert "RPC_BACKENDS_JOIN_TIMEOUT=SECONDS" in text


def test_a_late_worker_waits_for_the_next_group(store: Any) -> None:
    with pytest.raises(GroupTimeoutError):
        joining(store, "w0", 0, 2, join_timeout=0.2)()
    workers = Workers()
    workers.start(1, joining(store, "w1", 1, 2))
    workers.start(0, joining(store, "w0", 0, 2))
    assert len(workers.all_results()) == 2


def test_the_variable_sets_the_time_limit(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPC_BACKENDS_JOIN_TIMEOUT", "0.2")
    with pytest.raises(GroupTimeoutError, match=r"after 0\.2 s"):
        joining(store, "w0", 0, 2, join_timeout=None)()
    monkeypatch.setenv("RPC_BACKENDS_JOIN_TIMEOUT", "soon")
    with pytest.raises(SettingError, match="'soon'"):
        joining(store, "w0", 0, 2, join_timeout=None)()


def test_an_interrupt_ends_the_start_of_all_workers(store: Any) -> None:
    workers = Workers()
    workers.start(1, joining(store, "w1", 1, 3, join_timeout=20))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def interrupt_rank_0() -> None:
        wait_until(lambda: bool(store.check(["rpc_backends/0/slot/0"])))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    thread = threading.Thread(target=interrupt_rank_0)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            joining(store, "w0", 0, 3, join_timeout=20)()
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, before)
    text = assert_same_error(workers)
    assert "RPC worker 'w0' (rank 0) gave up: KeyboardInterrupt" in text


def test_losing_the_store_ends_the_wait() -> None:
    timeout = timedelta(seconds=20)
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    guest = dist.TCPStore(
        "127.0.0.1", host.port, is_master=False, wait_for_workers=False, timeout=timeout
    )
    workers = Workers()
    workers.start(1, joining(guest, "w1", 1, 2, join_timeout=30))
    wait_for_key(host, "0/arrived")
    start = time.monotonic()
    del host
    workers.join()
    assert isinstance(workers.errors[1], dist.DistNetworkError)
    assert time.monotonic() - start < 10


def test_a_long_wait_logs_the_missing_ranks(
    store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rpc_backends_core._group.waiting._FIRST_NEWS", 0.1)
    monkeypatch.setattr("rpc_backends_core._group.waiting._SLICE", 0.05)
    begin = time.time()
    workers = Workers()
    with caplog.at_level(logging.WARNING):
        workers.start(0, joining(store, "w0", 0, 2))
        wait_until(lambda: len(caplog.messages) >= 3)
        workers.start(1, joining(store, "w1", 1, 2))
        workers.all_results()
    line = re.compile(r"RPC worker 'w0' \(rank 0\) has waited \d+ s for rank 1")
    assert all(map(line.fullmatch, caplog.messages))
    # The intervals grow: the lines come 0.1 s, 0.2 s and 0.4 s after the begin, or later.
    assert caplog.records[2].created - begin > 0.39


# --- dynamic groups --------------------------------------------------------------------------------


def test_a_dynamic_group_waits_for_no_worker(connect: MakeStore) -> None:
    first = joining(connect(), "a", 0, None)()
    first.store.set("key", "value")
    second = joining(connect(), "b", 1, 0)()
    assert second.store.get("key") == b"value"
    assert (first.world_size, first.members) == (None, ())


def test_a_static_group_may_follow_a_dynamic_one(connect: MakeStore) -> None:
    groups = [joining(connect(), name, rank, None)() for rank, name in enumerate("ab")]
    for group in groups:
        group.end()
        group.end()  # a second call does nothing
    workers = Workers()
    for rank in range(2):
        workers.start(rank, joining(connect(), f"w{rank}", rank, 2))
    assert len(workers.all_results()) == 2


def test_a_dynamic_group_may_follow_a_static_one(store: Any) -> None:
    groups = form(store, 2)
    groups[0].end()
    with pytest.raises(GroupError, match="mixes statically and dynamically"):
        joining(store, "d", 0, None)()
    groups[1].end()
    assert joining(store, "d", 0, None)().world_size is None


def test_a_dynamic_group_may_follow_an_incomplete_one(store: Any) -> None:
    with pytest.raises(GroupTimeoutError):
        joining(store, "w0", 0, 2, join_timeout=0.1)()
    assert joining(store, "d", 0, None)().world_size is None


def test_static_and_dynamic_members_do_not_mix(store: Any) -> None:
    dynamic = joining(store, "d", 0, None)()
    with pytest.raises(GroupError, match=r"mixes.*'w1', rank 1\) asks for a static.*is dynamic"):
        joining(store, "w1", 1, 2)()
    dynamic.end()

    workers = Workers()
    workers.start(0, joining(store, "w0", 0, 2))
    wait_for_key(store, "1/arrived")
    with pytest.raises(GroupError, match=r"mixes.*'d', rank 1\) asks for a dynamic.*is static"):
        joining(store, "d", 1, None)()
    # Workers that wait for the static group are not affected.
    workers.start(1, joining(store, "w1", 1, 2))
    assert len(workers.all_results()) == 2


def test_a_worker_may_rejoin_a_dynamic_group(store: Any) -> None:
    stays = joining(store, "a", 0, None)()
    leaves = joining(store, "b", 1, None)()
    leaves.end()
    back = joining(store, "b", 1, None)()
    stays.store.set("key", "value")
    assert back.store.get("key") == b"value"


@pytest.fixture
def process_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes the following calls look like those of another process."""

    def become(process: str) -> None:
        monkeypatch.setattr(formation, "_process_nonce", lambda: process)

    return become


def test_processes_of_a_dynamic_group_get_unique_autograd_ids(
    store: Any, process_of: Callable[[str], None]
) -> None:
    ids = []
    # A program may choose any ranks, and workers come and go.
    for number, rank in enumerate([0, 1, 1, 0, 5, 1]):
        process_of(f"process {number}")
        ids.append(joining(store, f"w{number}", rank, None)().autograd_id)
    assert len(set(ids)) == len(ids)
    assert ids[:2] == [0, 1]
    assert all(0 <= each < 2**15 for each in ids)


def test_a_rejoining_process_keeps_its_autograd_id(
    store: Any, process_of: Callable[[str], None]
) -> None:
    process_of("one")
    first = joining(store, "a", 3, None)()
    first.end()
    # By now torch has fixed the id for this process.
    again = joining(store, "a", 4, None, fixed_id=first.autograd_id)()
    assert again.autograd_id == first.autograd_id == 3


def test_an_autograd_id_fixed_twice_is_a_warning(
    store: Any, process_of: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    process_of("one")
    joining(store, "a", 0, None, fixed_id=7)()
    process_of("two")
    with caplog.at_level(logging.WARNING):
        group = joining(store, "b", 1, None, fixed_id=7)()
    assert group.autograd_id == 7
    assert "'b' and another member were both worker 7" in caplog.text
