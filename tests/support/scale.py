"""Compare what real groups do with the counts that `group_counts.json` lists."""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "scale"))

import counting
import store_protocol
import store_relay

from rpc_backends_bench.subjects import parse

__all__ = ["counting", "deviations", "differences", "expected", "store_protocol", "store_relay"]

#: By what share the bytes from the store may differ: names, hosts and ports vary in length.
_BYTES_TOLERANCE = 0.25


def deviations(subject: str, size: int, *, dynamic: bool) -> list[str]:
    """Run a real group, which must not fail; return how it differs from the listed counts."""
    count = (counting.count_dynamic if dynamic else counting.count_static)(parse(subject), size)
    assert not count.failed, count.failed
    assert not count.left_out, count.left_out
    assert len(count.phases) == (2 * size if dynamic else 5)
    return differences(count)


def expected(subject: str, size: int, *, dynamic: bool) -> dict[str, dict[str, Any]]:
    """Return the listed counts of a group, by phase.

    ``requests`` are those to the store, of the whole group, by kind: the last worker to arrive makes
    more than the others, and any worker may be the last. ``calls`` and ``connections`` have an item for
    each worker. ``received`` are bytes from the store to all workers.
    """
    listed = json.loads(Path(__file__).with_name("group_counts.json").read_text())
    group = (subject, size, dynamic)
    return {
        phase["phase"]: phase
        for phase in listed
        if (phase["subject"], phase["size"], phase["dynamic"]) == group
    }


def differences(count: counting.Count) -> list[str]:
    """Return a text for each difference from the listed counts; empty if there is none."""
    listed = expected(count.subject, count.size, dynamic=count.dynamic)
    return [
        f"{count.subject}, {count.size} workers, {phase.name}: {text}"
        for phase in count.phases
        for text in _differences(count, phase, listed[phase.name])
    ]


def _differences(
    count: counting.Count, real: counting.Phase, listed: dict[str, Any]
) -> Iterator[str]:
    requests: collections.Counter[str] = collections.Counter()
    for each in real.requests:
        requests.update(each)
    if (kinds := dict(sorted(requests.items()))) != listed["requests"]:
        yield f"store requests: counted {kinds}, listed {listed['requests']}"
    if real.calls != listed["calls"]:
        yield f"calls by worker: counted {real.calls}, listed {listed['calls']}"
    # After a shutdown some engines have closed their sockets, and others close them later.
    if real.held and real.name != counting.SHUTDOWN:
        connections = [
            int(now["connections"] - before["connections"])
            for now, before in zip(real.held, count.before, strict=True)
        ]
        if connections != listed["connections"]:
            yield f"connections by worker: counted {connections}, listed {listed['connections']}"
    received = sum(real.store_received)
    if abs(received - listed["received"]) > _BYTES_TOLERANCE * received:
        yield f"bytes from the store: counted {received}, listed {listed['received']}"
