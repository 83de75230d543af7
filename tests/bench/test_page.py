"""The HTML page, the plots and the table show all results correctly."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from bench.kit import OURS, REFERENCE, made_up
from rpc_backends_bench import formatting, table
from rpc_backends_bench.compare import compare
from rpc_backends_bench.plan import BY_ID, FULL
from rpc_backends_bench.results import Problem
from rpc_backends_bench.writing import write

pytestmark = pytest.mark.slow

PLOTS = {"ratios", "latency", "throughput", "bandwidth", "processor", "groups"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of a run with a failed backend, compared with an earlier run."""
    folder = tmp_path_factory.mktemp("bench")
    results = made_up({"latency.noop": 2.0})
    results.problems.append(Problem(OURS, "cpu", "it <fell> over", "at the third step"))
    write(results, compare(made_up(seed=1), results), folder)
    return folder


def test_results_page_and_all_plots_are_written(folder: Path) -> None:
    assert {file.name for file in folder.iterdir()} == {
        *("results.json", "index.html"),
        *(f"{name}.png" for name in PLOTS),
    }
    for name in PLOTS:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_loads_no_file_and_no_script(folder: Path) -> None:
    page = (folder / "index.html").read_text()

    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert "<script" not in page
    assert page.count('src="data:image/svg+xml;base64,') == len(PLOTS)


def test_the_page_shows_problems_changes_and_machine(folder: Path) -> None:
    page = (folder / "index.html").read_text()

    assert "it &lt;fell&gt; over" in page
    assert re.search(r'<b class="bad">worse</b> MINE: Round trip, no-op in Python', page)
    assert "torch 2" in page
    assert f"{OURS} compared with {REFERENCE}" in page


def test_the_table_has_all_rows_and_ends_with_problems() -> None:
    results = made_up({"latency.noop": 2.0})
    results.problems.append(Problem(OURS, "cpu", "it fell over\nand more"))
    results.complete = False
    console = Console(width=120, record=True, file=io.StringIO())

    table.render(results, compare(made_up(seed=1), results), console)

    text = console.export_text()
    for row in BY_ID.values():
        assert row.title in text
    (noop,) = re.findall(r"^ *no-op in Python .*? (2\.\d+|1\.9\d) \(", text, re.MULTILINE)[:1]
    assert float(noop) == pytest.approx(2, rel=0.1)
    assert "MINE, cpu: it fell over\n" in text
    assert "Changed beyond the noise" in text
    assert text.rstrip().endswith("Interrupted. These are the results so far.")


@pytest.mark.parametrize(("width", "intervals"), [(300, True), (140, False)])
def test_the_table_shows_five_backends_at_any_width(width: int, intervals: bool) -> None:
    results = made_up(others=("ZEROMQ", "Ray", "Monarch"))
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)

    table.render(results, None, console)

    (noop, *_) = re.findall(r"^ *no-op in Python (.*)$", console.export_text(), re.MULTILINE)
    assert len(re.findall(r"[\d.]+ (?:us|ms|s)\b", noop)) == 5
    assert ("(" in noop) == intervals


def test_better_means_higher_in_throughput_rows_only() -> None:
    results = made_up({"latency.noop": 0.5, "throughput.inflight": 0.5})

    verdicts = {
        id_: formatting.verdict(BY_ID[id_], results.ratio(id_, x, OURS))
        for id_, x in (("latency.noop", None), ("throughput.inflight", 2))
    }

    assert verdicts == {"latency.noop": "better", "throughput.inflight": "worse"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0 ns"), (1.5e-7, "150 ns"), (93.91e-6, "93.9 us"), (0.0123, "12.3 ms"), (75.0, "75 s")],
)
def test_times_have_three_digits_and_a_unit(value: float, shown: str) -> None:
    assert formatting.seconds(value) == shown


def test_an_echo_moves_its_bytes_twice() -> None:
    assert formatting.bandwidth(BY_ID["size.echo"], 0.5, 1000) == 4000
    assert formatting.bandwidth(BY_ID["size.oneway"], 0.5, 1000) == 2000
    assert formatting.amount(FULL.sizes[-1]) == "256 MiB"
