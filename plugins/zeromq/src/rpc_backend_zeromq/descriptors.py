"""Checks that the process may open as many file descriptors as a worker needs."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

logger = logging.getLogger("rpc_backends.zeromq")

#: Per peer: two for the connections to it (small and large messages), and two for its connections to us.
#: On links with long delays more are used, but such groups are small.
PER_PEER = 4
#: Descriptors that incoming connections leave to the program; Acceptor::kSpare in csrc.
SPARE = 32


def needed(open_now: int, workers: int) -> int:
    """Return how many descriptors a worker needs if all workers of its group call each other."""
    return open_now + PER_PEER * (workers - 1) + SPARE


def warn_if_few(name: str, workers: int) -> None:
    """Warn if the limit of this process is too low for a group of ``workers`` workers.

    This is not an error, because in few groups every worker calls every other.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    wanted = needed(open_now, workers)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        logger.warning(
            "ZEROMQ worker %r may have %d descriptors open (ulimit -n), but its group of %d "
            "workers needs up "
            "to %d: %d are open now, each other worker needs %d, and %d stay in reserve. Calls "
            "to workers for "
            "which no descriptor is left will fail. Raise the limit before you start the worker: "
            "ulimit -n %d.",
            *(name, limit, workers, wanted, open_now, PER_PEER, SPARE, wanted),
        )
