"""Dumps that workers write by themselves (``RPC_BACKENDS_DUMP``)."""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import re
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import rpc

from rpc_backends_core.spi import StoreAccess
from rpc_backends_inspect import causes, groups, peers
from rpc_backends_inspect import workers as inspected
from support import steps
from support.command import wait_until
from support.workers import Worker, WorkerContext, WorkerError, Workers, suspend

LIMIT = 60.0
_EVENT = threading.Event()


def wait_for_event() -> None:
    _EVENT.wait()


def finish(me: WorkerContext) -> None:
    _EVENT.set()


def call_with_timeout(me: WorkerContext, to: str, seconds: float) -> str:
    try:
        rpc.rpc_sync(to, wait_for_event, timeout=seconds)
    except RuntimeError as error:
        return str(error)
    return ""


def end_process() -> None:
    os._exit(0)


def call_lost(me: WorkerContext, to: str) -> str:
    try:
        rpc.rpc_sync(to, end_process, timeout=60)
    except RuntimeError as error:
        return str(error)
    return ""


def release_signal(me: WorkerContext) -> None:
    """Remove the handler of SIGUSR1 that the processes of these tests set at their start."""
    faulthandler.unregister(signal.SIGUSR1)


def shut_down_in_background(me: WorkerContext) -> None:
    threading.Thread(target=rpc.shutdown, daemon=True).start()


def call_many_with_timeout(me: WorkerContext, to: str, count: int) -> list[str]:
    errors = []
    for future in [rpc.rpc_async(to, wait_for_event, timeout=0.2) for _ in range(count)]:
        try:
            future.wait()
        except RuntimeError as error:
            errors.append(str(error))
    return errors


def error_with(text: str, caller: Worker, to: str, seconds: float) -> str:
    """Make calls that time out until the error of one contains this text; return the error.

    On a busy machine the first call may time out before the callee runs its function.
    """
    errors: list[str] = []

    def is_named() -> bool:
        errors.append(caller.call(call_with_timeout, to, seconds))
        return text in errors[-1]

    try:
        wait_until(is_named)
    except AssertionError:
        pytest.fail(f"{text!r} is in none of {errors}")
    return errors[-1]


def wait_for_dumps(folder: Path, count: int = 1) -> list[Path]:
    end = time.monotonic() + LIMIT
    while len(dumps := sorted(folder.glob("*.json"))) < count:
        assert time.monotonic() < end, dumps
        time.sleep(0.01)
    return dumps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "dumps"


@pytest.fixture(params=["TENSORPIPE", "ZEROMQ"])
def two(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> Iterator[Workers]:
    env = {
        "RPC_BACKENDS_RECORDER": "on",
        "RPC_BACKENDS_DUMP": str(folder),
        "RPC_BACKENDS_DUMP_SHUTDOWN_AFTER": "0.5",
    }
    with Workers(2, env=env) as workers:
        workers.run(
            steps.join, f"file://{tmp_path}/store", backend=request.param, num_worker_threads=2
        )
        yield workers


def test_a_timeout_names_the_dump_and_the_reason(two: Workers, folder: Path) -> None:
    there = "there, 'worker1' is at wait_for_event (test_dumps.py:"
    error = error_with(there, two[0], "worker1", 1.5)
    *_, dump = wait_for_dumps(folder)
    assert f"RPC dump: {dump}. Likely reason: 'worker0' has waited " in error
    assert error.startswith("RPCErr:1:") or "RPC ran for more than set timeout" in error
    state = inspected.read(dump)
    assert [call.function for call in state.in_flight] == [f"{__name__}.wait_for_event"]
    assert dump.stat().st_mode & 0o777 == 0o600
    two[1].call(finish)


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Workers]:
    """Another group, with workers of the same names, one of which waits in shutdown."""
    with Workers(2, env={"RPC_BACKENDS_RECORDER": "on"}) as workers:
        workers.run(steps.join, f"file://{tmp_path}/other", backend="TENSORPIPE")
        leaving = workers[0].start(steps.leave)
        yield workers
        workers[1].call(steps.leave)
        leaving.result()


def test_a_group_with_the_same_names_is_no_reason(others: Workers, two: Workers) -> None:
    error = two[0].call(call_with_timeout, "worker1", 1.5)
    assert "Likely reason: 'worker0' has waited " in error
    two[1].call(finish)


