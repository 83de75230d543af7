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
        zero, one, lost = (
            make(n, encrypted, on_unknown_key=lambda key, waited: None).listen(where(medium))
            for n in (0, 1, 2)
        )
        zero.learn(one, lost)
        one.learn(zero)
        lost.transport.close(0)
        with contextlib.suppress(TransportError):  # the peer may already be lost
            zero.send(2, b"x")
        zero.lost()
        for size in (10, 10_000, 3 << 20):
            zero.send(1, bytes(size))
            one.message()
            one.send(0, bytes(size), reply=True)
            zero.message()
        zero.send(1, bytes(3 << 20))  # not received
        zero.transport.forget(1)
        zero.learn(one)
        zero.send(1, b"x")
        for worker in (zero, one):
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
    zero, one = pair
    zero.send(1, b"x")
    one.message()
    zero.transport.close(0)
    for call in (
        lambda: zero.send(1, b"x"),
        lambda: zero.send(1, b"x", reply=True),
        lambda: zero.learn(one),
        lambda: zero.transport.bind(["tcp://127.0.0.1:*"]),
        lambda: zero.transport.start(0),
    ):
        with pytest.raises(TransportError, match="the transport is closed"):
            call()
    assert zero.transport.receive() is None
    assert zero.metric("messages_sent") == 1
    zero.transport.forget(1)
    zero.transport.reject(1, "x")


def test_close_wakes_all_receivers(make: MakeWorker) -> None:
    worker = make(0).listen("tcp://127.0.0.1:*")
    found: list[Any] = []
    waiting = [
        threading.Thread(target=lambda: found.append(worker.transport.receive())) for _ in range(8)
    ]
    for thread in waiting:
        thread.start()
    worker.transport.close(0)
    for thread in waiting:
        thread.join(TIME_LIMIT)
    assert found == [None] * 8


def test_close_sends_queued_messages(make: MakeWorker, encrypted: bool) -> None:
    zero, one = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
    zero.learn(one)
    one.learn(zero)
    large = os.urandom(16 << 20)
    zero.send(1, b"request", large)  # the connection is not made yet
    zero.transport.close(TIME_LIMIT)
    assert one.message() == (0, [b"request", large])


def test_close_waits_at_most_for_linger(make: MakeWorker) -> None:
    zero = make(0).listen("tcp://127.0.0.1:*")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        zero.transport.learn(1, f"tcp://127.0.0.1:{silent.getsockname()[1]}", None)
        zero.send(1, b"never")
        begin = time.monotonic()
        zero.transport.close(0.3)
        assert 0.3 <= time.monotonic() - begin < TIME_LIMIT / 2


def test_close_works_while_threads_send_and_receive(make: MakeWorker, encrypted: bool) -> None:
    for _ in range(10):
        zero, one = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
        zero.learn(one)
        one.learn(zero)
        running = threading.Barrier(7)

        def send(zero: Worker = zero, running: threading.Barrier = running) -> None:
            running.wait()
            with pytest.raises(TransportError):
                while True:
                    zero.send(1, b"x" * 100, b"y" * 5000)

        def serve(one: Worker = one, running: threading.Barrier = running) -> None:
            running.wait()
            while (event := one.transport.receive()) is not None:
                if event[0] == "message":
                    try:
                        one.send(0, *map(bytes, event[2]), reply=True)
                    except TransportError:
                        continue

        def receive(zero: Worker = zero, running: threading.Barrier = running) -> None:
            running.wait()
            while zero.transport.receive() is not None:
                pass

        all_threads = [
            threading.Thread(target=target)
            for target in (send, send, serve, serve, receive, receive)
        ]
        for thread in all_threads:
            thread.start()
        running.wait()
        time.sleep(0.02)
        closers = [threading.Thread(target=zero.transport.close, args=(0,)) for _ in range(3)]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join(TIME_LIMIT)
        one.transport.close(0)
        for thread in all_threads:
            thread.join(TIME_LIMIT)
            assert not thread.is_alive()


def test_close_works_in_a_callback(make: MakeWorker) -> None:
    closed = threading.Event()

    def close(line: str) -> None:
        zero.transport.close(0)
        closed.set()

    zero = make(0, True, on_refused=close).listen("tcp://127.0.0.1:*")
    stranger = make(1, True).listen("tcp://127.0.0.1:*").learn(zero)
    stranger.send(0, b"x")
    assert closed.wait(TIME_LIMIT)


def test_close_does_not_wait_for_a_blocked_callback(make: MakeWorker) -> None:
    called, end = threading.Event(), threading.Event()

    def whose(key: bytes, waited: float) -> int | None:
        called.set()
        end.wait(TIME_LIMIT)
        return 1

    zero = make(0, True, on_unknown_key=whose).listen("tcp://127.0.0.1:*")
    one = make(1, True).listen("tcp://127.0.0.1:*").learn(zero)
    one.send(0, b"x")
    assert called.wait(TIME_LIMIT)
    zero.transport.close(0)
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
        zero, one = (Worker(n, encrypted=True).listen("tcp://127.0.0.1:*") for n in (0, 1))
        zero.learn(one)
        one.learn(zero)
        zero.send(1, b"before")
        one.message()
        pid = os.fork()
        if pid == 0:
            try:
                zero.send(1, b"from the fork")
            except TransportError as error:
                assert "forked" in str(error), error
            else:
                os._exit(3)
            assert zero.transport.receive() is None
            zero.transport.forget(1)
            zero.transport.close(10)
            # The child can use a transport of its own.
            two = Worker(2, encrypted=False).listen("tcp://127.0.0.1:*")
            two.learn(two)
            two.send(2, b"x")
            two.message()
            two.transport.close(0)
            sys.exit(0)
        say(os.waitpid(pid, 0)[1])
        zero.send(1, b"after")
        say(one.message()[1][0].decode())
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
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            transport.receive()
        except KeyboardInterrupt:
            say("interrupted")
        """
    )
    assert child.hear() == "interrupted"
    assert child.end() == 0
