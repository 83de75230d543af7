"""Properties of worker ids and autograd ids, for any ids that torch has fixed in earlier groups."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from core.kit import Workers, joining
from rpc_backends_core._group import composition

Fixed = list[int | None]


def cases() -> Iterator[Fixed]:
    """Yield all small groups and some large ones: each worker's id in an earlier group, or None."""
    for size in range(1, 5):
        yield from map(list, itertools.product([None, *range(size + 1)], repeat=size))
    dice = random.Random(1)
    for _ in range(300):
        size = dice.randint(5, 40)
        ids = [None, *range(2 * size), composition.MAX_ID, composition.MAX_ID - 1]
        yield [dice.choice(ids) for _ in range(size)]


def test_worker_ids_are_a_permutation_of_the_ranks() -> None:
    for fixed in cases():
        assert sorted(composition.worker_ids(fixed)) == list(range(len(fixed))), fixed


def test_a_worker_keeps_an_earlier_id_that_is_unique() -> None:
    for fixed in cases():
        ids = composition.worker_ids(fixed)
        for rank, earlier in enumerate(fixed):
            if earlier is not None and earlier < len(fixed) and fixed.count(earlier) == 1:
                assert ids[rank] == earlier, fixed


def test_exactly_one_worker_keeps_a_shared_id() -> None:
    for fixed in cases():
        ids = composition.worker_ids(fixed)
        for earlier in {
            earlier for earlier in fixed if earlier is not None and earlier < len(fixed)
        }:
            keepers = [rank for rank in range(len(fixed)) if fixed[rank] == ids[rank] == earlier]
            assert len(keepers) == 1, fixed


def test_ids_of_fresh_processes_are_their_ranks() -> None:
    for size in (1, 2, 50):
        ranks = list(range(size))
        assert composition.worker_ids([None] * size) == ranks
        assert composition.autograd_ids([None] * size, ranks) == ranks


def test_a_fresh_process_gets_its_rank_if_free() -> None:
    for fixed in cases():
        ids = composition.worker_ids(fixed)
        for rank, earlier in enumerate(fixed):
            if earlier is None and rank not in fixed:
                assert ids[rank] == rank, fixed


def test_autograd_ids_that_torch_has_fixed_are_kept() -> None:
    for fixed in cases():
        ids = composition.autograd_ids(fixed, composition.worker_ids(fixed))
        for rank, earlier in enumerate(fixed):
            assert earlier is None or ids[rank] == earlier, fixed


def test_autograd_ids_are_unique_unless_fixed() -> None:
    for fixed in cases():
        ids = composition.autograd_ids(fixed, composition.worker_ids(fixed))
        for first, second in itertools.combinations(range(len(fixed)), 2):
            if fixed[first] is None or fixed[second] is None:
                assert ids[first] != ids[second], fixed


def test_every_id_fits_into_15_bits() -> None:
    for fixed in cases():
        ids = composition.autograd_ids(fixed, composition.worker_ids(fixed))
        assert all(0 <= worker_id < 2**15 for worker_id in ids), fixed


def test_ids_fixed_in_earlier_groups_reach_the_members(caplog: pytest.LogCaptureFixture) -> None:
    store = dist.HashStore()
    workers = Workers()
    for rank, fixed in enumerate([1, None, None]):
        workers.start(rank, joining(store, f"w{rank}", rank, 3, fixed_id=fixed))
    groups = workers.all_results()
    assert [(m.rank, m.worker_id, m.autograd_id) for m in groups[0].members] == [
        (0, 1, 1),
        (1, 0, 0),
        (2, 2, 2),
    ]
    assert [group.autograd_id for group in groups] == [1, 0, 2]
    assert caplog.messages == []


def test_members_with_one_fixed_id_are_warned_by_name(caplog: pytest.LogCaptureFixture) -> None:
    store = dist.HashStore()
    workers = Workers()
    with caplog.at_level(logging.WARNING):
        for rank, fixed in enumerate([1, 1, None]):
            workers.start(rank, joining(store, f"w{rank}", rank, 3, fixed_id=fixed))
        workers.all_results()
    assert len(caplog.messages) == 2
    assert all("were both worker 1 in earlier groups" in text for text in caplog.messages)
