"""Made-up results for tests."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from rpc_backends_bench import machine
from rpc_backends_bench.plan import BY_ID, QUICK
from rpc_backends_bench.results import BASELINE, Results

OURS, REFERENCE = "MINE", "TENSORPIPE"


def made_up(
    factors: Mapping[str, float] | None = None,
    *,
    seed: int = 0,
    noise: float = 0.02,
    rounds: int = 8,
    reference: str = REFERENCE,
    others: tuple[str, ...] = (),
) -> Results:
    """Return results of two backends with drift and noise.

    :param factors: by row, by how much the values of ``OURS`` differ from those of the reference.
    :param others: names of more backends, whose values are distributed like the reference's.
    :param noise: standard deviation of the logarithm of each value. The drift, which is the same for all
        backends, is ten times as large.
    """
    chance = random.Random(seed)
    subjects = [
        {"label": label, "name": label, "options": {}, "own": False, "distribution": None}
        for label in (OURS, *others, reference)
    ]
    results = Results.begin(replace(QUICK), machine.describe(), subjects, reference)
    results.machine.update(machine.finished(), busy_before=0.0)
    for row in BY_ID.values():
        for x in (None,) if row.along is None else (2, 4, 8):
            for turn in range(rounds):
                drift = chance.lognormvariate(0, 10 * noise)
                for label in (
                    OURS,
                    *others,
                    reference,
                    *(f"{BASELINE}{baseline}" for baseline in row.baselines),
                ):
                    factor = (factors or {}).get(row.id, 1.0) if label == OURS else 1.0
                    value = 1e-3 * drift * factor * chance.lognormvariate(0, noise)
                    at = (turn // 4, turn % 4)
                    calls = 100 if row.id.startswith("latency.") else 0
                    samples = [value * chance.lognormvariate(0, 0.2) for _ in range(calls)]
                    results.add(row.id, label, value, at, x, samples)
    results.complete = True
    results.summarize()
    return results
