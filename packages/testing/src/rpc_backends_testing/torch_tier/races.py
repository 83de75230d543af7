"""Avoids two races in torch's data-parallel tests, which do not involve the RPC backend.

**Deleting a data-parallel module can hang.** Its destructor holds the GIL and joins the thread of its
Gloo group, which may be waiting for the GIL to delete a tensor (torch 2.13;
https://github.com/pytorch/pytorch/issues/56297). So a process keeps the modules that it creates. Forked
processes end without destructors.

**A test's master calls a trainer before the trainer has its process group.** ``init_process_group``
returns when the other ranks are connected, before it has returned on them. The call then creates another
group there, in two threads at once, and the ranks mix up the groups. So here ``init_process_group`` ends
with a barrier of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_kept: list[object] = []


def run_without_races(target: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Run the target of a test's process."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    make_module = DistributedDataParallel.__init__
    make_group = dist.init_process_group

    def make_and_keep_module(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        make_module(self, *args, **kwargs)
        _kept.append(self)

    def make_group_and_meet(*args: Any, **kwargs: Any) -> None:
        make_group(*args, **kwargs)
        if dist.get_backend() == "gloo":
            dist.barrier()

    DistributedDataParallel.__init__ = make_and_keep_module  # type: ignore[method-assign]
    dist.init_process_group = make_group_and_meet
    target(*args, **kwargs)
