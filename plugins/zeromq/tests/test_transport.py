"""The whole transport of a worker, with real sockets, keys and files."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
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

from rpc_backend_zeromq import transport as transports
from rpc_backend_zeromq._native import Transport, TransportError, make_keys
from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
from rpc_backend_zeromq.transport import ZeroMQTransport
from rpc_backends_agents.engine import secret
from rpc_backends_agents.engine.errors import (
    AddressError,
    ExposureError,
    PublicationError,
    SecretError,
)
from rpc_backends_agents.engine.host import Process
from rpc_backends_core.spi import Group, Member, SettingError, StoreError, join_group
from rpc_backends_processes import free_port
from support import steps, zeromq
from support.command import run_python, wait_until
from support.networks import Host, enter
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

SOON = 10.0


class TransportGroup:
    """The transports of one group: their store, and what must be closed after the test."""

    def __init__(self, size: int = 2) -> None:
        self.store = dist.HashStore()
        self.members = tuple(Member(f"w{rank}", rank, rank, rank) for rank in range(size))
        self.transports: list[ZeroMQTransport] = []

    def transport(self, rank: int = 0, *, dynamic: bool = False, **options: Any) -> ZeroMQTransport:
        given = ZeroMQRpcBackendOptions(**{"init_method": "file:///x", **options})
        members = () if dynamic else self.members
        size = None if dynamic else len(members)
        group = Group(self.store, f"w{rank}", rank, size, members, 10.0, rank)
        transport = ZeroMQTransport(given, group)
        self.transports.append(transport)
        return transport

    def start(self, *each: dict[str, Any], **options: Any) -> list[ZeroMQTransport]:
        """Return transports that listen and have learned each other."""
        each = each or ({},) * len(self.members)
        transports = [self.transport(rank, **{**options, **own}) for rank, own in enumerate(each)]
        texts = [transport.listen(rank, f"w{rank}") for rank, transport in enumerate(transports)]
        for rank, transport in enumerate(transports):
            for other, text in enumerate(texts):
                if other != rank:
                    transport.learn(other, f"w{other}", text)
        return transports


@pytest.fixture
def group() -> Iterator[TransportGroup]:
    transport_group = TransportGroup()
    yield transport_group
    for transport in transport_group.transports:
        transport.close(0)


def send(transport: ZeroMQTransport, peer: int, data: bytes) -> None:
    transport._native.send(peer, [data], False)


def received(transport: ZeroMQTransport) -> tuple[str, int, bytes, str]:
    event = transport._native.receive(SOON)
    assert event is not None, "no event"
    kind, peer, parts, reason = event
    return kind, peer, b"".join(map(bytes, parts)), reason


def tcp_port(transport: ZeroMQTransport) -> int:
    return int(transport.metrics()["zeromq.listens_on"].rpartition(":")[2])


def listens(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((address, port)) == 0


def open_files() -> set[tuple[str, str]]:
    """Return the numbers of the open files, and what they are."""
    files = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists the folder
            files.add((entry.name, str(entry.readlink())))
    return files


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("unix_sockets", [True, False])
@pytest.mark.parametrize("encryption", [None, False])
def test_workers_on_one_host_exchange_messages(
    group: TransportGroup, unix_sockets: bool, encryption: bool | None
) -> None:
    transport0, transport1 = group.start(unix_sockets=unix_sockets, encryption=encryption)

    send(transport0, 1, b"hello")
    assert received(transport1) == ("message", 0, b"hello", "")
    send(transport1, 0, b"you")
    assert received(transport0) == ("message", 1, b"you", "")

    metrics = transport0.metrics()
    assert metrics["zeromq.encryption"] == ("none" if encryption is False else "TLS 1.3")
    assert bool(metrics["zeromq.unix_socket"]) is unix_sockets
    assert metrics["zeromq.listens_on"].startswith("tcp://127.0.0.1:")


def test_requested_encryption_replaces_unix_sockets(group: TransportGroup) -> None:
    transport0, transport1 = group.start(encryption=True)

    send(transport0, 1, b"hello")

    assert received(transport1) == ("message", 0, b"hello", "")
    assert (
        transport0.metrics()["zeromq.unix_socket"]
        == transport1.metrics()["zeromq.unix_socket"]
        == ""
    )


def test_secret_and_secret_file_are_equivalent(
    group: TransportGroup, text: str, secret_file: Path
) -> None:
    transport0, transport1 = group.start({"secret": text}, {"secret_file": str(secret_file)})

    send(transport0, 1, b"hello")

    assert received(transport1)[2] == b"hello"


def test_an_early_caller_is_admitted_once_learned(group: TransportGroup) -> None:
    transport0, transport1 = group.transport(0), group.transport(1)
    texts = [transport0.listen(0, "w0"), transport1.listen(1, "w1")]
    transport0.learn(1, "w1", texts[1])

    send(transport0, 1, b"early")
    later = threading.Timer(0.2, lambda: transport1.learn(0, "w0", texts[0]))
    later.start()

    assert received(transport1) == ("message", 0, b"early", "")
    later.join()


@pytest.mark.parametrize("unix_sockets", [True, False])
def test_a_dynamic_group_looks_up_unknown_keys(group: TransportGroup, unix_sockets: bool) -> None:
    transport0, transport1 = (
        group.transport(n, dynamic=True, unix_sockets=unix_sockets) for n in (0, 1)
    )
    texts = [transport0.listen(0, "w0"), transport1.listen(1, "w1")]
    transport0.learn(1, "w1", texts[1], rank=1)
    asked: list[bytes] = []

    def look(key: bytes) -> None:
        asked.append(key)
        transport1.learn(0, "w0", texts[0], rank=0)

    transport1.on_unknown_key = look
    send(transport0, 1, b"hello")

    assert received(transport1) == ("message", 0, b"hello", "")
    assert len(asked) == 1
    assert unix_sockets or asked == [transport0._public_key]


def test_a_forgotten_worker_is_not_admitted_again(
    group: TransportGroup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rpc_backends.zeromq")
    transport0, transport1 = group.start()
    transport1.forget(0)

    with contextlib.suppress(
        TransportError
    ):  # the connection may be refused before the message is sent
        send(transport0, 1, b"hello")

    assert received(transport0)[0] == "lost"
    assert transport1._native.receive(0) is None
    assert transport1.metrics()["zeromq.refused"] != "0"
    wait_until(lambda: "worker 'w1' refused a connection" in caplog.text)


# --- conflicting settings, stale and forged addresses --------------------------------------------


def errors_on_both_sides(
    group: TransportGroup, first: dict[str, Any], second: dict[str, Any]
) -> list[str]:
    transport0, transport1 = group.transport(0, **first), group.transport(1, **second)
    texts = [transport0.listen(0, "w0"), transport1.listen(1, "w1")]
    with pytest.raises(PublicationError) as here:
        transport0.learn(1, "w1", texts[1])
    with pytest.raises(PublicationError) as there:
        transport1.learn(0, "w0", texts[0])
    return [str(here.value), str(there.value)]


def test_a_secret_on_one_side_is_an_error_on_both(group: TransportGroup, text: str) -> None:
    here, there = errors_on_both_sides(group, {"secret": text}, {})

    assert "worker 'w1' (rank 1) has no secret, and worker 'w0' has one" in here
    assert "worker 'w0' (rank 0) has a secret" in there
    assert text not in here + there


def test_different_secrets_are_an_error_on_both_sides(group: TransportGroup, text: str) -> None:
    for why in errors_on_both_sides(group, {"secret": text}, {"secret": secret.generate()}):
        assert "has a different secret" in why


def test_encryption_on_one_side_is_an_error_on_both(group: TransportGroup) -> None:
    here, there = errors_on_both_sides(group, {}, {"encryption": False})

    assert "worker 'w0' encrypts and worker 'w1' (rank 1) does not" in here
    assert "worker 'w0' (rank 0) encrypts and worker 'w1' does not" in there


@pytest.mark.parametrize("with_secret", [True, False])
def test_an_address_of_an_earlier_group_is_refused(
    group: TransportGroup, text: str, with_secret: bool
) -> None:
    options = {"secret": text} if with_secret else {}
    old = TransportGroup()
    earlier = old.transport(1, **options).listen(1, "w1")
    old.transports[0].close(0)
    transport0 = group.transport(0, **options)
    transport0.listen(0, "w0")

    with pytest.raises(PublicationError, match="belongs to another group"):
        transport0.learn(1, "w1", earlier)


def test_a_chosen_nonce_does_not_revive_old_addresses(
    text: str,
) -> None:
    """A nonce that an intruder has written to the store before the start is not used."""
    options = ZeroMQRpcBackendOptions(init_method="file:///x", secret=text)
    transports = []
    for _ in range(2):
        store = dist.HashStore()
        store.set("rpc_backends/0/zeromq/nonce", "the intruder's choice")
        group = join_group(store, "w0", 0, 1, backend="ZEROMQ", timeout=SOON, join_timeout=SOON)
        transports.append(ZeroMQTransport(options, group))
    texts = [transport.listen(0, "w0") for transport in transports]

    with pytest.raises(PublicationError, match="belongs to another group"):
        transports[1].learn(0, "w0", texts[0])
    for transport in transports:
        transport.close(0)


def test_a_stale_record_brings_no_call_to_its_port(group: TransportGroup, text: str) -> None:
    """Another process listens at the old address, and it does not have the keys of the old session."""
    port = str(free_port())  # the kernel gives it to no other process meanwhile
    transport0 = group.transport(0, dynamic=True, secret=text)
    old, there = (group.transport(1, dynamic=True, secret=text, ports=port) for _ in range(2))
    transport0.listen(0, "w0")
    earlier = old.listen(1, "w1")
    old.close(0)
    there.listen(1, "w1")

    transport0.learn(1, "w1", earlier, rank=1)
    with contextlib.suppress(TransportError):  # the peer may already be lost
        send(transport0, 1, b"hello")

    assert received(transport0)[0] == "lost"
    assert there._native.receive(0) is None


def test_two_workers_cannot_have_the_same_key(group: TransportGroup) -> None:
    transport0, transport1 = group.transport(0, dynamic=True), group.transport(1, dynamic=True)
    transport0.listen(0, "w0")
    theirs = transport1.listen(1, "w1")
    transport0.learn(1, "w1", theirs, rank=1)
    same = theirs.replace('"name":"w1"', '"name":"w2"').replace('"rank":1', '"rank":2')
    same = same.replace('"worker_id":1', '"worker_id":2')

    with pytest.raises(PublicationError, match="worker 'w2' has the key of worker 1"):
        transport0.learn(2, "w2", same, rank=2)


def test_an_address_of_another_worker_is_refused(group: TransportGroup, text: str) -> None:
    transport0, transport1 = (group.transport(rank, secret=text) for rank in range(2))
    theirs = transport1.listen(1, "w1")
    mine = transport0.listen(0, "w0")

    for peer, name, address, rank in (
        (2, "w1", theirs, 1),
        (1, "w2", theirs, 1),
        (1, "w1", theirs, 2),
        (1, "w1", mine, 1),
    ):
        with pytest.raises(PublicationError, match="is that of worker"):
            transport0.learn(peer, name, address, rank=rank)


def test_the_error_for_invalid_settings_names_the_worker(
    group: TransportGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_ZEROMQ_SECRET", "x")
    with pytest.raises(
        SecretError, match="worker 'w1' cannot start: RPC_BACKENDS_ZEROMQ_SECRET is"
    ):
        group.transport(1)
    monkeypatch.setenv("RPC_BACKENDS_ZEROMQ_SECRET", "")
    monkeypatch.setenv("RPC_BACKENDS_ZEROMQ_PORTS", "x")
    with pytest.raises(SettingError, match="worker 'w1' cannot start: RPC_BACKENDS_ZEROMQ_PORTS"):
        group.transport(1)


# --- where it listens ----------------------------------------------------------------------------


def test_by_default_only_this_host_can_connect(group: TransportGroup) -> None:
    transport0 = group.transport()
    transport0.listen(0, "w0")

    assert transport0.metrics()["zeromq.listens_on"].startswith("tcp://127.0.0.1:")
    assert listens(tcp_port(transport0))


def test_the_port_is_a_free_one_of_the_range(group: TransportGroup) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        transport0 = group.transport(0, ports=f"{first}-{first + 20}")
        transport0.listen(0, "w0")

        assert first < tcp_port(transport0) <= first + 20


def test_a_range_without_a_free_port_is_an_error(group: TransportGroup) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(AddressError, match=rf"no port of {port} is free on 127\.0\.0\.1"):
            group.transport(0, ports=port).listen(0, "w0")


def test_required_unix_sockets_without_a_folder_are_an_error(
    group: TransportGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rpc_backend_zeromq import unix_sockets

    monkeypatch.setattr(unix_sockets, "_places", lambda _: [])

    group.transport(0).listen(0, "w0")
    with pytest.raises(AddressError, match="no folder for a Unix socket"):
        group.transport(1, unix_sockets=True).listen(1, "w1")


# --- close ---------------------------------------------------------------------------------------


def test_close_leaves_no_file_thread_or_port(group: TransportGroup) -> None:
    group.start()  # the first start also opens what a process opens only once
    for transport in group.transports:
        transport.close(0)
    files, threads = open_files(), threading.active_count()

    transport0, transport1 = TransportGroup().start()
    send(transport0, 1, b"hello")
    received(transport1)
    folder = Path(transport0.metrics()["zeromq.unix_socket"]).parent
    port = tcp_port(transport0)
    assert folder.exists()
    for transport in (transport0, transport1):
        transport.close(0)
        transport.close(0)

    assert not folder.exists()
    assert not listens(port)
    # Their threads may close the last ones a moment later.
    wait_until(lambda: open_files() <= files)
    wait_until(lambda: threading.active_count() <= threads)


def test_a_failed_start_leaves_no_file_open(
    group: TransportGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.start()
    for transport in group.transports:
        transport.close(0)
    files = open_files()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        failing = group.transport(0, ports=taken.getsockname()[1])
        with pytest.raises(AddressError):
            failing.listen(0, "w0")

    # Its thread may close the last one a moment later, and garbage of other tests at any time.
    wait_until(lambda: open_files() <= files)


def test_a_closed_transport_is_garbage_collected(group: TransportGroup) -> None:
    transport0 = group.transport()
    transport0.on_unknown_key = lambda key, held=transport0: held.metrics()
    transport0.listen(0, "w0")
    gone = weakref.ref(transport0)

    transport0.close(0)
    group.transports.clear()
    del transport0
    gc.collect()

    assert gone() is None


def test_a_hanging_store_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging:
        def compare_set(self, *_: Any) -> bytes:
            threading.Event().wait()
            return b""

    monkeypatch.setattr("rpc_backends_agents.engine.guarded_transport.JOIN_TIMEOUT", 0.3)
    group = Group(Hanging(), "w0", 0, None, (), 10.0, 0)
    transport = ZeroMQTransport(ZeroMQRpcBackendOptions(init_method="file:///x"), group)
    try:
        with pytest.raises(StoreError, match=r"has not answered for 0\.3 s"):
            transport.listen(0, "w0")
    finally:
        transport.close(0)


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "os.kill(os.getpid(), 2)"])
def test_an_exit_without_close_leaves_no_file(ending: str) -> None:
    code = f"""
