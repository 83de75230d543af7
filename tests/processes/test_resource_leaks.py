"""After RPC is shut down, a process keeps open what torch keeps once, and nothing of this project.

Torch makes its RRefContext once in a process, in the first shutdown at the latest. It keeps the agent of
the first group for the life of the process: the sleeping threads of its pool, its shared memory, and an
event loop without a thread. No code outside torch can release it, so that is what the first group leaves.
Later groups leave nothing.

A worker of rank 0 that hosts a TCP store and leaves before the others keeps the store for them until it
joins another group or exits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from rpc_backends_testing.resource_leaks import Open, opened
from support import steps
from support.steps import Meeting
from support.workers import Workers

pytestmark = pytest.mark.slow

THREADS = 3
#: Seconds to wait for what takes a moment.
GRACE_PERIOD = 10.0


def run_group(
    workers: Workers, where: Meeting, join: Callable[..., None], *, graceful: bool
) -> list[Open]:
    """Run one group; return what its workers have open when all have left."""
    workers.run(join, where.url, num_worker_threads=THREADS, _transports=None)
    workers.run(steps.call_all)
    if join is steps.join and graceful:
        workers.run(steps.leave)  # at the same time: each waits for the others
    else:
        for worker in workers:
            worker.call(steps.leave, graceful)
    return workers.run(opened)


def new_files(after: Open, before: Open) -> Counter[str]:
    """Return the files that are open after the group and were not open before it."""
    return Counter(after.files) - Counter(before.files)


def no_more_open(after: list[Open], before: list[Open]) -> bool:
    """Return whether no worker has new files open, and each has as many threads as before."""
    pairs = list(zip(after, before, strict=True))
    return all(
        now.threads == before.threads and not new_files(now, before) for now, before in pairs
    )


@pytest.mark.parametrize("graceful", [True, False], ids=["graceful", "not graceful"])
@pytest.mark.parametrize("join", [steps.join, steps.join_dynamic])
def test_only_the_first_group_leaves_its_agent_open(
    anywhere: Meeting, join: Callable[..., None], graceful: bool
) -> None:
    host_keeps_store = anywhere.kind == "tcp" and not (join is steps.join and graceful)
    with Workers(2, env=anywhere.env) as workers:
        workers.run(steps.warm_up)
        before = workers.run(opened)

        first = run_group(workers, anywhere, join, graceful=graceful)

        for worker, after, at_start in zip(workers, first, before, strict=True):
            if worker.index == 0 and host_keeps_store:
                continue
            assert after.threads == at_start.threads + THREADS
            left = new_files(after, at_start)
            assert left.pop("/memfd:tensorpipe_shm (deleted)") > 0
            assert left == {"anon_inode:[eventpoll]": 1, "anon_inode:[eventfd]": 1}

        for _ in range(2):
            again = run_group(workers, anywhere, join, graceful=graceful)
            # The store's host closes its side of a member's connection a moment after the member.
            end = time.monotonic() + GRACE_PERIOD
            while not no_more_open(again, first) and time.monotonic() < end:
                again = workers.run(opened)
            assert no_more_open(again, first), [again, first]
