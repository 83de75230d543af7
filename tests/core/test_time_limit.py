"""A time limit for requests to a store."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from rpc_backends_core._time_limit import within


def test_an_interrupt_cancels_the_work_and_leaves_no_thread() -> None:
    threads, cancelled = [], threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(60)

    with pytest.raises(KeyboardInterrupt):
        within(60, work, cancelled.set)

    (thread,) = threads
    assert not thread.is_alive()


def test_an_interrupt_ends_the_wait_for_work_that_hangs() -> None:
    answer = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        answer.wait()

    with pytest.raises(KeyboardInterrupt):
        within(60, work)

    answer.set()
