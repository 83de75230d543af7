"""Several groups, one after another: of the same or other processes, under the same or other ranks.

In stock torch, processes that have been in different numbers of groups never meet, and a process must
keep its first rank.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed import rpc

from support import steps
from support.steps import AT_ONCE, Meeting
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow


def everybody(*names: str) -> dict[str, str]:
    return {name: name for name in sorted(names)}


def assert_a_group_works(
    workers: Workers, where: Meeting, ranks: dict[int, int], **options: object
) -> None:
    """Form a static group of some workers, use it and leave it.

    :param ranks: rank by the worker's index.
    """
    names = {f"worker{index}": rank for index, rank in ranks.items()}
    indices = list(ranks)
    workers.run(
        steps.join,
        where.url,
        world_size=len(ranks),
        only={index: {"rank": rank} for index, rank in ranks.items()},
        on=indices,
        **options,
    )
    assert workers.run(steps.members, on=indices) == [names] * len(ranks)
    assert workers.run(steps.call_all, on=indices) == [everybody(*names)] * len(ranks)
    assert workers.run(my_rank, on=indices) == list(ranks.values())
    for index, rank in ranks.items():
        assert workers[indices[0]].call(steps.call, rank).split()[0] == f"worker{index}"
    workers.run(steps.leave, on=indices)


def my_rank(me: WorkerContext) -> int:
    return int(rpc.get_worker_info().id)


def test_the_same_workers_meet_again_under_the_same_ranks(anywhere: Meeting) -> None:
    with Workers(2, env=anywhere.env) as workers:
        for _ in range(4):
            assert_a_group_works(workers, anywhere, {0: 0, 1: 1})
        assert [worker.end() for worker in workers] == [0, 0]


def test_the_same_workers_meet_again_under_other_ranks(anywhere: Meeting) -> None:
    """Stock torch raises "Container is already initialized with worker_id"."""
    with Workers(3, env=anywhere.env) as workers:
        assert_a_group_works(workers, anywhere, {0: 0, 1: 1, 2: 2})
        assert_a_group_works(workers, anywhere, {0: 1, 1: 0, 2: 2})
        assert_a_group_works(workers, anywhere, {0: 2, 1: 1, 2: 0})


def test_later_groups_may_have_other_sizes(anywhere: Meeting) -> None:
    with Workers(4, env=anywhere.env) as workers:
        assert_a_group_works(workers, anywhere, {0: 0, 1: 1})
        assert_a_group_works(workers, anywhere, {0: 0, 1: 1, 2: 2, 3: 3})
        assert_a_group_works(workers, anywhere, {0: 0})
        assert_a_group_works(workers, anywhere, {0: 0, 2: 1, 3: 2})


def test_a_new_process_meets_one_with_two_earlier_groups(anywhere: Meeting) -> None:
    with Workers(2, env=anywhere.env) as workers:
        assert_a_group_works(workers, anywhere, {0: 0, 1: 1})
        assert_a_group_works(workers, anywhere, {0: 0, 1: 1})
        workers[1].kill()
        workers.add()
        assert_a_group_works(workers, anywhere, {0: 0, 2: 1})


def test_a_new_process_has_the_name_of_an_earlier_one(anywhere: Meeting) -> None:
    """In stock torch, ``shutdown`` hangs: each process counts its gathers with workers of these names."""
    with Workers(2, env=anywhere.env) as workers:
        assert_a_group_works(workers, anywhere, {0: 0, 1: 1})
        workers[1].kill()
        workers.add()
        workers.run(
            steps.join,
            anywhere.url,
            world_size=2,
            only={0: {"rank": 0}, 2: {"rank": 1, "name": "worker1"}},
            on=[0, 2],
        )
        workers.run(steps.leave, on=[0, 2])


def test_a_new_process_replaces_rank_0(anywhere: Meeting) -> None:
    """Rank 0 hosts the TCP store."""
    with Workers(2, env=anywhere.env) as workers:
        assert_a_group_works(workers, anywhere, {0: 0, 1: 1})
        assert workers[0].end() == 0
        workers.add()
        assert_a_group_works(workers, anywhere, {2: 0, 1: 1})


def test_a_killed_job_restarts_on_the_same_store(tmp_path: Path) -> None:
    with steps.meeting("agent", tmp_path) as where, Workers(2, env=where.env) as workers:
        workers.run(steps.join, where.url)
        for worker in workers:
            worker.kill()
        for _ in range(2):
            workers.add()
        assert_a_group_works(workers, where, {2: 0, 3: 1})


def test_two_processes_with_one_earlier_rank_can_meet(anywhere: Meeting) -> None:
    """Torch fixes the worker id of a process for life, and two of these processes have the same one."""
    with Workers(3, env=anywhere.env) as workers:
        assert_a_group_works(workers, anywhere, {0: 0, 1: 1})
        assert_a_group_works(workers, anywhere, {0: 0, 2: 1})
        assert_a_group_works(workers, anywhere, {0: 0, 1: 1, 2: 2})


def test_static_and_dynamic_groups_alternate(anywhere: Meeting) -> None:
    with Workers(2, env=anywhere.env) as workers:
        for _ in range(2):
            assert_a_group_works(workers, anywhere, {0: 0, 1: 1})
            workers.run(steps.join_dynamic, anywhere.url)
            assert workers.run(steps.call_all) == [everybody("worker0", "worker1")] * 2
            workers.run(steps.leave)


def test_a_group_can_follow_an_ungraceful_shutdown(anywhere: Meeting) -> None:
    with Workers(2, env=anywhere.env) as workers:
        workers.run(steps.join, anywhere.url)
        workers.run(steps.leave, False)
        assert_a_group_works(workers, anywhere, {0: 0, 1: 1})


def test_a_later_group_may_have_other_names_and_options(anywhere: Meeting) -> None:
    with Workers(2, env=anywhere.env) as workers:
        workers.run(steps.join, anywhere.url, num_worker_threads=2, rpc_timeout=20)
        workers.run(steps.leave)

        workers.run(
            steps.join,
            anywhere.url,
            only={0: {"name": "left"}, 1: {"name": "right"}},
            num_worker_threads=3,
            rpc_timeout=30,
        )

        assert workers.run(steps.call_all) == [everybody("left", "right")] * 2
        assert workers.run(threads_and_timeout) == [("3", 30.0)] * 2
        workers.run(steps.leave)


def threads_and_timeout(me: WorkerContext) -> tuple[str, float]:
    agent = rpc.api._get_current_rpc_agent()
    return agent.get_metrics()["agent.thread_pool_size"], rpc.get_rpc_timeout()


def test_a_later_group_may_use_another_backend(where: Meeting) -> None:
    with Workers(2, env=where.env) as workers:
        assert_a_group_works(workers, where, {0: 0, 1: 1})
        assert_a_group_works(workers, where, {0: 0, 1: 1}, backend="FAULTY_TENSORPIPE")
        assert_a_group_works(workers, where, {0: 1, 1: 0}, backend="FAULTY_TENSORPIPE")
        assert_a_group_works(workers, where, {0: 0, 1: 1})


def test_distributed_autograd_works_under_other_ranks(where: Meeting) -> None:
    with Workers(2, env=where.env) as workers:
        workers.run(steps.join, where.url)
        assert workers.run(steps.differentiate, "worker1") == [[3.0, 3.0]] * 2
        workers.run(steps.leave)

        workers.run(steps.join, where.url, only={0: {"rank": 1}, 1: {"rank": 0}})

        assert workers.run(steps.differentiate, "worker1") == [[3.0, 3.0]] * 2
        assert workers.run(steps.differentiate, "worker0") == [[3.0, 3.0]] * 2
        workers.run(steps.leave)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_leaving_a_later_group_that_used_rrefs_is_quick(where: Meeting, dynamic: bool) -> None:
    """Torch makes one RRefContext in a process and cannot delete the RRefs of a later group.

    The test checks only that an attempt costs no time, and not that an RRef of a later group works.
    """
    join = steps.join_dynamic if dynamic else steps.join
    with Workers(2, env=where.env) as workers:
        workers.run(join, where.url)
        assert workers[0].call(steps.use_rref, "worker1") == [2.0, 2.0, 2.0]
        workers.run(steps.leave)

        workers.run(join, where.url)
        workers.run(keep_rref, "worker1")
        leaving = [worker.start(steps.leave) for worker in workers]

        for step in leaving:
            step.result()
            assert step.outcome().seconds < AT_ONCE


def keep_rref(me: WorkerContext, to: str) -> None:
    import torch

    me.memory["rref"] = rpc.remote(to, torch.full, args=((3,), 1.0))


def test_starting_twice_without_a_shutdown_is_refused(url: str) -> None:
    with Workers(1) as workers:
        workers[0].call(steps.join, url)

        failure = workers[0].start(steps.join, url).error()

        assert failure.kinds[0] == "RuntimeError"
        assert failure.text == "RPC is already initialized"
        assert workers[0].call(steps.call_all) == {"worker0": "worker0"}
        workers[0].call(steps.leave)
