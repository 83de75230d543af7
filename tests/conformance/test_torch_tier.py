"""The processes of torch's own suites avoid two races."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

from rpc_backends_testing.torch_tier.races import run_without_races
from support.command import wait_until
from support.workers import WorkerContext, Workers


def make_and_drop(me: WorkerContext, folder: Path) -> bool:
    import torch
    import torch.distributed as dist

    dropped = []

    def target() -> None:
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", world_size=1, rank=0)
        module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        dropped.append(weakref.ref(module))
        dist.destroy_process_group()

    run_without_races(target)
    return dropped[0]() is None


def test_data_parallel_modules_are_kept_alive(
    tmp_path: Path,
) -> None:
    with Workers(1) as workers:
        assert not workers[0].call(make_and_drop, tmp_path)


def start_group(me: WorkerContext, folder: Path) -> bool:
    import torch.distributed as dist

    waiting, ready, seen = folder / "waiting", folder / "ready", []
    make_group, barrier = dist.init_process_group, dist.barrier

    def make_group_slowly(*args: Any, **kwargs: Any) -> None:
        make_group(*args, **kwargs)
        if me.index == 1:
            wait_until(waiting.exists)  # until the other process is at the barrier
            ready.touch()

    def tell_and_meet() -> None:
        if me.index == 0:
            waiting.touch()
        barrier()

    def target() -> None:
        url = f"file://{folder}/group"
        dist.init_process_group("gloo", init_method=url, world_size=2, rank=me.index)
        seen.append(ready.exists())

    dist.init_process_group, dist.barrier = make_group_slowly, tell_and_meet
    run_without_races(target)
    return seen[0]


def test_init_process_group_waits_for_all_ranks(tmp_path: Path) -> None:
    with Workers(2) as workers:
        assert workers.run(start_group, tmp_path) == [True, True]