import torch.distributed as dist
from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
from rpc_backend_zeromq.transport import ZeroMQTransport
from rpc_backends_core.spi import Group
options = ZeroMQRpcBackendOptions(init_method="file:///x")
transport = ZeroMQTransport(options, Group(dist.HashStore(), "w0", 0, None, (), 10.0, 0))
transport.listen(0, "w0")
print(transport.metrics()["zeromq.unix_socket"], flush=True)
{ending}
"""
    done = run_python("-c", code)

    path = Path(done.stdout.strip())
    assert path.is_absolute(), done.stderr
    assert not path.parent.exists()


def test_logs_attributes_and_metrics_hide_the_secret(
    group: TransportGroup, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    transport0, transport1 = group.start(secret=text)

    seen = " ".join(
        [caplog.text, repr(vars(transport0)), repr(vars(transport1)), repr(transport0.metrics())]
    )

    assert text.removeprefix(secret.PREFIX)[:20] not in seen
    published = group.transport(0, secret=text).listen(0, "w0")
    assert text.removeprefix(secret.PREFIX)[:20] not in published


# --- several hosts -------------------------------------------------------------------------------


def listen(me: WorkerContext, init_method: str, environ: dict[str, str]) -> str:
    """Start a transport with these variables; return its address."""
    os.environ.update(environ)
    store = dist.HashStore()
    store.set("zeromq/nonce", "the same")
    members = tuple(Member(f"w{rank}", rank, rank, rank) for rank in range(2))
    group = Group(store, f"w{me.index}", me.index, 2, members, SOON, me.index)
    transport = ZeroMQTransport(ZeroMQRpcBackendOptions(init_method=init_method), group)
    me.memory["transport"] = transport
    return transport.listen(me.index, f"w{me.index}")


def greet(me: WorkerContext, address: str) -> str:
    """Learn the other worker and send it a greeting; return the greeting that arrives."""
    transport = me.memory["transport"]
    other = 1 - me.index
    transport.learn(other, f"w{other}", address)
    send(transport, other, b"hello from %d" % me.index)
    return received(transport)[2].decode()


def hide_process(me: WorkerContext) -> None:
    """Make this worker look like one whose process no other worker can see."""
    vars(transports)["this_process"] = lambda: Process(0, 0, "")


def reach(me: WorkerContext, name: str) -> None:
    """Call a worker."""
    rpc.rpc_sync(name, os.getpid)


def call_fails(me: WorkerContext, name: str) -> None:
    """Check that a worker cannot be called."""
    with pytest.raises(RuntimeError):
        rpc.rpc_sync(name, os.getpid)


def test_nothing_connects_to_the_port_of_a_killed_worker(tmp_path: Path) -> None:
    """Another program may have it, which data that is not its own may harm: a TensorPipe agent ends."""
    with Workers(3) as workers, contextlib.ExitStack() as stack:
        workers[2].call(hide_process)
        ports = [free_port() for _ in range(2)]  # the kernel gives them to no other process
        workers.run(
            zeromq.join,
            f"file://{tmp_path}/store",
            unix_sockets=False,
            only={index: {"ports": str(port)} for index, port in enumerate(ports, 1)},
        )
        for index in (2, 1):
            workers[0].call(reach, f"worker{index}")
            workers[index].kill()
            workers[0].call(call_fails, f"worker{index}")
        seen, hidden = (
            stack.enter_context(socket.create_server(("127.0.0.1", port))) for port in ports
        )

        for _ in range(3):  # of one that is hidden, the port is all that is known
            hidden.settimeout(60)
            hidden.accept()[0].close()

        seen.setblocking(False)
        with pytest.raises(BlockingIOError):  # no connection waits for accept()
            seen.accept()
        workers[0].call(steps.leave, graceful=False)


def close(me: WorkerContext) -> None:
    """Close the transport."""
    me.memory["transport"].close(0)


@contextlib.contextmanager
def listening(hosts: Any, init_method: str, *environs: dict[str, str]) -> Iterator[Any]:
    """Start a transport on each host; yield their workers and their addresses."""
    with Workers(len(hosts)) as workers:
        for worker, host in zip(workers, hosts, strict=True):
            worker.call(enter, Host(host.name))
        addresses = [
            worker.call(listen, init_method, environ)
            for worker, environ in zip(workers, environs, strict=True)
        ]
        yield workers, addresses
        workers.run(close)


def meet(hosts: Any, init_method: str, *environs: dict[str, str]) -> list[str]:
    """Let transports on two hosts greet each other; return the greetings that arrive."""
    with listening(hosts, init_method, *environs) as (workers, addresses):
        greeting = [
            worker.start(greet, address)
            for worker, address in zip(workers, reversed(addresses), strict=True)
        ]
        return [step.result() for step in greeting]


@pytest.mark.parametrize("family", ["four", "six"])
def test_workers_with_a_secret_communicate_between_hosts(
    two_hosts: Any, text: str, family: str
) -> None:
    host0, _ = two_hosts
    address = host0.four if family == "four" else f"[{host0.six}]"
    environ = {"RPC_BACKENDS_ZEROMQ_SECRET": text, "RPC_BACKENDS_ZEROMQ_UNIX_SOCKETS": "0"}

    greetings = meet(two_hosts, f"tcp://{address}:29500", environ, environ)

    assert greetings == ["hello from 1", "hello from 0"]


def test_workers_communicate_over_link_local_addresses(two_hosts: Any, text: str) -> None:
    environs = [
        {
            "RPC_BACKENDS_ZEROMQ_SECRET": text,
            "RPC_BACKENDS_ZEROMQ_ADDRESS": f"{link_local(host)}%{host.interface}",
            "RPC_BACKENDS_ZEROMQ_UNIX_SOCKETS": "0",
        }
        for host in two_hosts
    ]

    greetings = meet(two_hosts, "file:///x", *environs)

    assert greetings == ["hello from 1", "hello from 0"]


def link_local(host: Any) -> str:
    address: str = host.run(
        """