def test_a_stopped_worker_of_another_group_is_no_reason(others: Workers, two: Workers) -> None:
    suspend(others[1].pid)
    try:
        error = two[0].call(call_with_timeout, "worker1", 1.5)
    finally:
        os.kill(others[1].pid, signal.SIGCONT)
    assert "Likely reason: 'worker0' has waited " in error
    two[1].call(finish)


def test_a_lost_worker_is_named_in_the_error(two: Workers, folder: Path) -> None:
    error = two[0].call(call_lost, "worker1")
    (dump,) = wait_for_dumps(folder)
    assert (
        f"RPC dump: {dump}. Likely reason: 'worker1' (process {two[1].pid}) has ended; 1 call"
        in error
    )
    two[0].kill()


def test_a_killed_worker_is_named_in_the_error(two: Workers) -> None:
    step = two[0].start(call_with_timeout, "worker1", 60)
    wait_until(lambda: bool(inspected.running(pids=[two[0].pid])[0].in_flight))
    os.kill(two[1].pid, signal.SIGKILL)
    reason = rf"'worker1' \(process {two[1].pid}\) (was killed by SIGKILL|has ended); 1 call"
    assert re.search(f"Likely reason: {reason}", step.result())
    two[0].kill()


def test_a_stopped_worker_is_named_in_the_error(two: Workers) -> None:
    suspend(two[1].pid)
    try:
        error = two[0].call(call_with_timeout, "worker1", 1.5)
    finally:
        os.kill(two[1].pid, signal.SIGCONT)
    assert f"'worker1' (process {two[1].pid}) is stopped by a signal or a debugger; 1 call" in error


def test_a_dump_says_what_its_writer_knew_of_a_stopped_worker(two: Workers, folder: Path) -> None:
    suspend(two[1].pid)
    try:
        two[0].call(call_with_timeout, "worker1", 1.5)
    finally:
        os.kill(two[1].pid, signal.SIGCONT)
    (dump,) = wait_for_dumps(folder)
    (cause, *_) = causes.explain(groups.grouped([inspected.read(dump)])[0])
    assert f"'worker1' (process {two[1].pid}) is stopped by a signal or a debugger" in cause.text
    assert dump.stat().st_mode & 0o777 == 0o600


def test_a_call_ends_when_nothing_can_be_added_to_its_dump(two: Workers, folder: Path) -> None:
    folder.joinpath(f"{socket.gethostname()}-{two[0].pid}-worker0-1.part").mkdir()
    error = two[0].call(call_with_timeout, "worker1", 1.5)
    assert "No RPC dump: [Errno 21] Is a directory" in error
    two[1].call(finish)


def test_a_caller_is_shown_at_the_line_of_its_program(two: Workers, folder: Path) -> None:
    two[0].call(call_with_timeout, "worker1", 1.5)
    (dump,) = wait_for_dumps(folder)
    state = inspected.read(dump)
    thread = state.thread(state.in_flight[0].thread)
    assert thread is not None
    assert thread.position is not None
    assert thread.position.function == "call_with_timeout"
    two[1].call(finish)


def test_a_signal_makes_a_dump(tmp_path: Path, folder: Path) -> None:
    """The worker executes no Python at that time: it waits for its next task."""
    env = {"RPC_BACKENDS_RECORDER": "on", "RPC_BACKENDS_DUMP": str(folder)}
    with Workers(1, env=env) as workers:
        workers.run(release_signal)
        workers.run(steps.join, f"file://{tmp_path}/store", backend="TENSORPIPE")
        os.kill(workers[0].pid, signal.SIGUSR1)
        (dump,) = wait_for_dumps(folder)
        assert inspected.read(dump).document["reason"] == "signal"


def test_many_timeouts_make_one_dump(two: Workers, folder: Path) -> None:
    errors = two[0].call(call_many_with_timeout, "worker1", 100)
    (dump,) = wait_for_dumps(folder)
    assert len(errors) == 100
    assert all(str(dump) in error for error in errors)
    two[1].call(finish)


def test_a_long_shutdown_makes_a_dump(two: Workers, folder: Path) -> None:
    two[0].call(shut_down_in_background)
    (dump,) = wait_for_dumps(folder)
    assert inspected.read(dump).document["reason"] == "shutdown"
    two[0].kill()


def test_the_programs_own_handler_of_the_signal_stays(two: Workers, folder: Path) -> None:
    """The handler of these workers prints their stacks."""
    os.kill(two[0].pid, signal.SIGUSR1)
    two.run(steps.leave)
    # A slow shutdown makes a dump of its own.
    reasons = [inspected.read(dump).document["reason"] for dump in folder.glob("*.json")]
    assert "signal" not in reasons


