"""How the processes of torch's own suites run."""

from __future__ import annotations

import weakref
from pathlib import Path

from rpc_backends_core.testing.torch_tier.data_parallel import run_keeping
from support.workers import Me, Workers


def make_and_drop(me: Me, folder: Path) -> bool:
    import torch
    import torch.distributed as dist

    dropped = []

    def target() -> None:
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", world_size=1, rank=0)
        module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        dropped.append(weakref.ref(module))
        dist.destroy_process_group()

    run_keeping(target)
    return dropped[0]() is None


def test_a_data_parallel_module_of_a_test_is_kept_since_dropping_it_can_hang(
    tmp_path: Path,
) -> None:
    with Workers(1) as workers:
        assert not workers[0].call(make_and_drop, tmp_path)
