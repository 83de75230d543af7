"""`TransportContract`: a sound transport passes, no torch is needed, and errors say what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from rpc_backends_agents.transports.sockets import SocketTransport
from rpc_backends_testing import TransportContract
from rpc_backends_testing.deviations import DeviationError
from rpc_backends_testing.transports.content import difference, message
from rpc_backends_testing.transports.limits import SECONDS, SECONDS_WHEN_BROKEN, Limits
from rpc_backends_testing.transports.properties import holds_for
from rpc_backends_testing.transports.workers import Workers
from support.environments import clean_environ

_IN_A_MODULE = """
from rpc_backends_testing import TransportContract
from rpc_backends_agents.transports.sockets import SocketTransport

class TestSockets(TransportContract):
    def make_transport(self, worker_id):
        return SocketTransport()

def test_torch_is_not_imported():
    import sys
    assert "torch" not in sys.modules

class TestUnfinished(TransportContract):
    pass
"""


@pytest.mark.thorough
class TestSocketTransport(TransportContract):
    """The transport of SOCKETS meets the contract."""

    def make_transport(self, worker_id: int) -> SocketTransport:
        """Return a new transport."""
        return SocketTransport()


@pytest.mark.thorough
class TestSocketTransportBetweenProcesses(TestSocketTransport):
    """The transport of SOCKETS also meets the contract if its peers are in another process."""

    processes = 2


_BETWEEN = """
from rpc_backends_testing import TransportContract
from rpc_backends_agents.transports.sockets import SocketTransport

ADDRESSES = {}

class LearnsFromItsModule(SocketTransport):
    def listen(self, worker_id, name, inbox):
        ADDRESSES[worker_id] = super().listen(worker_id, name, inbox)
        return ADDRESSES[worker_id]

    def learn(self, peer, name, address):
        super().learn(peer, name, ADDRESSES[peer])

class EndsItsProcess(SocketTransport):
    def learn(self, peer, name, address):
        # kill() may hand the signal to another thread, and this one could return and answer.
        import signal, threading
        if peer == 0:
            signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)
        super().learn(peer, name, address)

class DeliversTexts(SocketTransport):
    def _read(self, connection, peer, peer_calls):
        self._inbox.deliver(peer, ["text"])

class LeavesAThread(SocketTransport):
    def close(self, linger):
        import threading
        super().close(linger)
        if self._me == bytes([1, 0, 0, 0]):
            threading.Thread(target=threading.Event().wait, daemon=True).start()

class TestSockets(TransportContract):
    processes = 2
    def make_transport(self, worker_id):
        return SocketTransport()

class TestLearns(TransportContract):
    def make_transport(self, worker_id):
        return LearnsFromItsModule()

class TestLearnsBetween(TestLearns):
    processes = 2

class TestEnds(TestSockets):
    def make_transport(self, worker_id):
        return EndsItsProcess()

class TestTexts(TestSockets):
    def make_transport(self, worker_id):
        return DeliversTexts()

class TestLeaves(TestSockets):
    def make_transport(self, worker_id):
        return LeavesAThread()

class TestCannotBeMade(TestSockets):
    def make_transport(self, worker_id):
        if worker_id:
            raise OSError("no port")
        return SocketTransport()
