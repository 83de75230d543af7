"""The soak (`benchmarks/soak`), for a minute: it reports nothing on a sound backend, and finds leaks.

SOAK_MINUTES=10 lets the soak with peers that die run for so long.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.environments import clean_environ

ROOT = Path(__file__).parents[3]
SOAK = ROOT / "benchmarks" / "soak"
#: Few threads, so that all that there will be are there before the first third is over.
SMALL = ["--workers", "2", "--threads", "2", "--worker-threads", "3", "--interval", "0.25"]
#: One worker that must survive, and four peers, one of which dies every second.
DYING = [
    *("--workers", "1", "--threads", "4", "--worker-threads", "6", "--interval", "0.25"),
    *("--peers", "4", "--deaths", "1", "--minutes", os.environ.get("SOAK_MINUTES", "1")),
]


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the soak, and return its output."""
    # With few arenas the allocator finds its size sooner, and what grows is what the program keeps.
    environ = {**clean_environ(), "MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, str(SOAK), *SMALL, *arguments]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=800, check=False
    )


@pytest.mark.thorough
def test_nothing_grows_and_every_call_gives_what_it_should(tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    done = soak("--minutes", "0.5", "--json", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "of 0.5 min" in done.stderr  # how far it is
    found: dict[str, Any] = json.loads(report.read_text())
    assert found["wrong"] == []
    assert min(found["calls"].values()) > 0
    assert len(found["calls"]) == 9  # one of each kind at least
    assert len(found["verdicts"]) == 6
    assert all(verdict["flat"] for verdict in found["verdicts"])
    assert len(found["samples"]["worker0"]["rss_mib"]) >= 100


@pytest.mark.thorough
def test_what_leaks_is_found_and_what_does_not_is_not() -> None:
    done = soak("--minutes", "0.15", "--leak", "memory", "--leak", "threads")
    assert done.returncode == 1, done.stdout + done.stderr
    for worker in ("worker0", "worker1"):
        for figure, verdict in (("rss_mib", "GROWS"), ("threads", "GROWS"), ("files", "flat")):
            start = f"  {worker} {figure}:"
            line = next(line for line in done.stdout.splitlines() if line.startswith(start))
            assert line.endswith(verdict)


@pytest.mark.thorough
@pytest.mark.parametrize("group", ["dynamic", "static"])
def test_calls_end_and_nothing_grows_while_peers_are_killed(tmp_path: Path, group: str) -> None:
    """Each call ends within its timeout; memory, threads and files of the worker stay as they are."""
    report = tmp_path / "soak.json"
    done = soak(*DYING, *(["--static"] if group == "static" else []), "--json", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    calls = json.loads(report.read_text())["calls"]
    assert calls["killed"] >= (3 if group == "static" else 5)
    assert calls["suspended"] >= 1
    assert calls["error"] > 0  # calls were under way when peers died
    done_calls = sum(number for name, number in calls.items() if name.startswith("call_"))
    assert done_calls > 1000  # and others went on


def judged(samples: list[float], figure: str = "rss_mib") -> Any:
    """Judge samples as the soak does."""
    return runpy.run_path(str(SOAK / "judge.py"))["judge"]("w", figure, samples)


def test_what_grows_at_first_and_what_is_only_noisy_is_flat() -> None:
    warming_up = [200.0 + n for n in range(60)] + [260.0] * 120
    noisy = [300.0 + (40.0 if n % 4 == 0 else 0.0) for n in range(180)]
    falling = [400.0 - n for n in range(180)]
    for samples in (warming_up, noisy, falling):
        assert judged(samples).flat


def test_what_grows_slowly_all_the_time_is_not_flat() -> None:
    files = judged([30.0 + n // 20 for n in range(180)], "files")
    assert not files.flat
    found = judged([300.0 + n * 0.3 for n in range(180)])
    assert not found.flat
    assert found.last - found.middle > found.permitted