import json
from rpc_backends_core.spi import interfaces
print(json.dumps([i.address for i in interfaces() if i.address.startswith("fe80")][0]))
"""
    )
    return address


def test_containers_with_a_shared_folder_use_unix_sockets(two_hosts: Any) -> None:
    """These hosts share a kernel and /tmp, and each listens on its own loopback interface only."""
    assert meet(two_hosts, "file:///x", {}, {}) == ["hello from 1", "hello from 0"]


def test_without_a_secret_a_start_on_another_host_fails(two_hosts: Any) -> None:
    host0, host1 = two_hosts
    with Workers(1) as workers:
        workers.run(enter, host1)
        [failure] = workers.errors(listen, f"tcp://{host0.four}:29500", {})

    assert failure.kinds[0] == ExposureError.__name__
    assert "worker 'w0' cannot start: it would listen on" in failure.text
    assert "rpc-backends secret" in failure.text


def test_workers_on_a_trusted_network_need_no_secret(two_hosts: Any) -> None:
    host0, _ = two_hosts
    environ = {
        "RPC_BACKENDS_ZEROMQ_TRUSTED_NETWORK": "1",
        "RPC_BACKENDS_ZEROMQ_UNIX_SOCKETS": "0",
        "RPC_BACKENDS_ZEROMQ_ENCRYPTION": "0",
    }

    greetings = meet(two_hosts, f"tcp://{host0.four}:29500", environ, environ)

    assert greetings == ["hello from 1", "hello from 0"]


def test_loopback_addresses_fail_between_hosts(two_hosts: Any, text: str) -> None:
    environ = {"RPC_BACKENDS_ZEROMQ_SECRET": text, "RPC_BACKENDS_ZEROMQ_UNIX_SOCKETS": "0"}

    with listening(two_hosts, "file:///x", environ, environ) as (workers, addresses):
        here, there = (
            worker.start(greet, address).error()
            for worker, address in zip(workers, reversed(addresses), strict=True)
        )

    assert here.kinds[0] == there.kinds[0] == AddressError.__name__
    assert "worker 'w0' cannot reach worker 'w1' (rank 1): it listens on 127.0.0.1" in here.text
    assert "Set the option address or interface of worker 'w1'" in here.text


def test_a_stranger_with_its_own_key_is_refused(
    group: TransportGroup, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rpc_backends.zeromq")
    transport0, _ = group.start(secret=text)
    public, private = make_keys()
    stranger = Transport(
        public_key=public,
        secret_key=private,
        handshake_timeout=SOON,
        **ZeroMQRpcBackendOptions(heartbeat_timeout=SOON).native(),
    )
    try:
        stranger.start(1)
        stranger.learn(0, f"tcp://127.0.0.1:{tcp_port(transport0)}", transport0._public_key)
        with contextlib.suppress(TransportError):  # it may be refused before the message is queued
            stranger.send(0, [b"pickle"], False)
        until = time.monotonic() + SOON
        while transport0.metrics()["zeromq.refused"] == "0":
            assert time.monotonic() < until, "the stranger is not refused"
            assert transport0._native.receive(0.01) is None
        assert transport0._native.receive(0) is None
    finally:
        stranger.close(0)

    wait_until(lambda: "refused a connection: 127.0.0.1" in caplog.text)
    assert public.decode() in caplog.text
