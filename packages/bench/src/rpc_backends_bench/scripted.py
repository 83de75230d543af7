"""The TorchScript function that is called. It has its own module because the import compiles it."""

from __future__ import annotations

import torch


@torch.jit.script
def increment(value: torch.Tensor) -> torch.Tensor:
    """Run on the callee: add one."""
    return value + 1
