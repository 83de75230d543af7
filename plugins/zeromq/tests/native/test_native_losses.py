"""A lost connection is reported with a reason, delivers nothing later, and is reconnected."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from native_workers import (
    ANSWER_SIZE,
    FORM,
    TIME_LIMIT,
    Child,
    Intruder,
    Worker,
    check_kept,
    eventually,
    greeting,
    slowly,
    variables_of_child,
)

from rpc_backend_zeromq._native import TransportError
from rpc_backends_processes import free_port
from support.workers import suspend

pytestmark = pytest.mark.slow

MakeWorker = Callable[..., Worker]
Start = Callable[..., Child]

#: Heartbeats without which a peer is lost soon, but not while a busy machine delays it.
SOON_LOST = {"heartbeat": 0.2, "heartbeat_timeout": 3.0}

#: A program: worker 1, which returns each message to its sender.
ECHO = """
    worker = Worker(1, encrypted=arguments[0] is not None, **arguments[2]).listen(arguments[1])
    if arguments[0] is not None:
        worker.transport.learn(0, arguments[3], arguments[0].encode())
    say([worker.endpoint, worker.key.decode() if worker.key else None])
    while (event := worker.transport.receive()) is not None:
        worker.transport.send(0, event[2], True)
"""


def start_echo(start: Start, worker0: Worker, endpoint: str, **settings: Any) -> Child:
    """Start worker 1 in a process of its own, and make ``worker0`` learn it."""
    key = worker0.key.decode() if worker0.key else None
    child = start(ECHO, key, endpoint, settings, worker0.endpoint)
    where, its_key = child.hear()
    worker0.transport.learn(1, where, its_key.encode() if its_key else None)
    return child


def test_an_absent_peer_is_lost_at_once(make: MakeWorker, encrypted: bool) -> None:
    worker0, absent = make(0, encrypted).listen("tcp://127.0.0.1:*"), make(1, encrypted)
    absent.endpoint = f"tcp://127.0.0.1:{free_port()}"
    worker0.learn(absent)
    worker0.try_to_send(1, b"x")
    what, peer, _, reason = worker0.next()
    assert (what, peer) == ("lost", 1)
    assert reason == (
        f"cannot connect to {absent.endpoint}: Connection refused; no process listens there. The worker "
        "has ended, or has left without shutdown(): look at its output"
    )
    with pytest.raises(TransportError, match=r"worker 1 is lost: cannot connect to .*refused"):
        worker0.send(1, b"y")


def test_a_missing_unix_socket_is_a_loss_at_once(make: MakeWorker, tmp_path: Any) -> None:
    worker0 = make(0).listen("tcp://127.0.0.1:*")
    worker0.transport.learn(1, f"ipc://{tmp_path}/nothing", None)
    worker0.try_to_send(1, b"x")
    assert worker0.lost() == (
        f"cannot connect to ipc://{tmp_path}/nothing: No such file or directory; the worker has stopped "
        "RPC"
    )


def test_a_silent_peer_is_lost_after_the_handshake_timeout(make: MakeWorker) -> None:
    """A process that hangs, or is no worker, listens and sends nothing."""
    worker0 = make(0, handshake_timeout=0.3).listen("tcp://127.0.0.1:*")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        worker0.transport.learn(1, f"tcp://127.0.0.1:{silent.getsockname()[1]}", None)
        worker0.try_to_send(1, b"x")
        assert "not finished within 0.3 s" in worker0.lost()


def test_an_unknown_peer_cannot_be_called(pair: tuple[Worker, Worker]) -> None:
    worker0, _ = pair
    with pytest.raises(TransportError, match="worker 7 is not known to this worker"):
        worker0.send(7, b"x")
    with pytest.raises(
        TransportError, match="worker 7 has closed the connection that carried the request"
    ):
        worker0.send(7, b"x", reply=True)


@pytest.mark.parametrize("medium", ["tcp", "ipc"])
def test_a_killed_peer_is_lost(
    make: MakeWorker,
    encrypted: bool,
    start: Start,
    where: Callable[[str], str],
    medium: str,
) -> None:
    worker0 = make(0, encrypted).listen(where(medium))
    child = start_echo(start, worker0, where(medium))
    worker0.send(1, b"x")
    assert worker0.message() == (1, [b"x"])
    child.process.send_signal(signal.SIGKILL)
    # The kernel may close the connection before or after the listening socket.
    reason = worker0.lost().lower()
    assert (
        "the peer no longer listens: connection refused" in reason
        or "connection reset by" in reason
    )
    with pytest.raises(TransportError, match="worker 1 is lost"):
        worker0.send(1, b"y")
    assert worker0.metric("peers_lost") == 1


@pytest.mark.parametrize("medium", ["tcp", "ipc"])
def test_a_suspended_peer_is_lost_and_found(
    make: MakeWorker, start: Start, where: Callable[[str], str], medium: str
) -> None:
    worker0 = make(0, **SOON_LOST).listen(where(medium))
    child = start_echo(start, worker0, where(medium))
    worker0.send(1, b"x")
    worker0.message()
    suspend(child.process.pid)
    try:
        assert "no heartbeat" in worker0.lost()
    finally:
        child.process.send_signal(signal.SIGCONT)
    worker0.next("found")
    worker0.send(1, b"y")
    assert worker0.message() == (1, [b"y"])


@pytest.mark.parametrize("medium", ["tcp", "ipc"])
def test_a_suspended_peer_is_lost_while_messages_are_sent(
    make: MakeWorker, start: Start, where: Callable[[str], str], medium: str
) -> None:
    """Over TCP, its system acknowledges what it does not read."""
    worker0 = make(0, **SOON_LOST).listen(where(medium))
    child = start_echo(start, worker0, where(medium))
    worker0.send(1, b"x")
    worker0.message()
    suspend(child.process.pid)
    try:
        until = time.monotonic() + 20
        while (event := worker0.transport.receive(0.3)) is None:
            assert time.monotonic() < until
            worker0.try_to_send(1, bytes(100))
        assert event[0] == "lost"
        assert "no heartbeat" in event[3]
    finally:
        child.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("medium", ["tcp", "ipc"])
def test_a_peer_suspended_while_receiving_is_lost(
    make: MakeWorker, start: Start, where: Callable[[str], str], medium: str
) -> None:
    """The connection's buffers are full, so no heartbeat can be sent."""
    worker0 = make(0, **SOON_LOST).listen(where(medium))
    child = start_echo(start, worker0, where(medium))
    worker0.send(1, b"x")
    worker0.message()
    suspend(child.process.pid)
    try:
        worker0.send(1, bytes(64 << 20))
        assert "no heartbeat" in worker0.lost()
    finally:
        child.process.send_signal(signal.SIGCONT)


