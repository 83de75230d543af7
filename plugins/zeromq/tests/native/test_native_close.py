"""close() sends queued messages, leaves nothing behind, and works at any time."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from native_workers import TIME_LIMIT, Child, Worker, eventually, open_files

from rpc_backend_zeromq._native import TransportError

pytestmark = pytest.mark.slow

MakeWorker = Callable[..., Worker]
Start = Callable[..., Child]


def threads() -> set[str]:
    """Return the ids of this process's threads."""
    return {task.name for task in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("medium", ["tcp", "ipc"])
def test_close_leaves_no_descriptor_and_no_thread(
    make: MakeWorker, encrypted: bool, where: Callable[[str], str], medium: str
) -> None:
    def use() -> None:
        worker0, worker1, lost = (
            make(n, encrypted, on_unknown_key=lambda key, waited: None).listen(where(medium))
            for n in (0, 1, 2)
        )
        worker0.learn(worker1, lost)
        worker1.learn(worker0)
        lost.transport.close(0)
        with contextlib.suppress(TransportError):  # the peer may already be lost
            worker0.send(2, b"x")
        worker0.lost()
        for size in (10, 10_000, 3 << 20):
            worker0.send(1, bytes(size))
            worker1.message()
            worker1.send(0, bytes(size), reply=True)
            worker0.message()
        worker0.send(1, bytes(3 << 20))  # not received
        worker0.transport.forget(1)
        worker0.learn(worker1)
        worker0.send(1, b"x")
        for worker in (worker0, worker1):
            worker.transport.close(0.1)

    use()  # the first use also opens what Python opens only once
    files, tasks = open_files(), threads()
    for _ in range(3):
        use()
    eventually(lambda: open_files().items() <= files.items(), "all files are closed")
    # The kernel still lists threads for a moment after they have ended.
    eventually(lambda: threads() <= tasks, "all threads have ended")


def test_close_removes_the_unix_socket(make: MakeWorker, tmp_path: Path) -> None:
    worker = make(0).listen(f"ipc://{tmp_path}/socket")
    assert (tmp_path / "socket").exists()
    worker.transport.close(0)
    assert not (tmp_path / "socket").exists()


def test_close_frees_the_port(make: MakeWorker) -> None:
    worker = make(0).listen("tcp://127.0.0.1:*")
    worker.transport.close(0)
    make(1).listen(worker.endpoint)


def test_a_second_close_does_nothing(make: MakeWorker) -> None:
    worker = make(0).listen("tcp://127.0.0.1:*")
    worker.transport.close(1)
    worker.transport.close(1)
    make(1).transport.close(0)  # this transport never listened


def test_a_closed_transport_refuses_calls(pair: tuple[Worker, Worker]) -> None:
    worker0, worker1 = pair
    worker0.send(1, b"x")
    worker1.message()
    worker0.transport.close(0)
    for call in (
        lambda: worker0.send(1, b"x"),
        lambda: worker0.send(1, b"x", reply=True),
        lambda: worker0.learn(worker1),
        lambda: worker0.transport.bind(["tcp://127.0.0.1:*"]),
        lambda: worker0.transport.start(0),
    ):
        with pytest.raises(TransportError, match="the transport is closed"):
            call()
    assert worker0.transport.receive() is None
    assert worker0.metric("messages_sent") == 1
    worker0.transport.forget(1)
    worker0.transport.reject(1, "x")


def test_close_wakes_all_receivers(make: MakeWorker) -> None:
    worker = make(0).listen("tcp://127.0.0.1:*")
    received: list[Any] = []
    waiting = [
        threading.Thread(target=lambda: received.append(worker.transport.receive()))
        for _ in range(8)
    ]
    for thread in waiting:
        thread.start()
    worker.transport.close(0)
    for thread in waiting:
        thread.join(TIME_LIMIT)
    assert received == [None] * 8


def test_close_sends_queued_messages(make: MakeWorker, encrypted: bool) -> None:
    worker0, worker1 = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
    worker0.learn(worker1)
    worker1.learn(worker0)
    large = os.urandom(16 << 20)
    worker0.send(1, b"request", large)  # the connection is not made yet
    worker0.transport.close(TIME_LIMIT)
    assert worker1.message() == (0, [b"request", large])


def test_close_waits_at_most_for_linger(make: MakeWorker) -> None:
    worker0 = make(0).listen("tcp://127.0.0.1:*")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        worker0.transport.learn(1, f"tcp://127.0.0.1:{silent.getsockname()[1]}", None)
        worker0.send(1, b"never")
        begin = time.monotonic()
        worker0.transport.close(0.3)
        assert 0.3 <= time.monotonic() - begin < TIME_LIMIT / 2


def test_close_works_while_threads_send_and_receive(make: MakeWorker, encrypted: bool) -> None:
    for _ in range(10):
        worker0, worker1 = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
        worker0.learn(worker1)
        worker1.learn(worker0)
        running = threading.Barrier(7)

        def send(worker0: Worker = worker0, running: threading.Barrier = running) -> None:
            running.wait()
            with pytest.raises(TransportError):
                while True:
                    worker0.send(1, b"x" * 100, b"y" * 5000)

        def serve(worker1: Worker = worker1, running: threading.Barrier = running) -> None:
            running.wait()
            while (event := worker1.transport.receive()) is not None:
                if event[0] == "message":
                    try:
                        worker1.send(0, *map(bytes, event[2]), reply=True)
                    except TransportError:
                        continue

        def receive(worker0: Worker = worker0, running: threading.Barrier = running) -> None:
            running.wait()
            while worker0.transport.receive() is not None:
                pass

        all_threads = [
            threading.Thread(target=target)
            for target in (send, send, serve, serve, receive, receive)
        ]
        for thread in all_threads:
            thread.start()
        running.wait()
        time.sleep(0.02)
        closers = [threading.Thread(target=worker0.transport.close, args=(0,)) for _ in range(3)]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join(TIME_LIMIT)
        worker1.transport.close(0)
        for thread in all_threads:
            thread.join(TIME_LIMIT)
            assert not thread.is_alive()


def test_close_works_in_a_callback(make: MakeWorker) -> None:
    closed = threading.Event()

    def close(line: str) -> None:
        worker0.transport.close(0)
        closed.set()

    worker0 = make(0, True, on_refused=close).listen("tcp://127.0.0.1:*")
    stranger = make(1, True).listen("tcp://127.0.0.1:*").learn(worker0)
    with contextlib.suppress(TransportError):  # it may be refused before the message is queued
        stranger.send(0, b"x")
    assert closed.wait(TIME_LIMIT)


def test_close_does_not_wait_for_a_blocked_callback(make: MakeWorker) -> None:
    called, end = threading.Event(), threading.Event()

    def whose(key: bytes, waited: float) -> int | None:
        called.set()
        end.wait(TIME_LIMIT)
        return 1

    worker0 = make(0, True, on_unknown_key=whose).listen("tcp://127.0.0.1:*")
    worker1 = make(1, True).listen("tcp://127.0.0.1:*").learn(worker0)
    worker1.send(0, b"x")
    assert called.wait(TIME_LIMIT)
    worker0.transport.close(0)
    assert not end.is_set()
    end.set()


def test_a_failed_bind_names_endpoint_and_errno(make: MakeWorker) -> None:
    taken = make(0).listen("tcp://127.0.0.1:*").endpoint
    for endpoint, number in [
        (taken, "EADDRINUSE"),
        ("tcp://192.0.2.1:*", "EADDRNOTAVAIL|ENODEV"),
        ("ipc:///nowhere/at/all", "ENOENT"),
        ("nonsense", "EINVAL"),
        ("udp://127.0.0.1:1", "."),
    ]:
        with pytest.raises(OSError, match=re.escape(endpoint)) as caught:
            make(1).transport.bind([endpoint])
        assert caught.value.filename == endpoint
        assert re.match(number, errno.errorcode.get(caught.value.errno or 0, "?"))


# --- exits and forks -----------------------------------------------------------------------------

NEVER_CLOSED = """
    def whose(key, waited):
        say("asked")
        {callback}
    worker = Worker(0, encrypted=True, on_unknown_key=whose).listen("tcp://127.0.0.1:*")
    other = Worker(1, encrypted=True).listen("tcp://127.0.0.1:*").learn(worker)
    other.try_to_send(0, b"x")
    worker.learn(other)
    for _ in range(3):
        threading.Thread(target=worker.transport.receive, daemon=True).start()
    time.sleep(0.1)
    keep = worker.transport.__rpc_transport__()
    {end}
"""


@pytest.mark.parametrize("callback", ["return 1", "return None", "time.sleep(1000)"])
@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "import gc; worker.cycle = worker"])
def test_a_process_exits_without_closing_its_transports(
    start: Start, callback: str, end: str
) -> None:
    assert start(NEVER_CLOSED.format(callback=callback, end=end)).end() == 0


