"""Times of calls: alone, and beside a large one."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

MIB = 1 << 20
#: Seconds that a worker may take.
LIMIT_S = 170.0
#: The rows of *hosts*: the size of an echo in bytes, and how many are measured.
HOSTS = (
    ("no-op", 0, 2000),
    ("echo of 16 KiB", 16 << 10, 1000),
    ("echo of 1 MiB", MIB, 200),
    ("echo of 16 MiB", 16 * MIB, 20),
    ("echo of 64 MiB", 64 * MIB, 8),
)


def times(call: Callable[[], object], count: int, seconds: float) -> list[float]:
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < count and time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return taken


def summary(taken: list[float]) -> dict[str, float]:
    ordered = sorted(taken)
    return {
        "median": statistics.median(ordered),
        "p99": ordered[int(len(ordered) * 0.99)],
        "count": len(ordered),
    }


def beside(
    small: dict[str, Callable[[], object]], large: Callable[[], object]
) -> dict[str, dict[str, float]]:
    """Time each small call alone, and while another thread makes the large one in a loop."""
    values = {}
    large()
    for label, call in small.items():
        times(call, 100, 5)
        values[f"{label}, alone"] = summary(times(call, 1000, 4))
    ends, echoes = threading.Event(), [0]

    def echo() -> None:
        while not ends.is_set():
            large()
            echoes[0] += 1

    thread = threading.Thread(target=echo)
    begin = time.perf_counter()
    thread.start()
    for label, call in small.items():
        values[f"{label}, beside 64 MiB"] = summary(times(call, 20_000, 8))
    seconds = time.perf_counter() - begin
    ends.set()
    thread.join()
    values["echoes of 64 MiB"] = {"per second": echoes[0] / seconds}
    return values
