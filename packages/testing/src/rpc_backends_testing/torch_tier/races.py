"""Two races of torch's data-parallel tests, kept from failing them; no RPC backend has a part in either.

**Letting go of a data-parallel module can hang.** Its destructor joins the thread of its Gloo group with
the GIL held, and that thread may just then be waiting for the GIL, to let go of a tensor (torch 2.13;
https://github.com/pytorch/pytorch/issues/56297). So a process keeps those that it makes. Forked processes
end without destructors.

**A test's master calls a trainer before that has its process group.** ``init_process_group`` returns
when the other ranks are connected, which need not have returned from it, and the call makes a group of
its own there: in two threads at once, so that ranks take different groups for one. So all wait for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_kept: list[object] = []


def run_without_races(target: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Run what a process of a test is for."""
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