def test_a_process_exits_while_holding_received_messages(start: Start) -> None:
    child = start(
        """
        worker = Worker(0, encrypted=False).listen("tcp://127.0.0.1:*")
        worker.learn(worker)
        worker.send(0, bytes(10), bytes(10_000), bytes(3 << 20))
        event = worker.next()
        worker.send(0, bytes(3 << 20))
        """
    )
    assert child.end() == 0


def test_a_forked_process_leaves_its_parents_transport_alone(start: Start) -> None:
    child = start(
        """
        from rpc_backend_zeromq._native import TransportError
        worker0, worker1 = (Worker(n, encrypted=True).listen("tcp://127.0.0.1:*") for n in (0, 1))
        worker0.learn(worker1)
        worker1.learn(worker0)
        worker0.send(1, b"before")
        worker1.message()
        pid = os.fork()
        if pid == 0:
            try:
                worker0.send(1, b"from the fork")
            except TransportError as error:
                assert "forked" in str(error), error
            else:
                os._exit(3)
            assert worker0.transport.receive() is None
            worker0.transport.forget(1)
            worker0.transport.close(10)
            # The child can use a transport of its own.
            worker2 = Worker(2, encrypted=False).listen("tcp://127.0.0.1:*")
            worker2.learn(worker2)
            worker2.send(2, b"x")
            worker2.message()
            worker2.transport.close(0)
            sys.exit(0)
        say(os.waitpid(pid, 0)[1])
        worker0.send(1, b"after")
        say(worker1.message()[1][0].decode())
        """
    )
    assert child.hear() == 0
    assert child.hear() == "after"
    assert child.end() == 0


