"""The complete transport of a worker, with real sockets, keys and files."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from rpc_backend_zeromq import secret
from rpc_backend_zeromq import transport as transport_module
from rpc_backend_zeromq._native import TransportError
from rpc_backend_zeromq.errors import AddressError, ExposureError, PublicationError, SecretError
from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
from rpc_backend_zeromq.transport import ZeroMQTransport
from rpc_backends_core.spi import Group, Member, SettingError, StoreError, join_group

pytestmark = pytest.mark.slow

SOON = 10.0


class Place:
    """The store of a test's transports, and the transports to close."""

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
        """Start workers that know each other."""
        each = each or ({},) * len(self.members)
        transports = [self.transport(rank, **{**options, **own}) for rank, own in enumerate(each)]
        texts = [one.listen(rank, f"w{rank}") for rank, one in enumerate(transports)]
        for rank, one in enumerate(transports):
            for other, text in enumerate(texts):
                if other != rank:
                    one.learn(other, f"w{other}", text)
        return transports


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place()
    yield found
    for transport in found.transports:
        transport.close(0)


def send(transport: ZeroMQTransport, peer: int, data: bytes) -> None:
    transport._native.send(peer, [data], False)


def received(transport: ZeroMQTransport) -> tuple[str, int, bytes, str]:
    event = transport._native.receive(SOON)
    assert event is not None, "nothing came"
    kind, peer, parts, reason = event
    return kind, peer, b"".join(map(bytes, parts)), reason


def tcp_port(transport: ZeroMQTransport) -> int:
    return int(transport.metrics()["zeromq.listens_on"].rpartition(":")[2])


