"""The members of a dynamic group: one owner of each name, and dead members leave the list."""

from __future__ import annotations

import os
import re
import select
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_agents.engine.secret import generate
from support import steps
from support.command import wait_until
from support.engines import ENGINES
from support.workers import WorkerContext, WorkerError, Workers

pytestmark = pytest.mark.slow

BACKENDS = ["ZEROMQ", "UCX", "TENSORPIPE"]
ROUNDS = 5


def outcome(step) -> str:
    try:
        step.result()
    except WorkerError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_of_four_joins_under_one_name_succeeds(tmp_path: Path, backend: str) -> None:
    with Workers(4, seconds=120) as workers:
        counts = []
        for turn in range(ROUNDS):
            url = f"file://{tmp_path}/{turn}"
            joins = [
                worker.start(steps.join_dynamic, url, name="same", backend=backend)
                for worker in workers
            ]
            errors = [outcome(step) for step in joins]
            counts.append(errors.count(""))
            assert all(re.search("name same is not unique|^$", error) for error in errors), errors
            for worker, error in zip(workers, errors, strict=True):
                if not error:
                    worker.call(steps.leave)
        assert counts == [1] * ROUNDS


def is_listed(me: WorkerContext, name: str) -> bool:
    return name in steps.members(me)


#: Options of `steps.join` for each engine.
ENGINES_OF_MEMBERS = {
    **ENGINES,
    "TENSORPIPE": {"backend": "TENSORPIPE"},
}


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_a_joiner_that_can_reach_no_member_gets_an_error(tmp_path: Path, backend: str) -> None:
    with Workers(3, seconds=120) as workers:
        url = f"file://{tmp_path}/store"
        workers[0].call(set_secret, backend)
        workers[0].call(steps.join_dynamic, url, backend=backend)
        error = outcome(workers[1].start(steps.join_dynamic, url, backend=backend))
        assert "RPC worker 'worker1' cannot join its group" in error
        assert "worker 'worker0' (rank 0) has a secret" in error
        assert workers[0].call(steps.members) == {"worker0": 0}


def set_secret(me: WorkerContext, backend: str) -> None:
    os.environ[f"RPC_BACKENDS_{backend}_SECRET"] = generate()


@pytest.mark.parametrize("engine", ENGINES_OF_MEMBERS)
def test_a_killed_member_leaves_every_list(tmp_path: Path, engine: str) -> None:
    """Also the lists of a member that never called it, and of a worker that joins later."""
    with Workers(4, seconds=120) as workers:
        url = f"file://{tmp_path}/store"
        for worker in list(workers)[:3]:
            worker.call(steps.join_dynamic, url, **ENGINES_OF_MEMBERS[engine])
        workers[0].call(steps.call, "worker2")
        os.kill(workers[2].pid, signal.SIGKILL)
        for worker in (workers[0], workers[1]):
            wait_until(lambda worker=worker: not worker.call(is_listed, "worker2"))
        workers[3].call(steps.join_dynamic, url, **ENGINES_OF_MEMBERS[engine])
        for index in (0, 1, 3):
            wait_until(
                lambda index=index: (
                    workers[index].call(steps.members) == {"worker0": 0, "worker1": 1, "worker3": 3}
                )
            )
        for index in (0, 1, 3):
            workers[index].call(steps.leave)


#: Engines on which two workers meet as if each were on its own host.
BETWEEN_HOSTS = ["ZEROMQ over TCP", "UCX over TCP", "TENSORPIPE"]


def move_to_another_host(me: WorkerContext) -> None:
    """Make this worker say that it runs on a host of its own: others cannot look for its process."""
    from rpc_backends_core._group import processes

    own = processes.this_process()
    processes.this_process = lambda: [f"host {me.index}", *own[1:]]  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("engine", "hosts"),
    [*((engine, 1) for engine in ENGINES_OF_MEMBERS), *((engine, 4) for engine in BETWEEN_HOSTS)],
)
def test_a_killed_member_that_was_never_called_leaves_every_list(
    tmp_path: Path, engine: str, hosts: int
) -> None:
    with Workers(4, seconds=120) as workers:
        url = f"file://{tmp_path}/store"
        if hosts > 1:
            workers.run(move_to_another_host)
        for worker in list(workers)[:3]:
            worker.call(steps.join_dynamic, url, **ENGINES_OF_MEMBERS[engine])
        os.kill(workers[2].pid, signal.SIGKILL)
        workers[2].end()
        workers[3].call(steps.join_dynamic, url, **ENGINES_OF_MEMBERS[engine])
        assert not workers[3].call(is_listed, "worker2")
        for index in (0, 1, 3):
            wait_until(lambda index=index: not workers[index].call(is_listed, "worker2"))
        for index in (0, 1, 3):
            workers[index].call(steps.leave)