def test_too_many_open_files_are_an_error(start: Start) -> None:
    child = start(
        """
        import resource
        from rpc_backend_zeromq._native import TransportError
        Worker(0, encrypted=False).transport.close(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        kept = []
        try:
            for number in range(64):
                kept.append(Worker(number, encrypted=False).listen("tcp://127.0.0.1:*"))
        except (TransportError, OSError) as error:
            say(str(error))
        for worker in kept:
            worker.transport.close(0)
        """
    )
    assert "Too many open files" in child.hear()
    assert child.end() == 0


def test_a_transport_kept_by_its_callback_delays_no_exit(start: Start) -> None:
    assert start("Worker(0, encrypted=False).listen('tcp://127.0.0.1:*')").end() == 0


def test_a_bind_without_descriptors_is_an_error(start: Start) -> None:
    child = start(
        """
        import resource
        from rpc_backend_zeromq._native import TransportError
        worker = Worker(0, encrypted=False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")),) * 2)
        try:
            worker.listen("tcp://127.0.0.1:*")
        except TransportError as error:
            say(str(error))
        worker.transport.close(0)
        """
    )
    assert "Too many open files" in child.hear()
    assert child.end() == 0


def test_ctrl_c_interrupts_receive(start: Start) -> None:
    child = start(
        """
        import signal
        transport = Worker(0, encrypted=False).transport
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            transport.receive()
        except KeyboardInterrupt:
            say("interrupted")
        """
    )
    assert child.hear() == "interrupted"
    assert child.end() == 0
