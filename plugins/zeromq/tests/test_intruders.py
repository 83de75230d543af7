"""A process outside the group runs no code in a worker, is logged, and disturbs no member.

The intruders have everything that a member has except the secret: this package without its checks, the
group's store, and recorded traffic.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import rpc

from rpc_backend_zeromq import endpoints, identity, publication
from rpc_backends_agents.engine import canonical, sealed, secret
from rpc_backends_agents.engine.host import this_host, this_process
from support import steps
from support.workers import WorkerContext, Workers
from support.zeromq import endpoints as tcp_endpoints
from support.zeromq import eventually, exercise, join, logged_line, metric, run_counted, runs

pytestmark = pytest.mark.slow

#: Time limit in seconds for steps that take a moment.
TIME_LIMIT = 30.0


# --- intruders -------------------------------------------------------------------------------------


def make_file(path: str) -> None:
    """Make a file: the function that an intruder tries to call on a worker."""
    Path(path).touch()


def disable_checks() -> None:
    """Disable the check of addresses in this process, as an intruder would."""

    def unchecked(text: str, *_: Any, **__: Any) -> Any:
        return publication.Publication.load(text[text.index("{") :])

    publication.Publication.open = unchecked  # type: ignore[assignment]


def group_store(url: str) -> Any:
    """Return the store of the first group formed at a URL."""
    store = dist.FileStore(url.removeprefix("file://"), -1)
    return dist.PrefixStore("0", dist.PrefixStore("rpc_backends", store))


def published_record(url: str, rank: int, dynamic: bool) -> str:
    """Return the record that a worker has written to its group's store."""
    store = group_store(url)
    if not dynamic:
        return str(json.loads(store.get(f"exchange/1/{rank}")))
    for number in range(1, store.add("records", 0) + 1):
        record = json.loads(store.get(f"record/{number}"))
        if record["kind"] == "peer" and record["rank"] == rank:
            return str(record["address"])
    raise AssertionError(f"rank {rank} is not in the store")


def call_as_intruder(me: WorkerContext, address: str, folder: str, **options: Any) -> str:
    """Pose as worker1 and call worker0 at this address; return the error, or an empty text."""
    disable_checks()
    join(me, f"file://{folder}/other", name="worker1", rank=1, dynamic=True, **options)
    agent = rpc.api._get_current_rpc_agent()
    agent.transport.learn(0, "worker0", address, 0)
    agent.add_member("worker0", 0)
    try:
        rpc.rpc_sync(rpc.WorkerInfo("worker0", 0), make_file, args=(f"{folder}/mark",))
    except RuntimeError as error:
        return str(error)
    return ""


def join_as_intruder(
    me: WorkerContext, url: str, name: str, folder: str, **options: Any
) -> list[str]:
    """Join a dynamic group as an intruder, and call its members; return the errors."""
    disable_checks()
    join(me, url, name=name, rank=5 + me.index, dynamic=True, **options)
    errors = []
    for member in ("worker0", "worker1"):
        try:
            rpc.rpc_sync(member, make_file, args=(f"{folder}/mark",))
        except RuntimeError as error:
            errors.append(str(error))
    return errors


def write_member(
    me: WorkerContext, url: str, name: str, rank: int, worker_id: int, address: str
) -> None:
    """Write a worker into the member list of a dynamic group."""
    store = group_store(url)
    number = store.add("records", 1)
    record = {"kind": "peer", "name": name, "rank": rank, "id": worker_id, "address": address}
    store.set(f"record/{number}", json.dumps(record))
    store.set(f"record/{store.add('records', 1)}", json.dumps({"kind": "in", "number": number}))


def write_records(me: WorkerContext, url: str, texts: list[str]) -> None:
    """Write any text into the list of a dynamic group."""
    store = group_store(url)
    for text in texts:
        store.set(f"record/{store.add('records', 1)}", text)


def overwrite(me: WorkerContext, url: str, keys: dict[str, str]) -> None:
    """Write into the store of a group."""
    store = group_store(url)
    for key, value in keys.items():
        store.set(key, value)


# --- members ---------------------------------------------------------------------------------------