@pytest.mark.parametrize("engine", ENGINES_OF_MEMBERS)
def test_the_successor_of_a_killed_member_that_was_never_called_is_reached(
    tmp_path: Path, engine: str
) -> None:
    """The first call of its name is to a process that has ended."""
    with Workers(3, seconds=120) as workers:
        url = f"file://{tmp_path}/store"
        for worker in list(workers)[:2]:
            worker.call(steps.join_dynamic, url, **ENGINES_OF_MEMBERS[engine])
        assert workers[0].call(is_listed, "worker1")
        os.kill(workers[1].pid, signal.SIGKILL)
        workers[1].end()
        workers[2].call(
            steps.join_dynamic, url, name="worker1", rank=1, **ENGINES_OF_MEMBERS[engine]
        )
        wait_until(lambda: outcome(workers[0].start(steps.call, "worker1")) == "")
        for index in (0, 2):
            workers[index].call(steps.leave)


def has_ended(pid: int) -> bool:
    """Return whether all threads of a process have ended; its parent may not have waited for it yet."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 0)[0])
    finally:
        os.close(process)


@pytest.mark.parametrize("engine", ENGINES_OF_MEMBERS)
def test_calls_to_a_killed_member_say_that_it_has_ended(tmp_path: Path, engine: str) -> None:
    """The first call, which needs a connection, and those after the member has left the list."""
    with (
        # Workers of other tests remove the sockets of killed ones from the folders that they share.
        tempfile.TemporaryDirectory(prefix="rpc-") as sockets,
        Workers(3, seconds=120, env={"XDG_RUNTIME_DIR": sockets}) as workers,
    ):
        url = f"file://{tmp_path}/store"
        for worker in workers:
            worker.call(steps.join_dynamic, url, **ENGINES_OF_MEMBERS[engine])
        os.kill(workers[2].pid, signal.SIGKILL)
        wait_until(lambda: has_ended(workers[2].pid))
        text = workers[0].start(steps.call, "worker2").error().text
        expected = ["ts process has ended"]
        if engine == "ZEROMQ over TCP":
            # It looks for the process only if another socket has the port now.
            expected.append("The worker has ended, or has left without")
        assert any(words in text for words in expected), text
        assert "process has ended or" not in text
        assert "RPC to 'worker2' failed: " in text
        wait_until(lambda: not workers[1].call(is_listed, "worker2"))
        text = workers[1].start(steps.call, "worker2").error().text
        assert text.endswith("because worker 'worker2' has ended without shutdown()."), text
        for worker in list(workers)[:2]:
            worker.call(steps.leave)


def join_with_changed_record(me: WorkerContext, url: str, **options: Any) -> None:
    """Join, while another program changes the first record of this worker in the store."""
    from rpc_backends_agents.roster import Roster

    announce = Roster.announce

    def changed(roster: Roster, *arguments: Any) -> Any:
        peer = announce(roster, *arguments)
        key = f"record/{peer.number}"
        roster._access.ask(lambda store: store.set(key, store.get(key) + b" "))
        return peer

    Roster.announce = changed  # type: ignore[method-assign]
    steps.join_dynamic(me, url, **options)


@pytest.mark.parametrize("engine", ["ZEROMQ", "UCX"])
def test_a_joiner_with_a_changed_record_gets_an_error(tmp_path: Path, engine: str) -> None:
    with Workers(2, seconds=120) as workers:
        url = f"file://{tmp_path}/store"
        workers[0].call(steps.join_dynamic, url, **ENGINES[engine])
        with pytest.raises(WorkerError, match="a record that differs from the one that RPC worker"):
            workers[1].call(join_with_changed_record, url, **ENGINES[engine])
        assert workers[0].call(steps.members) == {"worker0": 0}
        workers[0].call(steps.leave)


@pytest.mark.parametrize("engine", ["ZEROMQ over TCP"])
def test_a_hidden_member_is_back_when_it_answers(tmp_path: Path, engine: str) -> None:
    """The member is stopped until its connection counts as lost, and goes on after that."""
    options = {**ENGINES[engine], "heartbeat_timeout": 2}
    with Workers(2, seconds=120) as workers:
        url = f"file://{tmp_path}/store"
        for worker in workers:
            worker.call(steps.join_dynamic, url, **options)
        workers[0].call(steps.call, "worker1")
        os.kill(workers[1].pid, signal.SIGSTOP)
        try:
            wait_until(lambda: not workers[0].call(is_listed, "worker1"))
        finally:
            os.kill(workers[1].pid, signal.SIGCONT)
        wait_until(lambda: workers[0].call(is_listed, "worker1"))
        workers[0].call(steps.call, "worker1")
        for worker in workers:
            worker.call(steps.leave)
