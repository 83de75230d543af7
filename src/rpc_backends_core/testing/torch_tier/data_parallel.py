"""Data-parallel modules of torch's tests, kept until their process ends: letting go of one can hang it.

The destructor of such a module joins the thread of its Gloo group with the GIL held, and that thread
may just then be waiting for the GIL, to let go of a tensor. The whole process stands still, whatever the
RPC backend (torch 2.13; https://github.com/pytorch/pytorch/issues/56297). Forked processes end without
destructors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_kept: list[object] = []


def run_keeping(target: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Run what a process of a test is for, and keep each data-parallel module that it makes."""
    from torch.nn.parallel import DistributedDataParallel

    make = DistributedDataParallel.__init__

    def make_and_keep(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        _kept.append(self)

    DistributedDataParallel.__init__ = make_and_keep  # type: ignore[method-assign]
    target(*args, **kwargs)
