"""The descriptors that a worker needs: whether the process may open as many."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

logger = logging.getLogger("rpc_backends.zeromq")

#: For each other worker: the connection to it, three of libzmq's for that, and its connection to us.
PER_PEER = 5
#: What a worker leaves to the program when others connect; PendingConnections::kSpare in csrc.
SPARE = 32


def needed(open_now: int, workers: int) -> int:
    """Return how many descriptors a worker needs if all workers of its group call each other."""
    return open_now + PER_PEER * (workers - 1) + SPARE


def warn_if_few(name: str, workers: int) -> None:
    """Warn if the limit of this process is too low for a group of so many workers.

    It is no error: few groups have all workers call all others.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    wanted = needed(open_now, workers)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        logger.warning(
            "ZEROMQ worker %r may have %d descriptors open (ulimit -n). Its group of %d workers needs up "
            "to %d: %d are open now, each other worker takes %d, and %d are spare. Calls to workers for "
            "whom none is left will fail. Raise the limit before you start the worker: ulimit -n %d.",
            *(name, limit, workers, wanted, open_now, PER_PEER, SPARE, wanted),
        )
