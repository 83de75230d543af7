"""Keeping idle cores awake while it is measured.

A core that has nothing to do falls asleep, and a virtual one is given back to its host; to wake it can
take longer than the call that it is woken for, and how long depends on what its sleep was like. As long
as somebody holds ``/dev/cpu_dma_latency`` open with a latency of 0 in it, Linux lets no core sleep:
https://docs.kernel.org/power/pm_qos_interface.html.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

DEVICE = Path("/dev/cpu_dma_latency")


@contextlib.contextmanager
def kept_awake(wanted: bool = True) -> Iterator[None]:
    """Keep all cores awake in the block, if that is ``wanted``.

    :raises OSError: the system cannot, or this user may not.
    """
    if not wanted:
        yield
        return
    device = os.open(DEVICE, os.O_WRONLY)
    try:
        os.write(device, struct.pack("=i", 0))
        yield
    finally:
        os.close(device)