def listens(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((address, port)) == 0


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("unix_sockets", [True, False])
@pytest.mark.parametrize("encryption", [None, False])
def test_workers_on_one_host_exchange_messages(
    place: Place, unix_sockets: bool, encryption: bool | None
) -> None:
    one, two = place.start(unix_sockets=unix_sockets, encryption=encryption)

    send(one, 1, b"hello")
    assert received(two) == ("message", 0, b"hello", "")
    send(two, 0, b"you")
    assert received(one) == ("message", 1, b"you", "")

    metrics = one.metrics()
    assert metrics["zeromq.encryption"] == ("none" if encryption is False else "CURVE")
    assert bool(metrics["zeromq.unix_socket"]) is unix_sockets
    assert metrics["zeromq.listens_on"].startswith("tcp://127.0.0.1:")


def test_requested_encryption_replaces_unix_sockets(place: Place) -> None:
    one, two = place.start(encryption=True)

    send(one, 1, b"hello")

    assert received(two) == ("message", 0, b"hello", "")
    assert one.metrics()["zeromq.unix_socket"] == two.metrics()["zeromq.unix_socket"] == ""


def test_secret_and_secret_file_are_equivalent(place: Place, text: str, secret_file: Path) -> None:
    one, two = place.start({"secret": text}, {"secret_file": str(secret_file)})

    send(one, 1, b"hello")

    assert received(two)[2] == b"hello"


def test_an_early_caller_is_admitted_once_learned(place: Place) -> None:
    one, two = place.transport(0), place.transport(1)
    texts = [one.listen(0, "w0"), two.listen(1, "w1")]
    one.learn(1, "w1", texts[1])

    send(one, 1, b"early")
    later = threading.Timer(0.5, lambda: two.learn(0, "w0", texts[0]))
    later.start()

    assert received(two) == ("message", 0, b"early", "")
    later.join()


@pytest.mark.parametrize("unix_sockets", [True, False])
def test_a_dynamic_group_looks_up_unknown_keys(place: Place, unix_sockets: bool) -> None:
    one, two = (place.transport(n, dynamic=True, unix_sockets=unix_sockets) for n in (0, 1))
    texts = [one.listen(0, "w0"), two.listen(1, "w1")]
    one.learn(1, "w1", texts[1], rank=1)
    asked: list[bytes] = []

    def look(key: bytes) -> None:
        asked.append(key)
        two.learn(0, "w0", texts[0], rank=0)

    two.on_unknown_key = look
    send(one, 1, b"hello")

    assert received(two) == ("message", 0, b"hello", "")
    assert len(asked) == 1
    assert unix_sockets or asked == [one._public_key]


def test_a_forgotten_worker_is_not_admitted_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rpc_backends.zeromq")
    one, two = place.start()
    two.forget(0)

    with contextlib.suppress(TransportError):  # it may be refused before it sends
        send(one, 1, b"hello")

    assert received(one)[0] == "lost"
    assert two._native.receive(0.2) is None
    assert two.metrics()["zeromq.refused"] != "0"
    two.close(0)  # waits for what is being told
    assert "worker 'w1' refused a connection" in caplog.text


# --- who does not fit ----------------------------------------------------------------------------


def both_refuse(place: Place, first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    one, two = place.transport(0, **first), place.transport(1, **second)
    texts = [one.listen(0, "w0"), two.listen(1, "w1")]
    with pytest.raises(PublicationError) as here:
        one.learn(1, "w1", texts[1])
    with pytest.raises(PublicationError) as there:
        two.learn(0, "w0", texts[0])
    return [str(here.value), str(there.value)]


def test_a_secret_on_one_side_is_an_error_on_both(place: Place, text: str) -> None:
    here, there = both_refuse(place, {"secret": text}, {})

    assert "worker 'w1' (rank 1) has no secret, and worker 'w0' has one" in here
    assert "worker 'w0' (rank 0) has a secret" in there
    assert text not in here + there


def test_different_secrets_are_an_error_on_both_sides(place: Place, text: str) -> None:
    for why in both_refuse(place, {"secret": text}, {"secret": secret.generate()}):
        assert "has a different secret" in why


def test_encryption_on_one_side_is_an_error_on_both(place: Place) -> None:
    here, there = both_refuse(place, {}, {"encryption": False})

    assert "worker 'w0' encrypts and worker 'w1' (rank 1) does not" in here
    assert "worker 'w0' (rank 0) encrypts and worker 'w1' does not" in there


@pytest.mark.parametrize("with_secret", [True, False])
def test_an_address_of_an_earlier_group_is_refused(
    place: Place, text: str, with_secret: bool
) -> None:
    options = {"secret": text} if with_secret else {}
    old = Place()
    earlier = old.transport(1, **options).listen(1, "w1")
    old.transports[0].close(0)
    one = place.transport(0, **options)
    one.listen(0, "w0")

    with pytest.raises(PublicationError, match="belongs to another group"):
        one.learn(1, "w1", earlier)


def test_a_chosen_nonce_does_not_revive_old_addresses(
    text: str,
) -> None:
    """The group's token does not depend on a nonce written to the store before the group began."""
    options = ZeroMQRpcBackendOptions(init_method="file:///x", secret=text)
    transports = []
    for _ in range(2):
        store = dist.HashStore()
        store.set("rpc_backends/0/zeromq/nonce", "what the intruder chooses")
        group = join_group(store, "w0", 0, 1, backend="ZEROMQ", timeout=SOON, join_timeout=SOON)
        transports.append(ZeroMQTransport(options, group))
    texts = [transport.listen(0, "w0") for transport in transports]

    with pytest.raises(PublicationError, match="belongs to another group"):
        transports[1].learn(0, "w0", texts[0])
    for transport in transports:
        transport.close(0)


def test_a_stale_record_brings_no_call_to_its_port(place: Place, text: str) -> None:
    """The intruder has an old record and the address, but not the keys of that session."""
    one, old = (place.transport(rank, dynamic=True, secret=text) for rank in range(2))
    one.listen(0, "w0")
    earlier, port = old.listen(1, "w1"), tcp_port(old)
    old.close(0)
    there = place.transport(1, dynamic=True, secret=text, ports=str(port))
    there.listen(1, "w1")

    one.learn(1, "w1", earlier, rank=1)
    with contextlib.suppress(TransportError):  # it may be known by now
        send(one, 1, b"hello")

    assert received(one)[0] == "lost"
    assert there._native.receive(0.2) is None


def test_two_workers_cannot_have_the_same_key(place: Place) -> None:
    one, two = place.transport(0, dynamic=True), place.transport(1, dynamic=True)
    one.listen(0, "w0")
    theirs = two.listen(1, "w1")
    one.learn(1, "w1", theirs, rank=1)
    same = theirs.replace('"name":"w1"', '"name":"w2"').replace('"rank":1', '"rank":2')
    same = same.replace('"worker_id":1', '"worker_id":2')

    with pytest.raises(PublicationError, match="worker 'w2' has the key of worker 1"):
        one.learn(2, "w2", same, rank=2)


def test_an_address_of_another_worker_is_refused(place: Place, text: str) -> None:
    one, two = (place.transport(rank, secret=text) for rank in range(2))
    theirs = two.listen(1, "w1")
    mine = one.listen(0, "w0")

    for peer, name, address, rank in (
        (2, "w1", theirs, 1),
        (1, "w2", theirs, 1),
        (1, "w1", theirs, 2),
        (1, "w1", mine, 1),
    ):
        with pytest.raises(PublicationError, match="is that of worker"):
            one.learn(peer, name, address, rank=rank)


def test_the_error_for_invalid_settings_names_the_worker(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_ZEROMQ_SECRET", "x")
    with pytest.raises(
        SecretError, match="worker 'w1' cannot start: RPC_BACKENDS_ZEROMQ_SECRET is"
    ):
        place.transport(1)
    monkeypatch.setenv("RPC_BACKENDS_ZEROMQ_SECRET", "")
    monkeypatch.setenv("RPC_BACKENDS_ZEROMQ_PORTS", "x")
    with pytest.raises(SettingError, match="worker 'w1' cannot start: RPC_BACKENDS_ZEROMQ_PORTS"):
        place.transport(1)


# --- where it listens ----------------------------------------------------------------------------


def test_by_default_only_this_host_can_connect(place: Place) -> None:
    one = place.transport()
    one.listen(0, "w0")

    assert one.metrics()["zeromq.listens_on"].startswith("tcp://127.0.0.1:")
    assert listens(tcp_port(one))


def test_the_port_is_a_free_one_of_the_range(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        one = place.transport(0, ports=f"{first}-{first + 20}")
        one.listen(0, "w0")

        assert first < tcp_port(one) <= first + 20


def test_a_range_without_a_free_port_is_an_error(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(AddressError, match=rf"no port of {port} is free on 127\.0\.0\.1"):
            place.transport(0, ports=port).listen(0, "w0")


def test_required_unix_sockets_without_a_folder_are_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rpc_backend_zeromq import unix_sockets

    monkeypatch.setattr(unix_sockets, "_places", lambda _: [])

    place.transport(0).listen(0, "w0")
    with pytest.raises(AddressError, match="no folder for a Unix socket"):
        place.transport(1, unix_sockets=True).listen(1, "w1")


# --- nothing is left -----------------------------------------------------------------------------


def test_close_leaves_no_file_thread_or_port(place: Place) -> None:
    place.start()  # what is made once in a process
    for transport in place.transports:
        transport.close(0)
    files, threads = open_files(), threading.active_count()

    one, two = Place().start()
    send(one, 1, b"hello")
    received(two)
    folder = Path(one.metrics()["zeromq.unix_socket"]).parent
    port = tcp_port(one)
    assert folder.exists()
    for transport in (one, two):
        transport.close(0)
        transport.close(0)

    assert not folder.exists()
    assert not listens(port)
    assert (open_files(), threading.active_count()) == (files, threads)


def test_a_failed_start_leaves_no_file_open(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.start()
    for transport in place.transports:
        transport.close(0)
    files = open_files()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        failing = place.transport(0, ports=taken.getsockname()[1])
        with pytest.raises(AddressError):
            failing.listen(0, "w0")

    assert open_files() == files


def test_a_closed_transport_is_garbage_collected(place: Place) -> None:
    one = place.transport()
    one.on_unknown_key = lambda key, held=one: held.metrics()
    one.listen(0, "w0")
    gone = weakref.ref(one)

    one.close(0)
    place.transports.clear()
    del one
    gc.collect()

    assert gone() is None


def test_a_hanging_store_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging:
        def compare_set(self, *_: Any) -> bytes:
            threading.Event().wait()
            return b""

    monkeypatch.setattr(transport_module, "JOIN_PATIENCE", 0.3)
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
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    path = Path(done.stdout.strip())
    assert path.is_absolute(), done.stderr
    assert not path.parent.exists()


def test_logs_attributes_and_metrics_hide_the_secret(
    place: Place, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    one, two = place.start(secret=text)

    seen = " ".join([caplog.text, repr(vars(one)), repr(one.metrics()), two.listen.__doc__ or ""])

    assert text.removeprefix(secret.PREFIX)[:20] not in seen
    published = place.transport(0, secret=text).listen(0, "w0")
    assert text.removeprefix(secret.PREFIX)[:20] not in published


# --- several hosts -------------------------------------------------------------------------------

#: A worker on a host: tells its text, is told that of the other, and says hello; the other hears it.
WORKER = """
import json, sys
import torch.distributed as dist
from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
from rpc_backend_zeromq.transport import ZeroMQTransport
from rpc_backends_core.spi import RpcBackendsError
from rpc_backends_core.spi import SettingError
from rpc_backends_core.spi import Group, Member

rank, init_method = int(sys.argv[1]), sys.argv[2]
store = dist.HashStore()
store.set("zeromq/nonce", "the same")
members = tuple(Member(f"w{r}", r, r, r) for r in range(2))
options = ZeroMQRpcBackendOptions(init_method=init_method)
transport = ZeroMQTransport(options, Group(store, f"w{rank}", rank, 2, members, 10.0, rank))
other = 1 - rank
try:
    print(json.dumps(transport.listen(rank, f"w{rank}")), flush=True)
    transport.learn(other, f"w{other}", json.loads(sys.stdin.readline()))
    transport._native.send(other, [b"hello from %d" % rank], False)
    event = transport._native.receive(20)
    # Until the other has heard as well.
    print(json.dumps([bytes(event[2][0]).decode() if event[2] else event[3]]), flush=True)
    sys.stdin.readline()
    print(json.dumps(transport.metrics()))
except RpcBackendsError as error:
    print(json.dumps([type(error).__name__, str(error)]))
finally:
    transport.close(0)
"""


def meet(hosts: Any, init_method: str, *environs: dict[str, str]) -> list[Any]:
    """Start a worker on each host that learns the other and calls it; return the last output of each."""
    running = [
        host.start(WORKER, str(rank), init_method, env=environ)
        for rank, (host, environ) in enumerate(zip(hosts, environs, strict=True))
    ]
    texts = [worker.line() for worker in running]
    for worker, text in zip(running, reversed(texts), strict=True):
        if isinstance(text, str):
            worker.tell(text)
    said = [
        worker.line() if isinstance(text, str) else text
        for worker, text in zip(running, texts, strict=True)
    ]
    for worker in running:
        worker.process.communicate("\n", timeout=30)
    return said


@pytest.mark.parametrize("family", ["four", "six"])
def test_workers_with_a_secret_communicate_between_hosts(
    two_hosts: Any, text: str, family: str
) -> None:
    one, _ = two_hosts
    address = one.four if family == "four" else f"[{one.six}]"
    environ = {"RPC_BACKENDS_ZEROMQ_SECRET": text, "RPC_BACKENDS_ZEROMQ_UNIX_SOCKETS": "0"}

    said = meet(two_hosts, f"tcp://{address}:29500", environ, environ)

    assert said == [["hello from 1"], ["hello from 0"]]


def test_workers_communicate_over_link_local_addresses(two_hosts: Any, text: str) -> None:
    environs = [
        {
            "RPC_BACKENDS_ZEROMQ_SECRET": text,
            "RPC_BACKENDS_ZEROMQ_ADDRESS": f"{link_local(host)}%{host.interface}",
            "RPC_BACKENDS_ZEROMQ_UNIX_SOCKETS": "0",
        }
        for host in two_hosts
    ]

    said = meet(two_hosts, "file:///x", *environs)

    assert said == [["hello from 1"], ["hello from 0"]]


def link_local(host: Any) -> str:
    found: str = host.run(
        """
import json
from rpc_backends_core.spi import interfaces
print(json.dumps([i.address for i in interfaces() if i.address.startswith("fe80")][0]))
"""
    )
    return found


def test_containers_with_a_shared_folder_use_unix_sockets(two_hosts: Any) -> None:
    """These hosts share a kernel and /tmp, and each listens on its own loopback interface only."""
    assert meet(two_hosts, "file:///x", {}, {}) == [["hello from 1"], ["hello from 0"]]


def test_without_a_secret_a_start_on_another_host_fails(two_hosts: Any) -> None:
    one, two = two_hosts
    code = WORKER.replace("rank, init_method = ", "sys.stdin.close(); rank, init_method = ")

    kind, why = two.run(code, "1", f"tcp://{one.four}:29500")

    assert kind == ExposureError.__name__
    assert "rpc-backends secret" in why


def test_workers_on_a_trusted_network_need_no_secret(two_hosts: Any) -> None:
    one, _ = two_hosts
    environ = {
        "RPC_BACKENDS_ZEROMQ_TRUSTED_NETWORK": "1",
        "RPC_BACKENDS_ZEROMQ_UNIX_SOCKETS": "0",
        "RPC_BACKENDS_ZEROMQ_ENCRYPTION": "0",
    }

    said = meet(two_hosts, f"tcp://{one.four}:29500", environ, environ)

    assert said == [["hello from 1"], ["hello from 0"]]


def test_loopback_addresses_fail_between_hosts(two_hosts: Any, text: str) -> None:
    environ = {"RPC_BACKENDS_ZEROMQ_SECRET": text, "RPC_BACKENDS_ZEROMQ_UNIX_SOCKETS": "0"}

    here, there = meet(two_hosts, "file:///x", environ, environ)

    assert here[0] == there[0] == AddressError.__name__
    assert "worker 'w0' cannot reach worker 'w1' (rank 1): it listens on 127.0.0.1" in here[1]
    assert "Set the option address or interface of worker 'w1'" in here[1]


def test_a_stranger_with_its_own_key_is_refused(
    place: Place, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    import zmq

    caplog.set_level(logging.WARNING, "rpc_backends.zeromq")
    one, _ = place.start(secret=text)
    public, private = zmq.curve_keypair()
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.LINGER, 0)
    stranger.curve_publickey, stranger.curve_secretkey = public, private
    stranger.curve_serverkey = one._public_key
    try:
        stranger.connect(f"tcp://127.0.0.1:{tcp_port(one)}")
        stranger.send(b"pickle")
        assert one._native.receive(1.0) is None
    finally:
        context.destroy(linger=0)

    one.close(0)
    assert "refused a connection: 127.0.0.1" in caplog.text
    assert public.decode() in caplog.text