def take_all_threads(me: WorkerContext, of: str) -> None:
    for _ in range(4):
        rpc.rpc_async(of, wait_for_event, timeout=0)


def test_the_likely_reason_is_about_the_call_that_failed(tmp_path: Path, folder: Path) -> None:
    env = {"RPC_BACKENDS_RECORDER": "on", "RPC_BACKENDS_DUMP": str(folder)}
    with Workers(3, env=env) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend="ZEROMQ", num_worker_threads=2)
        workers[0].call(take_all_threads, "worker1")
        there = "there, 'worker2' is at wait_for_event (test_dumps.py:"
        error = error_with(there, workers[0], "worker2", 2)
        assert "'worker1'" not in error
        workers.run(finish)


class SlowStore(dist.HashStore):
    """A store that does not answer some requests until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()
        self.checks = 0

    def set(self, key: str, value: str) -> None:
        assert self.may_answer.wait(60)
        super().set(key, value)

    def check(self, keys: list[str]) -> bool:
        self.checks += 1
        assert self.may_answer.wait(60)
        return super().check(keys)


class GroupOnStore:
    """The parts of a group that dumps use."""

    def __init__(self, store: dist.Store) -> None:
        self.store, self.access = store, StoreAccess(store)


def test_a_slow_store_for_dumps_does_not_refuse_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "_STORE", 0.01)
    store = SlowStore()

    group: Any = GroupOnStore(store)
    peers.Peers(group).publish("worker0")
    assert group.access.ask(lambda store: store.add("key", 1)) == 1
    store.may_answer.set()


def test_explanations_ask_a_store_that_hangs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request to a store that does not answer costs a thread."""
    monkeypatch.setattr(peers, "_STORE", 0.01)
    store = SlowStore()
    group: Any = GroupOnStore(store)
    members = peers.Peers(group)
    inspected_group = groups.InspectedGroup("key", "", "", ("worker0", "worker1"), ())
    for _ in range(3):
        assert members.lost(inspected_group) == []
    wait_until(lambda: store.checks)  # by a thread
    store.may_answer.set()

    assert store.checks == 1


def test_dumps_do_not_keep_the_store_of_a_group() -> None:
    store = dist.HashStore()
    group: Any = GroupOnStore(store)
    members = peers.Peers(group)
    members.publish("worker0")
    is_open = weakref.ref(store)
    del group, store

    assert is_open() is None


def test_a_full_disk_leaves_no_part_of_a_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = tmp_path / "worker0-1.json"
    dump.write_text("{}")

    def fail(path: Path, _text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full_disk, pytest.raises(OSError, match="No space left"):
        full_disk.setattr(Path, "write_text", fail)
        inspected.add_likely_reason(dump, "the disk is full")
    assert list(tmp_path.iterdir()) == [dump]


def test_a_part_of_an_earlier_dump_is_replaced(tmp_path: Path) -> None:
    """The process was killed while it wrote, and the number of the dump comes round again."""
    dump = tmp_path / "worker0-1.json"
    dump.write_text("{}")
    dump.with_suffix(".part").write_text('{"likely')
    inspected.add_likely_reason(dump, "it is busy")

    assert json.loads(dump.read_text()) == {"likely_reason": "it is busy"}
    assert list(tmp_path.iterdir()) == [dump]


def dumps_at_end(value: str, tmp_path: Path, folder: Path) -> int:
    """Return how many dumps a worker writes at its end."""
    env = {
        "RPC_BACKENDS_RECORDER": "on",
        "RPC_BACKENDS_DUMP": str(folder),
        "RPC_BACKENDS_DUMP_AT_END": value,
    }
    with Workers(1, env=env) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend="TENSORPIPE")
        workers.run(steps.leave)
    return len(list(folder.glob("*.json")))


@pytest.mark.parametrize(("value", "dumps"), [("yes", 1), ("ON", 1), ("0", 0)])
def test_a_yes_makes_a_worker_write_a_dump_at_its_end(
    tmp_path: Path, folder: Path, value: str, dumps: int
) -> None:
    assert dumps_at_end(value, tmp_path, folder) == dumps


def test_an_invalid_yes_or_no_fails_the_start(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(WorkerError, match="RPC_BACKENDS_DUMP_AT_END='maybe' is neither true nor"):
        dumps_at_end("maybe", tmp_path, folder)
