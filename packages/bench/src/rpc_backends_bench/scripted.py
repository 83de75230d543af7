"""The TorchScript function that is called; a module of its own, since importing it compiles it."""

from __future__ import annotations

import torch


@torch.jit.script
def increment(value: torch.Tensor) -> torch.Tensor:
    """Run on the callee: add one."""
    return value + 1
