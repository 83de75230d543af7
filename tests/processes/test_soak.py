"""The soak (`benchmarks/soak`), for up to a minute: it passes with each engine, and finds leaks.

The environment variable SOAK_MINUTES sets how long the soak with killed peers runs.
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

ROOT = Path(__file__).parents[2]
SOAK = ROOT / "benchmarks" / "soak"
#: Few threads, so that all have started before the first third of the run is over.
SMALL = ["--workers", "2", "--threads", "2", "--worker-threads", "3", "--interval", "0.25"]
MINUTES = os.environ.get("SOAK_MINUTES", "1")
#: One worker that must survive, and four peers, one of which is killed every second. The worker has
#: about 240 MiB at its start, 450 after a minute, and 600 from the fifth minute on, of which it uses 100:
#: the C library keeps the rest.
WITH_CHURN = [
    *("--workers", "1", "--threads", "4", "--worker-threads", "6", "--interval", "0.25"),
    *("--peers", "4", "--deaths", "1", "--minutes", MINUTES),
    *("--most-mib", "570" if MINUTES == "1" else "700"),
]


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the soak, and return its output."""
    command = [sys.executable, str(SOAK), *SMALL, *arguments]
    return subprocess.run(
        command, env=clean_environ(), capture_output=True, text=True, timeout=800, check=False
    )


@pytest.mark.thorough
def test_nothing_grows_and_every_result_is_right(tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    done = soak("--minutes", "0.5", "--json", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "of 0.5 min" in done.stderr  # the progress line
    results: dict[str, Any] = json.loads(report.read_text())
    assert results["wrong"] == []
    assert min(results["calls"].values()) > 0
    assert len(results["calls"]) == 9  # the kinds of calls
    assert len(results["verdicts"]) == 6
    assert all(verdict["flat"] for verdict in results["verdicts"])
    assert len(results["samples"]["worker0"]["rss_mib"]) >= 100


@pytest.mark.thorough
def test_leaks_are_reported_and_nothing_else() -> None:
    done = soak("--minutes", "0.15", "--leak", "memory", "--leak", "threads")
    assert done.returncode == 1, done.stdout + done.stderr
    for worker in ("worker0", "worker1"):
        for figure, verdict in (("rss_mib", "GROWS"), ("threads", "GROWS"), ("files", "flat")):
            start = f"  {worker} {figure}:"
            line = next(line for line in done.stdout.splitlines() if line.startswith(start))
            assert line.endswith(verdict)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("backend", "group"), [("ZEROMQ", "dynamic"), ("ZEROMQ", "static"), ("UCX", "dynamic")]
)
def test_a_worker_survives_churn_with_bounded_memory(
    tmp_path: Path, backend: str, group: str
) -> None:
    """Calls end within their timeouts; memory, threads and files of the surviving worker do not grow."""
    report = tmp_path / "soak.json"
    is_static = group == "static"
    done = soak(
        *("--backend", backend, *WITH_CHURN, *(["--static"] if is_static else [])),
        *("--json", str(report)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    calls = json.loads(report.read_text())["calls"]
    assert calls["killed"] >= (3 if is_static else 5)
    assert calls["left"] >= (0 if is_static else 1)
    assert calls["suspended"] >= 1
    assert calls["error"] > 0  # some calls were active when a peer was killed
    done_calls = sum(number for name, number in calls.items() if name.startswith("call_"))
    assert done_calls > 1000  # other calls succeeded


def verdict_on(samples: list[float], figure: str = "rss_mib") -> Any:
    """Return the soak's verdict on samples."""
    return runpy.run_path(str(SOAK / "judge.py"))["judge"]("w", figure, samples)


def test_initial_growth_and_noise_count_as_flat() -> None:
    warming_up = [200.0 + n for n in range(60)] + [260.0] * 120
    noisy = [300.0 + (40.0 if n % 4 == 0 else 0.0) for n in range(180)]
    falling = [400.0 - n for n in range(180)]
    for samples in (warming_up, noisy, falling):
        assert verdict_on(samples).flat


def test_a_flat_figure_above_its_limit_is_not_good() -> None:
    judge = runpy.run_path(str(SOAK / "judge.py"))
    samples = [500.0] * 180
    for most, is_good in ((499.0, False), (500.0, True)):
        verdict = judge["judge"](
            "w", "rss_mib", samples, {"rss_mib": judge["Tolerance"](8, 0.02, most)}
        )
        assert (verdict.flat, verdict.is_good) == (True, is_good)


def test_slow_steady_growth_is_not_flat() -> None:
    files = verdict_on([30.0 + n // 20 for n in range(180)], "files")
    assert not files.flat
    verdict = verdict_on([300.0 + n * 0.3 for n in range(180)])
    assert not verdict.flat
    assert verdict.last - verdict.middle > verdict.permitted
