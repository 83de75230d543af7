"""The command `rpc-backends faults explore` on programs with a planted bug."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .planted.catalogue import PROGRAMS, Planted

PLANTED = Path(__file__).parent / "planted"


def command(out: Path, *options: str, program: Path) -> list[str]:
    words = (sys.executable, "-m", "rpc_backends_cli", "faults", "explore", "--out", str(out))
    return [*words, *options, "--", sys.executable, str(program)]


def explore(
    out: Path, *options: str, program: Path, status: int = 1
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(out, *options, program=program), capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def checks(name: str) -> tuple[str, str]:
    return "--invariants", str(PLANTED / f"{name}_checks.py")


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def processes_of(folder: Path) -> list[str]:
    """Return the processes whose environment names the folder."""
    processes = []
    for entry in Path("/proc").iterdir():
        try:
            if str(folder).encode() in (entry / "environ").read_bytes():
                processes.append(entry.name)
        except OSError:
            continue
    return processes


@pytest.fixture(scope="module")
def double_update(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a search that finds a double update."""
    out = tmp_path_factory.mktemp("double") / "out"
    options = ("--runs", "8", "--failures", "1", "--seed", "1", "--kinds", "duplicate")
    explore(
        out,
        *options,
        *("--confirm", "2", "--corpus", str(out.with_name("corpus"))),
        *checks("double_update"),
        program=PLANTED / "double_update.py",
    )
    return out


@pytest.mark.slow
def test_a_double_update_is_found_and_shrunk_to_one_fault(double_update: Path) -> None:
    (failure,) = json.loads((double_update / "explore.json").read_text())["failures"]

    assert failure["title"].startswith("updates_are_applied_once: done again:")
    assert failure["faults"] == 1
    assert (failure["failed"], failure["of"]) == (2, 2)
    rules = (Path(failure["folder"]) / "rules.toml").read_text()
    assert 'what = "duplicate"' in rules
    assert rules.startswith("# ")


@pytest.mark.slow
def test_the_reports_name_the_failure(double_update: Path) -> None:
    page = (double_update / "report.html").read_text()
    suite = ElementTree.parse(double_update / "junit.xml").getroot()

    assert "updates_are_applied_once" in page
    assert suite.get("failures") == "1"
    assert len(suite.findall("testcase/failure")) == 1


@pytest.mark.slow
def test_the_logs_say_how_much_memory_each_worker_has_at_its_end(double_update: Path) -> None:
    ends = [
        event["memory"]
        for log in double_update.glob("failures/*/logs/*.jsonl")
        for event in map(json.loads, log.read_text().splitlines())
        if event["event"] == "end of log"
    ]

    assert len(ends) == 2
    assert min(ends) > 2**20


@pytest.mark.slow
def test_the_written_test_fails(double_update: Path) -> None:
    (test,) = double_update.glob("failures/*/test_failure.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        cwd=test.parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stdout + done.stderr
    assert "done again" in done.stdout


@pytest.mark.slow
def test_a_failure_in_the_corpus_is_tried_first(double_update: Path, tmp_path: Path) -> None:
    corpus = ("--corpus", str(double_update.with_name("corpus")), "--runs", "1", "--failures", "1")
    done = explore(
        tmp_path / "out",
        *corpus,
        *("--confirm", "1", "--kinds", "delay", "--json"),
        *checks("double_update"),
        program=PLANTED / "double_update.py",
    )

    (failure,) = json.loads(done.stdout)["failures"]
    assert failure["origin"].startswith("corpus: ")
    assert failure["found_after_runs"] == 1


@pytest.mark.slow
def test_a_program_that_fails_without_faults_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(4)")

    done = explore(tmp_path / "out", program=tmp_path / "train.py", status=2)

    assert "the program fails without faults: exit status 4" in done.stderr


@pytest.mark.slow
def test_a_folder_with_runs_of_another_program_is_refused_and_kept(tmp_path: Path) -> None:
    log = tmp_path / "runs" / "events.log"
    log.parent.mkdir()
    log.write_text("of another program")
    refused = explore(tmp_path, "--runs", "1", program=PLANTED / "lost_wakeup.py", status=2)
    assert f"'{tmp_path}' is not empty and has no earlier result" in refused.stderr
    assert log.read_text() == "of another program"


def test_an_interrupt_keeps_what_was_found_and_ends_all(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text((PLANTED / "double_update.py").read_text())
    environ = {**os.environ, "PYTHONPATH": str(PLANTED)}
    out = tmp_path / "out"
    running = subprocess.Popen(
        command(out, "--seed", "1", program=tmp_path / "train.py"),
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until((out / "runs/00002").exists)
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=120)

    assert running.returncode in {1, 130}, output
    assert json.loads((out / "explore.json").read_text())["interrupted"] is True
    assert processes_of(out) == []


@pytest.mark.slow
def test_programs_end_if_the_command_is_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    out = tmp_path / "out"
    running = subprocess.Popen(command(out, program=tmp_path / "train.py"))
    wait_until(lambda: bool(processes_of(out)))
    running.kill()
    running.wait()

    wait_until(lambda: not processes_of(out))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("planted", PROGRAMS, ids=lambda planted: planted.name)
def test_each_planted_bug_is_found_and_shrunk(planted: Planted, tmp_path: Path) -> None:
    file = planted.invariants
    options = ("--invariants", str(file)) if file else ()
    limits = ("--budget", "10m", "--failures", "1", "--confirm", "3", "--hang", f"{planted.hang:g}")
    kinds = ("--kinds", ",".join(planted.kinds), "--against", "ZEROMQ")
    explore(tmp_path / "out", *options, *limits, *kinds, "--seed", "1", program=planted.program)

    (failure, *_) = json.loads((tmp_path / "out/explore.json").read_text())["failures"]
    assert failure["faults"] <= 2
    assert failure["failed"] >= 2
    assert failure["against"]["failed"] >= 2  # the program is to blame, not the backend
