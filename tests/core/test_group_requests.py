"""What a group costs its store: a number of requests per worker that does not grow with the group."""

from __future__ import annotations

import collections
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from core.kit import Workers, joining

SIZES = (2, 4, 8, 16, 32)


class CountingStore(dist.Store):
    """A store in front of another one that counts who asks how often."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner
        self.requests: collections.Counter[str] = collections.Counter()

    def _count(self) -> None:
        self.requests[threading.current_thread().name] += 1

    def set(self, key: str, value: Any) -> None:
        self._count()
        self._inner.set(key, bytes(value).decode())

    def get(self, key: str) -> bytes:
        self._count()
        value: bytes = self._inner.get(key)
        return value

    def add(self, key: str, amount: int) -> int:
        self._count()
        return int(self._inner.add(key, amount))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        self._count()
        value: bytes = self._inner.compare_set(
            key, bytes(expected).decode(), bytes(desired).decode()
        )
        return value

    def check(self, keys: list[str]) -> bool:
        self._count()
        return bool(self._inner.check(keys))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._count()
        values: list[bytes] = self._inner.multi_get(keys)
        return values

    def has_extended_api(self) -> bool:
        return True

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        # Not counted: how often a wait is begun anew depends on how long the others take.
        self._inner.wait(keys, timeout or timedelta(seconds=10))


def count(world_size: int, *, exchanges: int) -> list[int]:
    """Form a group, exchange, and leave; return the requests of each worker, fewest first."""
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
def test_the_requests_of_a_worker_do_not_grow_with_the_group(exchanges: int) -> None:
    counts = {size: count(size, exchanges=exchanges) for size in SIZES}
    # About six to form the group and leave it, and three for an exchange. Who comes last has a few
    # more, and in each step that may be another one.
    most = 13 + 5 * exchanges
    for size, each in counts.items():
        assert each[-1] <= most, (size, each)


def test_joining_a_dynamic_group_takes_as_many_requests_whoever_is_there() -> None:
    store = CountingStore(dist.HashStore())
    numbers = []
    for rank in range(8):
        before = store.requests.total()
        joining(store, f"w{rank}", rank, None)()
        numbers.append(store.requests.total() - before)
    assert len(set(numbers)) == 1, numbers
