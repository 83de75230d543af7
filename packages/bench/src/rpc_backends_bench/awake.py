"""Keep idle cores awake during a measurement.

A core without work falls asleep, and a virtual core is given back to its host. To wake a core can take
longer than the call that needs it, and takes a different time each time. Linux lets no core sleep
while a process holds ``/dev/cpu_dma_latency`` open and has written a latency of 0 to it:
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
    """Keep all cores awake in the block if ``wanted`` is true.

    :raises OSError: the system has no such device, or the user may not write to it.
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
