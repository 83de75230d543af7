"""What `rpc-backends faults explore` leaves in its folder, above all if it cannot search."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .test_explore import command, explore, wait_until

#: A program that is explored in a second, and one that ends with status 4.
LOGGED = Path(__file__).parent / "logged_program.py"
BROKEN = "raise SystemExit(4)"
BRIEF = ("--runs", "1", "--confirm", "1", "--jobs", "1")


def contents(folder: Path) -> dict[str, str]:
    """Return the files of a folder with their contents, but for the run that may fail without faults."""
    files = (path for path in folder.rglob("*") if path.is_file())
    names = {str(path.relative_to(folder)): path for path in files}
    return {name: path.read_text() for name, path in names.items() if "without-faults" not in name}


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Return a folder with the results of a search that found a failure."""
    checks = tmp_path / "checks.py"
    checks.write_text("def check_few(run):\n    assert not run.injected, 'a fault acted'\n")
    out = tmp_path / "out"
    options = (*BRIEF, "--kinds", "duplicate", "--keep", "--invariants", str(checks))
    explore(out, *options, program=LOGGED)
    assert any(name.startswith("failures/") for name in contents(out))
    return out


def slow_program(folder: Path, delay: str) -> Path:
    """Return a program that waits first, for as long as the expression `delay` says."""
    program = folder / "train.py"
    begin = f"import os, pathlib, time\ntime.sleep({delay})\n"
    program.write_text(begin + LOGGED.read_text())
    return program


@pytest.mark.parametrize("why", ["no program", "no invariants", "fails without faults"])
def test_a_search_that_cannot_begin_keeps_earlier_results(
    earlier: Path, tmp_path: Path, why: str
) -> None:
    before = contents(earlier)
    broken = tmp_path / "broken.py"
    broken.write_text(BROKEN)
    words = command(earlier, program=LOGGED)
    if why == "no program":
        words[words.index("--") + 1 :] = [str(tmp_path / "nosuch")]
    elif why == "no invariants":
        words = command(earlier, "--invariants", str(tmp_path / "nosuch.py"), program=LOGGED)
    else:
        words = command(earlier, program=broken)

    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 2, done.stdout + done.stderr
    assert contents(earlier) == before


def test_an_interrupt_before_the_search_begins_keeps_earlier_results(
    earlier: Path, tmp_path: Path
) -> None:
    before = contents(earlier)
    program = slow_program(tmp_path, "600")
    running = subprocess.Popen(
        command(earlier, program=program), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until((earlier / "without-faults").exists)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()

    assert running.returncode == 130
    assert "interrupted before the run without faults had ended" in errors
    assert contents(earlier) == before


def test_a_search_replaces_all_earlier_results(earlier: Path) -> None:
    explore(earlier, *BRIEF, "--kinds", "delay", program=LOGGED, status=0)

    assert json.loads((earlier / "explore.json").read_text())["failures"] == []
    assert not (earlier / "failures").exists()
    assert not (earlier / "without-faults").exists()


@pytest.mark.parametrize(
    "delay",
    [
        pytest.param("1.5", id="the run without faults takes too long"),
        pytest.param(
            "0 if not pathlib.Path(os.environ['RPC_BACKENDS_FAULTS']).read_text().strip() else 600",
            id="no other run ends",
        ),
    ],
)
def test_a_budget_in_which_no_run_with_faults_ends_is_an_error(tmp_path: Path, delay: str) -> None:
    out = tmp_path / "out"
    program = slow_program(tmp_path, delay)
    done = explore(out, "--budget", "1.2s", "--json", program=program, status=2)

    error = json.loads(done.stdout)["error"]
    assert "the budget of 1.2 s was over before a run with faults had ended" in error
    assert "The run without faults took" in error
    assert "longer --budget" in error
    assert error in done.stderr
    assert json.loads((out / "explore.json").read_text())["error"] == error
    suite = ElementTree.parse(out / "junit.xml").getroot()
    assert suite.get("errors") == "1"
    assert [entry.get("message") for entry in suite.findall("testcase/error")] == [error]
    page = (out / "report.html").read_text()
    assert "had ended" in page
    assert "No run failed" not in page


def test_without_json_an_error_does_not_claim_that_no_run_failed(tmp_path: Path) -> None:
    program = slow_program(tmp_path, "1.5")
    done = explore(tmp_path / "out", "--budget", "1s", program=program, status=2)

    assert "No run failed" not in done.stdout
    assert "longer --budget" in done.stderr


def test_a_program_without_calls_in_which_faults_can_act_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("print('no calls')")
    done = explore(tmp_path / "out", program=program, status=2)

    assert "made no RPC calls" in done.stderr
