"""How a search uses its runs: which failures it keeps, compares and adds to the corpus."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rpc_backends_faults.explore import reproduce, results
from rpc_backends_faults.explore.findings import Failure
from rpc_backends_faults.explore.invariants import Invariant
from rpc_backends_faults.explore.processes import Program
from rpc_backends_faults.explore.runs import Run
from rpc_backends_faults.explore.schedules import Schedule
from rpc_backends_faults.explore.search import Plan, Search
from rpc_backends_faults.explore.shrinking import Shrunk
from rpc_backends_faults.explore.verdicts import Cause

HERE = Path(__file__).parent
#: A trainer whose calls are repeated, and counted twice: without torch, and with two real workers.
LOGGED = HERE / "logged_program.py"
PROGRAM = HERE / "planted" / "double_update.py"
DROP = (("what", "drop"), ("first", 1))
TWICE = '[[rule]]\nwhat = "duplicate"\nfunction = "__main__.update"\nfirst = 1\n'


def failure(folder: Path, key: str = "exit", failed: int = 1, of: int = 1) -> Failure:
    folder.mkdir(parents=True, exist_ok=True)
    shrunk = Shrunk(Schedule((DROP,)), failed, of, complete=True)
    return Failure(
        1,
        Cause("exit", key, key),
        folder,
        Run(folder, 1, 1.0),
        shrunk,
        "drop",
        after=1,
        seconds=1.0,
    )


def plan(out: Path, *command: str, **settings: object) -> Plan:
    program = Program(command or (sys.executable, str(LOGGED)), 60.0, 300.0)
    out.mkdir(parents=True)
    return Plan(program, out, ("drop",), **settings)  # type: ignore[arg-type]


def fails_if_done_again(run: Run) -> None:
    lines = run.output.splitlines()
    assert len(lines) == len(set(lines)), "done again"


def fails_if_more_than_twelve(run: Run) -> None:
    assert len(run.output.splitlines()) <= 12, "more than 12"


def corpus_of(folder: Path) -> Path:
    folder.mkdir()
    (folder / "twice.toml").write_text(TWICE)
    return folder


def search_with_corpus(
    tmp_path: Path, *checks: Invariant, against: str | None = None, program: Path = LOGGED
) -> Search:
    """Run the program with one rule file, and return the search."""
    settings = plan(
        tmp_path / "out",
        *(sys.executable, str(program)),
        corpus=corpus_of(tmp_path / "corpus"),
        invariants=checks,
        runs=0,
        confirmations=1,
        jobs=1,
        against=against,
    )
    search = Search(settings)
    search.run()
    return search


def test_a_failure_that_never_repeats_stays_out_of_the_corpus(tmp_path: Path) -> None:
    settings = plan(tmp_path / "out", corpus=tmp_path / "corpus")

    reproduce.keep(failure(tmp_path / "a", failed=0, of=10), settings)
    assert not settings.corpus or not settings.corpus.exists()
    reproduce.keep(failure(tmp_path / "a", failed=1, of=10), settings)
    assert settings.corpus and len(list(settings.corpus.iterdir())) == 1


def test_causes_with_the_same_first_characters_have_files_of_their_own(tmp_path: Path) -> None:
    settings = plan(tmp_path / "out", corpus=tmp_path / "corpus")
    for end in ("one", "two"):
        reproduce.keep(failure(tmp_path / end, f"exit {'x' * 100} {end}"), settings)

    assert settings.corpus and len(list(settings.corpus.iterdir())) == 2


def test_without_a_corpus_none_is_written(tmp_path: Path) -> None:
    settings = plan(tmp_path / "out")
    reproduce.keep(failure(tmp_path / "a"), settings)

    assert not (tmp_path / "out/corpus").exists()


def test_the_printed_command_gives_a_folder_and_a_free_port(tmp_path: Path) -> None:
    code = "import os; print(os.environ['RPC_BACKENDS_FAULTS_RUN'], os.environ['MASTER_PORT'])"
    failed = failure(tmp_path / "a")
    settings = plan(tmp_path / "out", sys.executable, "-c", code)
    reproduce.write(failed, settings)
    run, _ = reproduce.again(failed, settings)
    command = run.replace(
        "rpc-backends ", shlex.join([sys.executable, "-m", "rpc_backends_cli", ""])
    )
    command = command.replace(" '' ", " ")

    first, second = (
        subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    folder, port = first.split()
    assert Path(folder).is_dir()
    first_port, last_port = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    # The kernel gives no such port to another socket before the program listens.
    assert not int(first_port) <= int(port) <= int(last_port)
    assert (
        folder != second.split()[0]
    )  # a log of an earlier run would keep a worker from crashing again


def test_the_backend_that_the_environment_chose_is_recorded_and_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_OVERRIDE", "ZEROMQ")
    monkeypatch.setenv("RPC_BACKENDS_ZEROMQ_SECRET", "kept to itself")
    search = search_with_corpus(tmp_path, Invariant("once", fails_if_done_again))
    (failed,) = search.findings.failures
    results.write(search.findings, search.plan)
    monkeypatch.delenv("RPC_BACKENDS_OVERRIDE")

    text = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.*")}
    assert json.loads(text["explore.json"])["environment"] == {"RPC_BACKENDS_OVERRIDE": "ZEROMQ"}
    assert '<property name="RPC_BACKENDS_OVERRIDE" value="ZEROMQ"/>' in text["junit.xml"]
    assert "RPC_BACKENDS_OVERRIDE=ZEROMQ rpc-backends faults run" in text["report.html"]
    rules = (failed.folder / "rules.toml").read_text()
    assert "# The program ran with RPC_BACKENDS_OVERRIDE=ZEROMQ.\n" in rules
    written = (failed.folder / "test_failure.py").read_text()
    assert "VARIABLES = {'RPC_BACKENDS_OVERRIDE': 'ZEROMQ'}" in written
    assert "kept to itself" not in "".join([*text.values(), rules, written])

    prints = "import os; assert os.environ['RPC_BACKENDS_OVERRIDE'] == 'ZEROMQ'"
    written = written.replace(repr(str(LOGGED)), f"'-c', {prints!r}")
    (failed.folder / "test_failure.py").write_text(written)
    test = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(failed.folder / "test_failure.py"))
    done = subprocess.run([sys.executable, *test], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_without_such_a_variable_the_written_test_sets_none(tmp_path: Path) -> None:
    search = search_with_corpus(tmp_path, Invariant("once", fails_if_done_again))
    (failed,) = search.findings.failures

    assert search.findings.data()["environment"] == {}
    assert "VARIABLES" not in (failed.folder / "test_failure.py").read_text()
    assert "The program ran with" not in (failed.folder / "rules.toml").read_text()


@pytest.mark.parametrize(
    ("again", "stopped", "text"),
    [
        (False, "", "was not repeated yet"),
        (False, "the time was over", "was not repeated: the time was over"),
        (True, "the time was over", "failed again, and then the time was over"),
        (None, "the time was over", "passed when it was repeated, and then the time was over"),
        (True, "the search was interrupted", "failed again, and then the search was interrupted"),
    ],
)
def test_a_failure_says_why_it_was_not_repeated(
    again: bool | None, stopped: str, text: str
) -> None:
    """None means that it was repeated, and passed."""
    shrunk = Shrunk(
        Schedule((DROP,)), again=again is True, repeated=again is not False, stopped=stopped
    )
    assert shrunk.text() == text


@pytest.mark.slow
def test_the_rest_of_a_short_budget_is_for_the_failure_that_was_found(tmp_path: Path) -> None:
    begin = time.monotonic()

    def leave_four_rounds(search: Search) -> None:
        """Leave time for four of the eight rounds, on any machine, until the failure is confirmed."""
        for failed in search.findings.failures:
            seconds = time.monotonic() - begin + 4 * failed.run.seconds
            search.plan = replace(search.plan, seconds=0.0 if failed.shrunk.of else seconds)

    program = tmp_path / "train.py"
    program.write_text("import time\ntime.sleep(1)\n" + LOGGED.read_text())
    settings = plan(
        tmp_path / "out",
        *(sys.executable, str(program)),
        corpus=corpus_of(tmp_path / "corpus"),
        invariants=(Invariant("once", fails_if_done_again),),
        seconds=300.0,
        jobs=2,
    )
    search = Search(settings, leave_four_rounds)
    search.run()

    (failed,) = search.findings.failures
    assert failed.shrunk.again
    # One other run had begun before.
    assert search.findings.explored <= failed.after + 1


def test_an_interrupted_search_names_the_interrupt_as_the_reason(tmp_path: Path) -> None:
    def interrupt(search: Search) -> None:
        if search.findings.failures:
            raise KeyboardInterrupt

    settings = plan(
        tmp_path / "out",
        corpus=corpus_of(tmp_path / "corpus"),
        invariants=(Invariant("once", fails_if_done_again),),
        jobs=1,
    )
    search = Search(settings, interrupt)
    with pytest.raises(KeyboardInterrupt):
        search.run()

    (failed,) = search.findings.failures
    why = "was not repeated: the search was interrupted"
    lines = results.lines(search.findings, settings)
    assert "The search was interrupted." in lines
    assert any(why in line for line in lines)
    assert f"it {why}." in (failed.folder / "rules.toml").read_text()


def test_each_cause_of_a_run_is_a_failure(tmp_path: Path) -> None:
    search = search_with_corpus(
        tmp_path,
        Invariant("once", fails_if_done_again),
        Invariant("twelve", fails_if_more_than_twelve),
    )

    titles = [failure.cause.title for failure in search.findings.failures]
    assert titles == ["once: done again", "twelve: more than 12"]
    assert all((failure.folder / "output.txt").exists() for failure in search.findings.failures)


@pytest.mark.parametrize("program", [LOGGED, pytest.param(PROGRAM, marks=pytest.mark.thorough)])
def test_a_comparison_with_another_backend_makes_all_its_runs(
    tmp_path: Path, program: Path
) -> None:
    once = Invariant("once", fails_if_done_again)
    search = search_with_corpus(tmp_path, once, against="ZEROMQ", program=program)

    (failure,) = search.findings.failures
    assert failure.against is not None
    assert (failure.against.failed, failure.against.of) == (3, 3)


def test_a_backend_on_which_the_program_fails_anyway_is_not_compared(tmp_path: Path) -> None:
    search = search_with_corpus(tmp_path, Invariant("once", fails_if_done_again), against="NOSUCH")

    (failure,) = search.findings.failures
    assert failure.against is not None
    assert failure.against.text().startswith("not compared with NOSUCH: the program fails there")