def test_a_peer_that_reads_slowly_over_tcp_is_kept(make: MakeWorker) -> None:
    """It reads for three times the heartbeat timeout, and answers no ping."""

    def read_slowly() -> tuple[bool, float]:
        worker0 = make(0, heartbeat=0.2, heartbeat_timeout=1.0).listen("tcp://127.0.0.1:*")
        peer = Intruder(worker0, greeting(2)).admitted()
        size = 24 << 20
        eventually(lambda: can_reply(worker0, 2, size), "the connection is open")
        read = 0

        def read_some() -> None:
            nonlocal read
            read += len(peer.read(200_000))

        longest = slowly(read_some, 3)
        return read + len(peer.read(size - read)) == size, longest

    check_kept(read_slowly, 1.0)


def can_reply(worker: Worker, peer: int, size: int) -> bool:
    """Return whether there is a connection on which a message of this size could be sent to a peer."""
    try:
        worker.send(peer, bytes(size), reply=True)
    except TransportError:
        return False
    return True


def test_an_idle_peer_is_kept(make: MakeWorker) -> None:
    settings = {"heartbeat": 0.1, "heartbeat_timeout": 0.8}

    def be_idle() -> tuple[bool, float]:
        worker0, worker1 = (make(n, **settings).listen("tcp://127.0.0.1:*") for n in (0, 1))
        worker0.learn(worker1)
        worker1.learn(worker0)
        worker0.send(1, b"x")
        worker1.message()
        events = []
        # More than twice the heartbeat timeout; the steps show for how long this process did not run.
        longest = slowly(lambda: events.append(worker0.transport.receive(0)), 2)
        if any(events) or not can_reply(worker1, 0, 1):
            return False, longest
        assert worker0.message() == (1, [bytes(1)])
        return True, longest

    check_kept(be_idle, settings["heartbeat_timeout"])