"""


@pytest.mark.slow
def test_between_processes_a_sound_transport_passes(tmp_path: Path) -> None:
    some = (
        "any_conversation",
        "lost_peer_is_found",
        "peer_that_receives_nothing",
        "close_flushes",
        "nobody_listens_after_close",
        "connections_that_ended_are_closed",
    )
    done = _pytest(tmp_path, *(f"TestSockets::test_{name}" for name in some), source=_BETWEEN)
    assert done.returncode == 0, done.stdout
    assert f"{len(some)} passed" in done.stdout


@pytest.mark.slow
def test_between_processes_broken_transports_fail(tmp_path: Path) -> None:
    """One of them passes if all workers are in one process: they share a variable of its module."""
    broken = {
        "LearnsBetween": "worker0.learn(1, 'worker1', ITS ADDRESS)",
        "Ends": "worker1.learn(0, 'worker0', ITS ADDRESS)",
        "Texts": "worker1: inbox.deliver(..., ['text'])",
        "Leaves": "1 x thread left in the second process",
        "CannotBeMade": "OSError: no port",
    }
    tests = [f"Test{name}::test_one_message" for name in (*broken, "Learns")]
    done = _pytest(tmp_path, *tests, source=_BETWEEN)
    assert f"{len(broken)} failed, 1 passed" in done.stdout, done.stdout
    assert "FAILED test_mine.py::TestLearns::" not in done.stdout
    for words in broken.values():
        assert words in done.stdout, done.stdout
    assert "RuntimeError: the second process has ended by SIGSEGV" in done.stdout


def _pytest(
    folder: Path, *tests: str, source: str = _IN_A_MODULE
) -> subprocess.CompletedProcess[str]:
    (folder / "test_mine.py").write_text(dedent(source))
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
        # In this repository's environment a package with a pytest plugin is editable, and imported early.
        "-W",
        "ignore:Module already imported so cannot be rewritten; _editable",
        "--rootdir",
        str(folder),
        "-c",
        "/dev/null",
    ]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"test_mine.py::{test}" for test in tests)],
        cwd=folder,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_run_imports_no_torch(tmp_path: Path) -> None:
    some = ("TestSockets::test_one_message", "TestSockets::test_any_messages")
    done = _pytest(tmp_path, *some, "test_torch_is_not_imported")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.slow
def test_a_class_without_make_transport_is_told_what_it_lacks(tmp_path: Path) -> None:
    done = _pytest(tmp_path, "TestUnfinished::test_one_message")
    assert "TestUnfinished has no make_transport(worker_id)" in done.stdout


def test_the_kit_imports_no_torch() -> None:
    code = "import sys, rpc_backends_testing.transports.contract; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_failing_property_gives_the_smallest_example() -> None:
    seen: list[list[int]] = []

    def check(sizes: list[int]) -> None:
        seen.append(sizes)
        assert all(size < 100 for size in sizes)

    from hypothesis import strategies

    with pytest.raises(AssertionError):
        holds_for(check, strategies.lists(strategies.integers(0, 1000)), examples=100)
    assert [100] in seen


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ([b"bb", b"a"], "the same parts in another order"),
        ([b"abb"], "divided into other parts"),
        ([b"a", b"b"], "[1 B, 1 B]"),
        ([b"a", b"bc"], "in part 1, 1 bytes differ, the first at 1"),
        ([], "no parts"),
    ],
)
def test_a_difference_is_told_in_words(got: list[bytes], words: str) -> None:
    assert words in (difference([b"a", b"bb"], got) or "")


def test_parts_of_messages_differ() -> None:
    parts = message("seed", [40, 40]) + message("other", [40, 40])
    assert len(set(parts)) == 4


def test_a_call_that_does_not_return_is_reported_with_its_stack() -> None:
    import threading

    never = threading.Event()
    with pytest.raises(DeviationError, match=r"wait \(.*threading.py:\d+\)") as error:
        Limits(0.01).call("worker0.close(0)", never.wait)
    assert error.value.deviation.call == "worker0.close(0)"
    never.set()


def test_limits_are_short_after_two_were_exceeded() -> None:
    limits = Limits()
    assert limits.seconds == SECONDS
    limits.note_passed()
    limits.note_passed()
    assert limits.seconds == SECONDS_WHEN_BROKEN


def test_a_factory_that_fails_is_named() -> None:
    def make(worker_id: int) -> None:
        raise OSError("no port")

    with pytest.raises(DeviationError, match=r"make_transport\(0\)[^$]*OSError: no port"):
        Workers(make, Limits())().__enter__()
