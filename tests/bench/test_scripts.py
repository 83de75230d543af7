"""The scripts in `benchmarks/` run to the end, and judge bars by confidence intervals."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rpc_backends_bench.plan import FULL
from rpc_backends_bench.statistics import Ratio
from support.environments import clean_environ

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "results"))

import draw_summary
from _report import Bar, Comparison, Report, parser

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(
        command, env=clean_environ(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(
    ("bar", "verdicts"),
    [
        (Bar(1.2), ["met", "met", "open", "NOT MET"]),
        (Bar(1.03, 0.97), ["NOT MET", "met", "open", "NOT MET"]),
        (Bar(low=1.5), ["NOT MET", "NOT MET", "NOT MET", "open"]),
    ],
)
def test_a_bar_is_judged_by_the_whole_interval(bar: Bar, verdicts: list[str]) -> None:
    intervals = [(0.5, 0.6), (0.98, 1.02), (1.0, 1.3), (1.4, 1.6)]

    found = [bar.judge(Ratio(low, (low + high) / 2, high, 8)) for low, high in intervals]

    assert found == verdicts


def test_few_rounds_leave_a_bar_open() -> None:
    assert Bar(1.2).judge(Ratio(0.5, 0.5, 0.5, 4)) == "open"
    assert Bar(1.2).judge(None) == "open"


def test_a_report_fails_on_missed_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("Made up", "ours", "theirs")
    for number in range(8):
        report.add_pair("calls", "no-op", (number, 0), (2e-3, 1e-3), Bar(1.2))
    report.add(Comparison("calls", "never measured", Bar(1.0)))
    file = tmp_path / "report.json"

    good = report.finish(parser(None).parse_args(["--json", str(file)]))

    assert not good
    assert "NOT MET" in capsys.readouterr().out
    noop, never = json.loads(file.read_text())["comparisons"]
    assert noop["ratio"] == pytest.approx(2)
    assert noop["ours"][7] == [7, 0, 2e-3]
    assert (never["ratio"], never["verdict"]) == (None, "open")


def test_the_summary_chart_is_drawn_from_its_file(tmp_path: Path) -> None:
    draw_summary.draw(json.loads(draw_summary.FILE.read_text()), tmp_path / "summary.png")

    assert (tmp_path / "summary.png").read_bytes().startswith(b"\x89PNG")


def test_the_whole_bench_measures_each_row_of_the_chart() -> None:
    measured = {
        "throughput.inflight": FULL.in_flight,
        "size.echo": FULL.sizes,
        "group.start": [size for size, _ in FULL.groups],
    }

    for row, x, _ in draw_summary.ROWS:
        assert FULL.has(row)
        assert x is None or x in measured[row]


def test_the_chart_has_ratios_of_medians_between_hosts() -> None:
    rows = [row for row, _ in draw_summary.HOSTS]
    seconds = {"TENSORPIPE@torch": 2.0, "ZEROMQ:secret": 1.0, "UCX": 0.5, "ZEROMQ:plain": 0.1}
    rounds = {
        f"0 ms: {side}": [{row: {"median": value * turn} for row in rows} for turn in (1, 3, 8)]
        for side, value in seconds.items()
    }

    found = draw_summary.between_hosts(rounds)

    assert list(found.values()) == [{"ZEROMQ": 0.5, "UCX": 0.25}] * len(rows)


@pytest.mark.thorough
@pytest.mark.slow
def test_bars_compares_with_stock_torch_and_a_control(tmp_path: Path) -> None:
    file = tmp_path / "bars.json"

    run("bars.py", "--quick", "FAULTY_TENSORPIPE", "--json", str(file))

    found = json.loads(file.read_text())["comparisons"]
    assert {one["section"].partition(" ")[0] for one in found} == {"FAULTY_TENSORPIPE", "control"}
    assert len(found) == 2 * 4
    assert all(one["ratio"] > 0 for one in found)


@pytest.mark.thorough
def test_import_cost_measures_all_situations() -> None:
    done = run("import_cost.py", "--rounds", "2", "--json")

    times = json.loads(done.stdout)["times_ms"]
    assert times.keys() == {"not installed", "switched off", "installed", "entry point"}
    assert all(value > 0 for values in times.values() for value in values)
    assert max(times["entry point"]) < min(times["not installed"])


@pytest.mark.thorough
def test_interceptors_measures_fault_rules_and_a_control(tmp_path: Path) -> None:
    if find_spec("rpc_backends_faults") is None:
        pytest.skip("rpc-backends-faults is not installed")
    file = tmp_path / "interceptors.json"
    sides = [word for side in ("control", "faults", "100 rules") for word in ("--side", side)]

    run("interceptors.py", "--quick", "--backend", "TENSORPIPE", *sides, "--json", str(file))

    comparisons = json.loads(file.read_text())["comparisons"]
    assert len(comparisons) == 3 * 2
    assert all(comparison["ratio"] > 0 for comparison in comparisons)