def test_messages_to_a_lost_peer_are_never_delivered(make: MakeWorker, encrypted: bool) -> None:
    worker0, absent = make(0, encrypted).listen("tcp://127.0.0.1:*"), make(1, encrypted)
    absent.endpoint = f"tcp://127.0.0.1:{free_port()}"
    worker0.learn(absent)
    worker0.try_to_send(1, b"stale")
    with contextlib.suppress(TransportError):  # the peer may already be lost
        for _ in range(1000):
            worker0.send(1, b"stale", b"x" * 10_000)
    worker0.lost()
    worker1 = absent.learn(worker0).listen(absent.endpoint)
    worker0.next("found")
    worker0.send(1, b"fresh")
    assert worker1.message() == (0, [b"fresh"])
    worker0.send(1, b"next")
    assert worker1.message() == (0, [b"next"])


def test_a_peer_can_be_lost_and_found_repeatedly(make: MakeWorker, encrypted: bool) -> None:
    worker0 = make(0, encrypted).listen("tcp://127.0.0.1:*")
    worker1 = make(1, encrypted).listen("tcp://127.0.0.1:*").learn(worker0)
    for number in range(3):
        worker0.learn(worker1)
        if number:
            worker0.next("found")
        worker0.send(1, b"%d" % number)
        assert worker1.message() == (0, [b"%d" % number])
        worker1.send(0, b"reply", reply=True)
        assert worker0.message() == (1, [b"reply"])
        worker1.transport.close(0)
        worker0.lost()
        worker1 = make(1, encrypted).listen("tcp://127.0.0.1:*").learn(worker0)
        # Like a restarted worker, it has another key and port, so worker 0 must learn it again.
    assert (worker0.metric("peers_lost"), worker0.metric("peers_found")) == (3, 2)


def test_a_loss_is_reported_once(make: MakeWorker) -> None:
    # The port is still free after the close, because the kernel gives it to no other socket.
    worker0, worker1 = (make(n).listen(f"tcp://127.0.0.1:{free_port()}") for n in (0, 1))
    worker0.learn(worker1)
    worker0.send(1, b"x")
    worker1.message()
    worker1.transport.close(0)
    worker0.lost()
    with socket.create_server(("127.0.0.1", int(worker1.endpoint.rpartition(":")[2]))) as listener:
        listener.settimeout(TIME_LIMIT)
        for _ in range(3):  # it tries to connect again and again
            listener.accept()[0].close()
    assert worker0.transport.receive(0) is None


def test_messages_sent_before_close_arrive_before_the_loss(
    make: MakeWorker, encrypted: bool
) -> None:
    """A leaving worker's last reply still arrives."""
    for _ in range(20):
        worker0, worker1 = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
        worker0.learn(worker1)
        worker1.learn(worker0)
        worker0.send(1, b"last")
        worker1.message()
        worker1.send(0, b"answer", b"x" * 100_000, reply=True)
        worker1.transport.close(TIME_LIMIT)
        assert worker0.message() == (1, [b"answer", b"x" * 100_000])
        worker0.lost()
        worker0.transport.close(0)


def test_a_changed_address_means_lost_then_found(make: MakeWorker, encrypted: bool) -> None:
    worker0 = make(0, encrypted).listen("tcp://127.0.0.1:*")
    old, new = (make(1, encrypted).listen("tcp://127.0.0.1:*").learn(worker0) for _ in range(2))
    worker0.learn(old)
    worker0.send(1, b"x")
    old.message()
    worker0.learn(old)  # unchanged
    worker0.send(1, b"again")
    assert old.message() == (0, [b"again"])
    worker0.learn(new)
    assert worker0.lost() == "its address has changed"
    new.learn(worker0)
    worker0.next("found")
    worker0.send(1, b"y")
    assert new.message() == (0, [b"y"])


def test_a_forgotten_peer_is_refused_until_learned_again(pair: tuple[Worker, Worker]) -> None:
    worker0, worker1 = pair
    worker0.send(1, b"request")
    worker1.message()
    worker1.send(0, b"request")
    worker0.message()
    worker1.transport.forget(0)
    worker1.transport.forget(0)
    worker1.transport.forget(17)
    # The reply to worker 0's last request is still sent: by that request it may have said that it leaves.
    worker1.send(0, b"answer", reply=True)
    assert worker0.message() == (1, [b"answer"])
    with pytest.raises(TransportError, match="worker 0 is not known"):
        worker1.send(0, b"x")
    worker0.send(1, b"late")
    assert "worker 0 has left the group" in worker0.lost()
    assert worker1.transport.receive(0) is None
    worker1.learn(worker0)
    worker0.next("found")
    worker0.send(1, b"back")
    assert worker1.message() == (0, [b"back"])


