"""The accelerator of the tests runs behind, so that a missing wait shows."""

from __future__ import annotations

from typing import Any

import torch
from agents_kit import in_worker

from support import late_device

#: Seconds that an operation takes; far more than a test needs to look.
DELAY = 0.2


@in_worker
def test_operations_run_behind(me: Any) -> None:
    late_device.load()
    late_device.set_delay(DELAY)
    ones = torch.zeros(1000, device="late:1").add_(1)
    early, late = torch.zeros(1000), torch.zeros(1000)

    early.copy_(ones, non_blocking=True)
    seen = early.clone()
    late.copy_(ones)

    assert not seen.any()
    assert late.eq(1).all()


@in_worker
def test_streams_do_not_wait_for_each_other(me: Any) -> None:
    late_device.load()
    late_device.set_delay(DELAY)
    on_default = torch.zeros(1000, device="late:0").add_(1)

    with torch.Stream("late:0"):
        seen = on_default.cpu()

    assert not seen.eq(1).any()
    assert on_default.cpu().eq(1).all()
