"""A time limit for what cannot be interrupted: requests to a store whose host may be suspended."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: The time limit in seconds of one request to a store while a worker joins. The variable
#: RPC_BACKENDS_JOIN_TIMEOUT limits the whole join.
JOIN_TIMEOUT = 60.0
_SLICE = 1.0
#: Why a store says nothing, and what to do.
HOST_MAY_HANG = (
    "The process that hosts it (rank 0, or the launcher) may be suspended or unreachable: resume it, or "
    "restart all workers."
)


class LateError(Exception):
    """A function takes too long; its thread goes on.

    :ivar thread: the thread that the function runs on.
    """

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self.thread = thread


def within(seconds: float, work: Callable[[], T], cancel: Callable[[], object] | None = None) -> T:
    """Run ``work`` on a thread of its own; return what it returns, or raise what it raises.

    If no thread can be started, ``work`` runs on the calling thread, without a time limit.

    :param cancel: ends ``work`` early; called if the calling thread is interrupted, which then waits up
        to a second for ``work`` to end.
    :raises LateError: ``work`` takes longer than ``seconds``. Its thread keeps running.
    """
    outcomes: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcomes.put((work(), None))
        except BaseException as error:
            outcomes.put((None, error))

    # Named after the calling thread, so that a list of threads shows who waits.
    name = threading.current_thread().name
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        try:
            thread.start()
        except RuntimeError:  # too many threads, or too little memory for one
            return work()
        left = seconds
        while True:
            # In slices, so that the time in which this very process is suspended does not count.
            piece = min(left, _SLICE)
            try:
                value, raised = outcomes.get(timeout=piece)
                break
            except queue.Empty:
                left -= piece
                if left <= 0:
                    raise LateError(thread) from None
        thread.join()  # ``work`` has ended, so its thread ends at once
    except KeyboardInterrupt:
        if cancel is not None:
            cancel()
        with contextlib.suppress(RuntimeError):  # the thread was not started
            thread.join(_SLICE)
        raise
    if raised is not None:
        try:
            raise raised
        finally:
            del raised  # its traceback leads to this frame
    return value  # type: ignore[return-value]