def test_a_new_connection_of_a_forgotten_peer_is_refused(pair: tuple[Worker, Worker]) -> None:
    worker0, worker1 = pair
    worker1.transport.forget(0)
    worker0.try_to_send(1, b"x")
    reason = worker0.lost()
    assert worker1.transport.receive(0) is None
    assert ("does not know this worker's key" if worker0.key else "has left the group") in reason
    worker1.log_line(
        "does not belong to any worker" if worker0.key else "worker 0 has left the group"
    )


def test_each_event_goes_to_exactly_one_thread(make: MakeWorker) -> None:
    """Four threads receive, and the loss is reported once."""
    worker0, worker1 = (make(n).listen("tcp://127.0.0.1:*") for n in (0, 1))
    worker0.learn(worker1)
    kinds: list[str] = []

    def receive() -> None:
        while (event := worker0.transport.receive()) is not None:
            kinds.append(event[0])

    threads = [threading.Thread(target=receive) for _ in range(4)]
    for thread in threads:
        thread.start()
    worker0.send(1, b"x")
    worker1.message()
    worker1.transport.close(0)
    eventually(lambda: "lost" in kinds, "the loss is reported")
    worker0.transport.close(0)
    for thread in threads:
        thread.join()
    assert kinds == ["lost"]


# --- networks ------------------------------------------------------------------------------------

ON_A_HOST = """
    import json, sys
    sys.path.insert(0, sys.argv[1])
    from native_workers import Worker
    say = lambda value: print(json.dumps(value), flush=True)
    number, endpoint, timeout = json.loads(sys.argv[2])
    worker = Worker(number, encrypted=False, heartbeat=timeout / 5, heartbeat_timeout=timeout)
    worker.listen(endpoint)
    say(worker.endpoint)
    worker.transport.learn(1 - number, json.loads(sys.stdin.readline()), None)
    if number == 1:
        while (event := worker.transport.receive()) is not None:
            if event[0] == "message":  # it may notice an outage, too
                worker.try_to_send(0, b"%d" % sum(len(part) for part in event[2]), reply=True)
    for line in sys.stdin:
        size = json.loads(line)
        if size:
            worker.try_to_send(1, bytes(size))
        what, _, parts, reason = worker.next()
        say([what, bytes(parts[0]).decode() if parts else reason])
"""


class TwoHosts:
    """Worker 0 on one host calls worker 1 on another host."""

    def __init__(self, hosts: Any, folder: str, timeout: float) -> None:
        self.hosts = hosts
        self.workers = [
            host.start(
                ON_A_HOST,
                *(folder, json.dumps([n, f"tcp://{host.four}:*", timeout])),
                env=variables_of_child(),
            )
            for n, host in enumerate(hosts)
        ]
        endpoints = [worker.line() for worker in self.workers]
        for worker, endpoint in zip(self.workers, reversed(endpoints), strict=True):
            worker.tell(endpoint)

    def call(self, size: int) -> Any:
        """Send a message of a given size, and return the next event."""
        self.workers[0].tell(size)
        return self.workers[0].line()

    def set_link(self, state: str) -> None:
        """Set the network interface of worker 1 "down" or "up"."""
        host = self.hosts[1]
        subprocess.run(
            ["ip", "-n", host.name, "link", "set", host.interface, state],
            check=True,
            timeout=TIME_LIMIT,
        )

    def close(self) -> None:
        """Kill both workers."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.communicate()


@pytest.fixture
def on_two_hosts(two_hosts: Any, request: pytest.FixtureRequest) -> Any:
    """Yield workers on two hosts, with the test's parameter as heartbeat timeout."""
    with contextlib.closing(TwoHosts(two_hosts, str(request.path.parent), request.param)) as pair:
        yield pair


@pytest.mark.parametrize("on_two_hosts", [20.0], indirect=True)
def test_a_short_outage_loses_no_message(on_two_hosts: TwoHosts) -> None:
    assert on_two_hosts.call(10) == ["message", "10"]
    on_two_hosts.set_link("down")
    on_two_hosts.workers[0].tell(20)
    time.sleep(0.7)  # the length of the outage
    on_two_hosts.set_link("up")
    assert on_two_hosts.workers[0].line() == ["message", "20"]


@pytest.mark.parametrize("on_two_hosts", [SOON_LOST["heartbeat_timeout"]], indirect=True)
def test_a_long_outage_means_lost_then_found(on_two_hosts: TwoHosts) -> None:
    assert on_two_hosts.call(10) == ["message", "10"]
    on_two_hosts.set_link("down")
    what, reason = on_two_hosts.call(20)
    assert what == "lost"
    assert "no heartbeat" in reason
    on_two_hosts.set_link("up")
    assert on_two_hosts.call(0) == ["found", ""]
    event = on_two_hosts.call(30)
    if event == ["message", "20"]:  # it had left before the loss, and arrived late
        event = on_two_hosts.call(0)
    assert event == ["message", "30"]


