"""What a process has open after RPC is shut down: what torch itself keeps, once, and nothing of ours.

Torch makes its RRefContext once in a process, at the latest in the first shutdown, and it holds the
agent of that first group for good: the threads of its pool (asleep), its shared memory, and an event loop
with no thread. Nothing here can let go of it, so it is what the first group leaves; later groups leave
nothing.

A worker of rank 0 that hosts a TCP store, and leaves while others are still there, keeps the store for
them until it joins another group, or ends.
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
#: Seconds that something may take that takes a moment.
PATIENCE = 10.0


def run_group(
    workers: Workers, where: Meeting, join: Callable[..., None], *, graceful: bool
) -> list[Open]:
    """Have one group, and return what its workers have open when all have left."""
    workers.run(join, where.url, num_worker_threads=THREADS, _transports=None)
    workers.run(steps.call_all)
    if join is steps.join and graceful:
        workers.run(steps.leave)  # all together: each waits for the others
    else:
        for worker in workers:
            worker.call(steps.leave, graceful)
    return workers.run(opened)


def more(after: Open, before: Open) -> Counter[str]:
    """Return the files that are open after and were not before."""
    return Counter(after.files) - Counter(before.files)


def as_before(after: list[Open], before: list[Open]) -> bool:
    """Return whether no worker has more open than before."""
    pairs = list(zip(after, before, strict=True))
    return all(one.threads == other.threads and not more(one, other) for one, other in pairs)


@pytest.mark.parametrize("graceful", [True, False], ids=["graceful", "not graceful"])
@pytest.mark.parametrize("join", [steps.join, steps.join_dynamic])
def test_only_the_first_agents_pool_is_left_and_later_groups_leave_nothing(
    anywhere: Meeting, join: Callable[..., None], graceful: bool
) -> None:
    host_keeps_store = anywhere.kind == "tcp" and not (join is steps.join and graceful)
    with Workers(2, env=anywhere.env) as workers:
        workers.run(steps.warm_up)
        before = workers.run(opened)

        first = run_group(workers, anywhere, join, graceful=graceful)

        for worker, one, at_start in zip(workers, first, before, strict=True):
            if worker.index == 0 and host_keeps_store:
                continue
            assert one.threads == at_start.threads + THREADS
            left = more(one, at_start)
            assert left.pop("/memfd:tensorpipe_shm (deleted)") > 0
            assert left == {"anon_inode:[eventpoll]": 1, "anon_inode:[eventfd]": 1}

        for _ in range(2):
            again = run_group(workers, anywhere, join, graceful=graceful)
            # The thread of a store's host closes what a member has closed a moment later.
            end = time.monotonic() + PATIENCE
            while not as_before(again, first) and time.monotonic() < end:
                again = workers.run(opened)
            assert as_before(again, first), [again, first]
