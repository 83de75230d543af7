"""A worker makes a number of store requests that does not grow with the group."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from core.kit import Workers, joining
from support.stores import CountingStore

SIZES = (2, 4, 8, 16, 32)


def count(world_size: int, *, exchanges: int) -> list[int]:
    """Form a group, exchange and leave; return the number of requests of each worker, ascending."""
    store = CountingStore(dist.HashStore())
    workers = Workers()

    def work(rank: int) -> None:
        threading.current_thread().name = f"rank {rank}"
        group = joining(store, f"w{rank}", rank, world_size)()
        for _ in range(exchanges):
            group.exchange(rank)
        group.end()

    for rank in range(world_size):
        workers.start(rank, lambda rank=rank: work(rank))  # type: ignore[misc]
    workers.all_results()
    assert len(store.requests) == world_size
    return sorted(store.requests.values())


@pytest.mark.parametrize("exchanges", [0, 1, 3])
def test_requests_per_worker_do_not_grow(exchanges: int) -> None:
    counts = {size: count(size, exchanges=exchanges) for size in SIZES}
    # A worker makes about seven requests to form and leave the group, and four for each exchange, among
    # them the check that ends each wait. The last to arrive makes a few more. In the worst case, the same
    # worker is last in each step.
    most = 14 + 6 * exchanges
    for size, each in counts.items():
        assert each[-1] <= most, (size, each)


def test_joining_a_dynamic_group_costs_constant_requests() -> None:
    store = CountingStore(dist.HashStore())
    numbers = []
    for rank in range(8):
        before = store.requests.total()
        joining(store, f"w{rank}", rank, None)()
        numbers.append(store.requests.total() - before)
    assert len(set(numbers)) == 1, numbers