def member_names(me: WorkerContext) -> list[str]:
    """Return the names of the current members."""
    return sorted(info.name for info in rpc.api._get_current_rpc_agent().get_worker_infos())


def log_warnings(me: WorkerContext) -> None:
    """Write warnings to the output, where the test can read them."""
    logging.basicConfig(level=logging.WARNING)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture(params=[False, True], ids=["static", "dynamic"])
def dynamic(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@contextlib.contextmanager
def group(url: str, text: str | None, dynamic: bool, size: int = 2, **more: Any) -> Iterator[Any]:
    """Start a group of worker0 and worker1; the other workers are outside it."""
    with Workers(size) as workers:
        workers.run(log_warnings)
        for rank in (0, 1) if dynamic else ():
            workers[rank].call(join, url, dynamic=True, secret=text, unix_sockets=False, **more)
        if not dynamic:
            workers.run(join_static_of_two, url, on=(0, 1), secret=text, unix_sockets=False, **more)
        yield workers


def join_static_of_two(me: WorkerContext, url: str, **options: Any) -> None:
    steps.join(me, url, backend="ZEROMQ", world_size=2, **options)


def assert_group_works(workers: Any, folder: Path) -> None:
    """Check that worker0 and worker1 still work, and that no intruder ran code in them."""
    for me, peer in ((0, 1), (1, 0)):
        workers[me].call(exercise, f"worker{peer}")
        assert workers[me].call(member_names) == ["worker0", "worker1"]
    assert not (folder / "mark").exists()
    workers.run(steps.leave, on=(0, 1))


# --- intruders that call -----------------------------------------------------------------------------


def test_a_caller_without_the_secret_runs_nothing(
    url: str, text: str, tmp_path: Path, dynamic: bool
) -> None:
    """The intruder poses as worker1, with worker0's address from the store and keys of its own."""
    with group(url, text, dynamic, size=4) as workers:
        workers[0].call(exercise, "worker1")
        address = published_record(url, 0, dynamic)
        for intruder, options in ((2, {}), (3, {"secret": secret.generate()})):
            folder = tmp_path / str(intruder)
            folder.mkdir()
            error = workers[intruder].call(call_as_intruder, address, str(folder), **options)
            assert "the peer does not know this worker's key" in error
            assert not (folder / "mark").exists()
        logged_line(workers[0], "'worker0' refused a connection: 127.0.0.1: its public key is")
        assert workers[0].call(metric, "transport.zeromq.refused") >= 2
        assert_group_works(workers, tmp_path)


def test_without_encryption_the_same_call_runs(url: str, tmp_path: Path) -> None:
    """The intruder's call works, so in the test above only the key keeps it out."""
    with group(url, None, False, size=3, encryption=False) as workers:
        address = published_record(url, 0, dynamic=False)
        assert workers[2].call(call_as_intruder, address, str(tmp_path), encryption=False) == ""
        assert (tmp_path / "mark").exists()


def test_joining_without_the_secret_makes_no_member(url: str, text: str, tmp_path: Path) -> None:
    with group(url, text, True, size=4) as workers:
        for index, options, why in (
            (2, {}, "has no secret"),
            (3, {"secret": secret.generate()}, "has a different secret"),
        ):
            name = f"stranger{index}"
            errors = workers[index].call(join_as_intruder, url, name, str(tmp_path), **options)
            assert len(errors) == 2
            for worker in (workers[0], workers[1]):
                assert worker.call(member_names) == ["worker0", "worker1"]
                logged_line(worker, f"RPC worker '{name}' is not let in", why)
                logged_line(worker, "refused a connection: 127.0.0.1")
        assert_group_works(workers, tmp_path)


# --- intruders that write to the store ---------------------------------------------------------------


def forged_publication(text: str) -> publication.Publication:
    """Return a member's publication with another process's key and address."""
    public, _ = identity.session_keys()
    fields = vars(publication.Publication.load(text[text.index("{") :]))
    changed = {"public_key": public.decode(), "tcp": ("tcp://127.0.0.1:1",)}
    return publication.Publication(**{**fields, **changed})


def forgeries(genuine: str) -> dict[str, str]:
    """Return forged texts that could replace a record, by the error that each must cause."""
    other_secret = secret.parse(secret.generate(), "the intruder")
    forged = forged_publication(genuine)
    return {
        "its proof is wrong": genuine[: genuine.index("{")] + canonical.dump(forged),
        "has a different secret": forged.seal(other_secret),
        "has no secret": forged.seal(None),
        "cannot be read": "garbage",
    }


def test_a_forged_address_in_the_store_diverts_no_call(
    url: str, text: str, tmp_path: Path, dynamic: bool
) -> None:
    with group(url, text, dynamic, size=3) as workers:
        pid = workers[1].pid
        for why, address in forgeries(published_record(url, 1, dynamic)).items():
            if dynamic:
                workers[2].call(write_member, url, "worker1", 1, 9, address)
                assert workers[0].call(member_names) == ["worker0", "worker1"]
                logged_line(workers[0], "RPC worker 'worker1' is not let in", why)
            else:  # the store is read only once, so there is nothing to log
                answer = json.dumps({"payloads": [address, address]})
                keys = {"exchange/1/1": json.dumps(address), "exchange/1/all": answer}
                workers[2].call(overwrite, url, keys)
            assert workers[0].call(steps.call, "worker1") == f"worker1 {pid}"
        if dynamic:
            genuine = published_record(url, 1, dynamic=True)
            workers[2].call(write_member, url, "worker1", 1, 1, genuine)
            assert workers[0].call(member_names) == ["worker0", "worker1"]
            logged_line(workers[0], "its 'id' is 1, which another worker has had")
            # The intruder writes worker1's genuine record under another name.
            workers[2].call(write_member, url, "stranger", 7, 7, genuine)
            assert workers[0].call(member_names) == ["worker0", "worker1"]
            logged_line(
                workers[0], "worker 'stranger' is not let in", "is that of worker 'worker1'"
            )
        assert_group_works(workers, tmp_path)


def test_invalid_records_do_not_prevent_joining(url: str, text: str, tmp_path: Path) -> None:
    """Any process that reaches the store can write such records; later workers still become members."""
    records = [
        "", "nonsense", "[]", "{}", "null", "[" * 100_000, '{"kind": []}', '{"kind": "peer"}',
        '{"kind": "in"}', '{"kind": "out", "number": "x"}', '{"kind": "in", "number": 4711}',
        '{"kind": "peer", "name": 1, "rank": "x", "id": [], "address": {}}',
        '{"kind": "peer", "name": "x", "rank": 1, "id": 99999999999, "address": ""}',
    ]  # fmt: skip
    with group(url, text, True, size=4) as workers:
        workers[3].call(write_records, url, records)
        workers[2].call(join, url, dynamic=True, secret=text, unix_sockets=False)
        for worker in (workers[0], workers[1], workers[2]):
            assert worker.call(member_names) == ["worker0", "worker1", "worker2"]
            logged_line(
                worker,
                "in the member list, which is not valid",
                "Another program writes to the store",
            )
        workers[0].call(exercise, "worker2")
        workers[2].call(steps.leave)
        assert_group_works(workers, tmp_path)


@pytest.mark.parametrize("theirs", ["none", "another"])
def test_addresses_forged_before_the_start_only_prevent_it(
    url: str, text: str, tmp_path: Path, theirs: str
) -> None:
    """The intruder chooses the group's nonce and writes all addresses; the start fails in all workers."""
    with Workers(3) as workers:
        another_secret = secret.generate() if theirs == "another" else None
        workers[2].call(forge_addresses, url, another_secret)
        for failed in workers.errors(
            join_static_of_two, url, on=(0, 1), secret=text, unix_sockets=False
        ):
            assert "secret" in failed.text
            assert FAILED[theirs] in failed.text
        assert not workers[2].call(was_connected)


FAILED = {"none": "has no secret", "another": "has a different secret"}


def forge_addresses(me: WorkerContext, url: str, another_secret: str | None) -> None:
    """Listen, and write this address for worker0 and worker1 before they start."""
    store = group_store(url)
    store.set("zeromq/nonce", "mine")
    listening = socket.create_server(("127.0.0.1", 0))
    me.memory["listening"] = listening
    port = listening.getsockname()[1]
    written = []
    for rank in (0, 1):
        public, _ = identity.session_keys()
        mine = publication.Publication(
            group=hashlib.sha256(b"mine").hexdigest(),
            worker_id=rank,
            name=f"worker{rank}",
            rank=rank,
            host=this_host(),
            tcp=(f"tcp://127.0.0.1:{port}",),
            unix=None,
            public_key=public.decode(),
            session=sealed.new_session(),
            max_message_bytes=1 << 30,
            process=this_process(),
            place="",
        )
        theirs = None if another_secret is None else secret.parse(another_secret, "the intruder")
        written.append(mine.seal(theirs))
    store.set("exchange/1/all", json.dumps({"payloads": written}))


def was_connected(me: WorkerContext) -> bool:
    """Return whether a worker has connected to the forged address."""
    listening = me.memory["listening"]
    listening.setblocking(False)
    try:
        listening.accept()[0].close()
    except BlockingIOError:
        return False
    return True


# --- intruders that replay traffic -------------------------------------------------------------------


class Recorder:
    """A proxy in the test's process: forwards a connection, and records what the caller sends."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.target: tuple[str, int] | None = None
        #: The data that the caller has sent, in the pieces in which it arrived.
        self.pieces: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError), self._listening:
            caller, _ = self._listening.accept()
            assert self.target is not None
            there = socket.create_connection(self.target)
            threading.Thread(target=self._pass, args=(there, caller, None), daemon=True).start()
            self._pass(caller, there, self.pieces)

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, kept: list[bytes] | None) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                if kept is not None:
                    kept.append(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def connect_through(me: WorkerContext, port: int) -> None:
    """Make this worker connect to this port for any peer."""
    endpoints.choose = lambda *_: f"tcp://127.0.0.1:{port}"  # type: ignore[assignment]


def replay(target: tuple[str, int], pieces: list[bytes], *, wait_for_replies: bool) -> bytes:
    """Send the recorded pieces, at once or waiting for a reply to each; return all replies."""
    replies = b""
    with socket.create_connection(target, timeout=TIME_LIMIT) as there:
        for piece in pieces:
            with contextlib.suppress(OSError):  # the worker may have closed the connection
                there.sendall(piece)
                if wait_for_replies:
                    there.settimeout(0.2)
                    replies += there.recv(1 << 16)
        with contextlib.suppress(OSError):
            there.settimeout(TIME_LIMIT)
            there.shutdown(socket.SHUT_WR)
            while data := there.recv(1 << 16):
                replies += data
    return replies


def test_a_replayed_connection_runs_nothing(url: str, text: str, tmp_path: Path) -> None:
    recorder = Recorder()
    with Workers(2) as workers:
        workers.run(log_warnings)
        workers[1].call(connect_through, recorder.port)
        workers.run(join_static_of_two, url, secret=text, unix_sockets=False)
        host, _, port = workers[0].call(tcp_endpoints)[0].removeprefix("tcp://").rpartition(":")
        recorder.target = target = (host, int(port))
        workers[1].call(steps.call, "worker0", run_counted, "recorded")
        assert workers[0].call(runs) == {"recorded": 1}

        pieces = list(recorder.pieces)
        assert sum(map(len, pieces)) > 500  # a handshake and a call
        replay(target, pieces, wait_for_replies=False)
        # The hello is bound to no key, so worker0 answers it: with other random numbers and keys.
        assert replay(target, pieces, wait_for_replies=True)
        logged_line(workers[0], "'worker0' refused a connection", "a connection to tcp://")
        failures = "transport.zeromq.failed_handshakes"
        eventually(
            lambda: workers[0].call(metric, failures) >= 2, lambda: "both handshakes have failed"
        )

        assert workers[0].call(runs) == {"recorded": 1}
        assert workers[1].call(steps.call, "worker0", run_counted, "recorded") == "recorded"
        assert workers[0].call(runs) == {"recorded": 2}
        assert_group_works(workers, tmp_path)
