"""Stores for tests that count requests."""

from __future__ import annotations

import collections
import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist


class CountingStore(dist.Store):
    """A store that counts the requests before it passes them on.

    :ivar requests: number by the name of the calling thread.
    :ivar kinds: number by kind of request.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner
        self.requests: collections.Counter[str] = collections.Counter()
        self.kinds: collections.Counter[str] = collections.Counter()

    def _count(self, kind: str) -> None:
        self.requests[threading.current_thread().name] += 1
        self.kinds[kind] += 1

    def set(self, key: str, value: Any) -> None:
        self._count("set")
        self._inner.set(key, bytes(value).decode())

    def get(self, key: str) -> bytes:
        self._count("get")
        value: bytes = self._inner.get(key)
        return value

    def add(self, key: str, amount: int) -> int:
        self._count("add")
        return int(self._inner.add(key, amount))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        self._count("compare_set")
        value: bytes = self._inner.compare_set(
            key, bytes(expected).decode(), bytes(desired).decode()
        )
        return value

    def check(self, keys: list[str]) -> bool:
        exist = bool(self._inner.check(keys))
        # A worker that waits for a key checks again and again, as long as the other workers take.
        if exist:
            self._count("check")
        return exist

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._count("multi_get")
        values: list[bytes] = self._inner.multi_get(keys)
        return values

    def has_extended_api(self) -> bool:
        return True

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._inner.wait(keys, timeout or timedelta(seconds=10))