def test_a_slow_large_message_is_no_loss(two_hosts: Any, request: pytest.FixtureRequest) -> None:
    """The message takes three times the heartbeat timeout."""
    if shutil.which("tc") is None:
        pytest.skip("there is no `tc` here")
    for host in two_hosts:
        shaping = ["tbf", "rate", "40mbit", "burst", "64kb", "latency", "200ms"]
        command = ["tc", "-n", host.name, "qdisc", "add", "dev", host.interface, "root", *shaping]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no slow network here: {done.stderr}")

    def arrives() -> bool:
        with contextlib.closing(TwoHosts(two_hosts, str(request.path.parent), 1.0)) as pair:
            return all(pair.call(size) == ["message", str(size)] for size in (10, 15 << 20))

    # A busy machine may delay a heartbeat for 1 s, but hardly three times.
    assert any(arrives() for _ in range(3))


def test_holding_the_gil_delays_no_heartbeat(make: MakeWorker, start: Start) -> None:
    """The message's memory is Python's: its release needs the GIL, which the program holds for 2 s."""
    # A busy machine may delay a heartbeat for 1 s, but hardly three times.
    assert any(is_kept_while_it_holds_the_gil(make, start) for _ in range(3))


def is_kept_while_it_holds_the_gil(make: MakeWorker, start: Start) -> bool:
    """Return whether a worker that holds the GIL after it has sent a message is not lost."""
    worker1 = make(1, heartbeat=0.1, heartbeat_timeout=1).listen("tcp://127.0.0.1:*")
    child = start(
        """
        import ctypes
        worker = Worker(0, encrypted=False, heartbeat=0.1).listen("tcp://127.0.0.1:*")
        say(worker.endpoint)
        worker.transport.learn(1, hear(), None)
        worker.message()
        worker.send(1, bytes(64 << 20))
        ctypes.PyDLL(None).usleep(2_000_000)  # with the GIL
        say("done")
        hear()
        """
    )
    worker1.transport.learn(0, child.hear(), None)
    child.say(worker1.endpoint)
    worker1.send(0, b"begin")
    what, _, parts, _ = worker1.next()
    if what == "lost":
        return False
    assert len(parts[0]) == 64 << 20
    assert child.hear() == "done"
    is_kept = worker1.metric("peers_lost") == 0
    child.say("end")
    assert child.end() == 0
    return is_kept


def test_many_dead_peers_delay_no_other_peer(make: MakeWorker) -> None:
    """The peers are probed at the same time, and others can connect meanwhile."""
    # At 20 ms for each peer, it would take 3 s to probe them one after the other, in each attempt.
    assert any(seconds_to_probe(make, 150) < 2 for _ in range(3)), "the peers are probed in turn"


def seconds_to_probe(make: MakeWorker, count: int) -> float:
    """Return how long it takes to lose so many dead peers, and to get a message of another peer."""
    worker0, worker1 = (make(n).listen("tcp://127.0.0.1:*") for n in (0, 1))
    worker0.learn(worker1)
    worker1.learn(worker0)
    admitted = FORM + b"\1" + bytes(ANSWER_SIZE - len(FORM) - 1)
    with contextlib.ExitStack() as held:
        connections = []
        for number in range(count):
            server = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            worker0.transport.learn(2 + number, f"tcp://127.0.0.1:{server.getsockname()[1]}", None)
            worker0.send(2 + number, b"x")
            connection = held.enter_context(server.accept()[0])
            connection.sendall(admitted)
            connections.append(connection)
            # These connections fill the backlog, so that no further one is accepted.
            for _ in range(2):
                guest = held.enter_context(socket.socket())
                guest.setblocking(False)
                guest.connect_ex(server.getsockname())
        for connection in connections:
            while b"x" not in connection.recv(1000):
                pass
        for connection in connections:
            connection.close()
        begin = time.monotonic()
        worker1.send(0, b"I am new")
        events = [worker0.next() for _ in range(count + 1)]
        took = time.monotonic() - begin
        assert sorted(event[0] for event in events) == ["lost"] * count + ["message"]
    for worker in (worker0, worker1):
        worker.transport.close(0)
    return took
