"""Real groups are compared with listed counts, and a relay counts requests and bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from support import scale

Count, Phase = scale.counting.Count, scale.counting.Phase
SUBJECT, SIZE = "ZEROMQ", 4


@pytest.fixture
def count() -> Count:
    """Return the counts of a real group that does exactly what is listed."""
    phases = []
    for name, listed in scale.expected(SUBJECT, SIZE, dynamic=False).items():
        held = [{"connections": number} for number in listed["connections"]]
        nothing = [0] * (SIZE - 1)
        phases.append(
            Phase(
                name,
                requests=[listed["requests"], *({} for _ in nothing)],
                store_sent=[0, *nothing],
                store_received=[listed["received"], *nothing],
                store_connections=[0, *nothing],
                calls=listed["calls"],
                call_bytes=[0, *nothing],
                held=held,
                seconds=0.0,
            )
        )
    return Count(SUBJECT, False, SIZE, before=[{"connections": 0}] * SIZE, phases=phases)


def test_a_group_as_listed_has_no_differences(count: Count) -> None:
    assert scale.differences(count) == []


@pytest.mark.parametrize("what", ["requests", "calls", "connections", "bytes"])
def test_a_difference_from_the_list_is_reported(count: Count, what: str) -> None:
    start, ring, *_ = count.phases
    if what == "requests":
        start.requests[0] = {**start.requests[0], "add": start.requests[0]["add"] + 1}
    elif what == "calls":
        ring.calls = [*ring.calls[:-1], ring.calls[-1] + 1]
    elif what == "connections":
        ring.held[1] = {"connections": ring.held[1]["connections"] + 1}
    else:
        start.store_received[0] *= 2
    (text,) = scale.differences(count)
    assert what in text


@pytest.fixture
def relay() -> Iterator[scale.store_relay.StoreRelay]:
    """Put a relay between two workers and a store."""
    with scale.store_relay.StoreRelay(2) as relay:
        yield relay


def client(relay: scale.store_relay.StoreRelay, worker: int) -> dist.TCPStore:
    """Connect to the store as a worker does."""
    host, port = relay.url(worker).removeprefix("tcp://").split(":")
    return dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=20))


def test_the_relay_counts_requests_by_worker(
    relay: scale.store_relay.StoreRelay,
) -> None:
    first, second = client(relay, 0), client(relay, 1)
    before = relay.requests()
    first.set("key", "value" * 100_000)
    assert second.get("key") == b"value" * 100_000
    assert first.compare_set("other", "", "one") == b"one"
    assert second.check(["key", "other"])
    assert second.add("number", 2) == 2
    assert second.multi_get(["key", "other"])[1] == b"one"
    counted = [now.since(then) for now, then in zip(relay.requests(), before, strict=True)]
    assert counted[0].kinds == {"set": 1, "compare_set": 1}
    assert counted[1].kinds == {"wait": 2, "get": 1, "check": 1, "add": 1, "multi_get": 1}
    assert counted[0].sent > 500_000
    assert counted[1].received > 1_000_000


def test_an_unknown_store_request_is_an_error() -> None:
    parser = scale.store_protocol.Parser()
    with pytest.raises(scale.store_protocol.UnknownRequestError, match="begins with byte 200"):
        list(parser.feed(bytes([200])))


@pytest.mark.parametrize("subject", ["ZEROMQ", "TENSORPIPE"])
def test_the_listed_requests_of_a_worker_do_not_grow(subject: str) -> None:
    small, large = (
        sum(scale.expected(subject, size, dynamic=False)["start"]["requests"].values()) / size
        for size in (2, 17 if subject == "ZEROMQ" else 8)
    )
    assert large <= small


def test_phases_survive_a_round_trip_through_json(count: Count) -> None:
    again = Count.from_json(count.to_json())
    assert dataclasses.asdict(again) == dataclasses.asdict(count)
