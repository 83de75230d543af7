"""If a store contains what no worker of the group wrote, the error names the key."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch.distributed as dist

from core.kit import Workers, form, joining
from rpc_backends_core._group import contents
from rpc_backends_core._group.waiting import StoreAccess
from rpc_backends_core.spi import StoreError

pytestmark = pytest.mark.usefixtures("short_slices")

GARBAGE = ["", "none", "[]", "[" * 100_000, '{"members": 1}', "null", "x" * 4_000_000]


@pytest.fixture
def store() -> Any:
    return dist.HashStore()


def join_error(store: Any, key: str, text: str, world_size: int | None = 2) -> str:
    """Join on a store whose ``key`` has the value ``text``; return the error."""
    store.set(f"rpc_backends/{key}", text)
    with pytest.raises(StoreError) as caught:
        joining(store, "w0", 0, world_size)()
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize("text", GARBAGE)
def test_an_invalid_group_names_its_key(store: Any, text: str) -> None:
    if text == "":
        text = " "  # an empty value counts as a missing one
    assert "under '0/group'" in join_error(store, "0/group", text)


@pytest.mark.parametrize("text", ["none", "static/x", "static/0", "dynamic!", "9" * 30])
def test_an_invalid_kind_names_its_key(store: Any, text: str) -> None:
    assert "under '0/kind'" in join_error(store, "0/kind", text)


@pytest.mark.parametrize("world_size", [2, None])
def test_an_invalid_generation_names_its_key(store: Any, world_size: int | None) -> None:
    assert "under 'generation'" in join_error(store, "generation", "none", world_size)


def test_a_generation_without_its_predecessor_is_an_error(store: Any) -> None:
    assert "there is no group 6" in join_error(store, "generation", "7", None)


@pytest.mark.parametrize("spare", ["none", "-8", "40000"])
def test_invalid_or_exhausted_ids_are_an_error(store: Any, spare: str) -> None:
    store.set("rpc_backends/0/autograd/0", "another process")
    assert "under '0/autograd/spare'" in join_error(store, "0/autograd/spare", spare, None)


def test_an_invalid_arrival_fails_the_waiting_workers(store: Any) -> None:
    workers = Workers()
    workers.start(0, joining(store, "w0", 0, 2))
    store.set("rpc_backends/0/slot/1", '{"name": 3}')
    workers.join()
    assert "under '0/slot/1'" in str(workers.errors[0])


@pytest.mark.parametrize("text", GARBAGE)
def test_an_invalid_exchange_names_its_key(store: Any, text: str) -> None:
    (group,) = form(store, 1)
    group.store.set("exchange/1/all", text or " ")
    with pytest.raises(StoreError, match="under 'exchange/1/all'"):
        group.exchange("mine")


def test_too_large_an_exchange_is_refused(store: Any) -> None:
    (group,) = form(store, 1)
    with pytest.raises(ValueError, match="the limit is 1048576"):
        group.exchange("x" * contents.MOST_BYTES)


def test_requests_after_a_hanging_one_fail_at_once(store: Any) -> None:
    access = StoreAccess(store)
    gate = threading.Event()
    with pytest.raises(StoreError, match="has not answered for"):
        access.ask(lambda _: gate.wait(), 0.05)
    with pytest.raises(StoreError, match="has not answered an earlier request"):
        access.ask(lambda store: store.add("x", 1), 60)
    gate.set()
    assert access._late is not None
    access._late.join(10)
    assert access.ask(lambda store: store.add("x", 1)) == 1
