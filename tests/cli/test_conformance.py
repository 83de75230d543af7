"""`rpc-backends conformance NAME`: an isolated run, its summary and its exit status."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_testing.command import arguments, events
from support.children import started
from support.command import marked, wait_until

pytestmark = pytest.mark.slow

CALLS = ("--chapter", "calls", "-k", "test_self")
FAILING = """
from rpc_backends_core import Backend
from torch.distributed.rpc import RpcBackendOptions

def construct(rpc_timeout, init_method, **options):
    made = RpcBackendOptions()
    made.rpc_timeout, made.init_method = rpc_timeout, init_method
    return made

def init(store, name, rank, world_size, rpc_backend_options):
    raise RuntimeError("the pigeon is asleep")

BACKEND = Backend(
    construct_rpc_backend_options_handler=construct, init_backend_handler=init,
    capabilities=frozenset({"carrier"}), description="by air",
)
"""


HANGING = (
    FAILING.replace('raise RuntimeError("the pigeon is asleep")', "wait_for_the_wind()")
    + """
def wait_for_the_wind():
    import threading
    threading.Event().wait()
"""
)


@pytest.fixture
def pigeon(command: Any) -> Any:
    """Return the command, with a backend PIGEON that fails to start."""
    command.install("rpc-backend-pigeon", {"PIGEON": "BACKEND"}, FAILING)
    return command


def test_a_run_prints_a_summary(command: Any) -> None:
    ended = command("conformance", "FAULTY_TENSORPIPE", *CALLS)

    assert ended.status == 0, ended.stderr
    assert "\x1b" not in ended.stdout + ended.stderr
    assert ["calls", "3", "0"] in [line.split()[:3] for line in ended.stdout.splitlines()]
    *results, chapter = ended.stderr.splitlines()
    assert [line.partition(", ")[0] for line in results] == [
        f"[{number}/3] calls.self[{way}]: passed"
        for number, way in enumerate(("sync", "asynchronous", "remote"), 1)
    ]
    assert chapter.startswith("calls: 3 passed (")
    assert "Capabilities" in ended.stdout
    assert "FAULTY_TENSORPIPE" in ended.stdout.splitlines()[-1]


def test_a_failing_backend_is_status_1_with_details(
    pigeon: Any,
) -> None:
    ended = pigeon("conformance", "PIGEON", "--chapter", "calls", "-k", "test_self and remote")

    assert ended.status == 1
    lines = [line.split(None, 1) for line in ended.stdout.splitlines() if line.strip()]
    shown = dict(line for line in lines if len(line) == 2)
    assert shown["FAILED"].split()[0] == "calls.self[remote]"
    assert shown["chapter"] == "calls"
    assert shown["call"].startswith("init_rpc(")
    assert shown["got"] == "RuntimeError: the pigeon is asleep"
    assert shown["carrier"] == "declared, not tested"
    assert "PIGEON does not conform" in ended.stdout.splitlines()[-1]


def test_a_failure_is_shown_at_once(pigeon: Any) -> None:
    ended = pigeon("conformance", "PIGEON", *CALLS)

    shown = ended.stderr.partition("[2/3]")[0].splitlines()
    assert shown[0].startswith("[1/3] calls.self[sync]: FAILED, ")
    assert [line.split(None, 1)[0] for line in shown[1:]] == ["call", "expected", "got"]
    assert "the pigeon is asleep" in shown[3]


@pytest.mark.parametrize("stop", [("-x",), ("--maxfail", "1"), ("-x", "--jobs", "2")])
def test_the_run_stops_after_enough_failures(pigeon: Any, stop: tuple[str, ...]) -> None:
    ended = pigeon("conformance", "PIGEON", *CALLS, *stop)

    assert ended.status == 1
    assert ended.stdout.count("FAILED calls.self") in ((1,) if "--jobs" not in stop else (1, 2))
    assert "stopped after 1 failure" in " ".join(ended.stdout.split())


def test_a_hang_shows_the_stacks_of_all_workers(command: Any) -> None:
    command.install("rpc-backend-pigeon", {"PIGEON": "BACKEND"}, HANGING)

    for factor in ("0.1", "2"):  # busy cores may start a worker after the first limit
        ended = command("conformance", "PIGEON", *CALLS, "--timeout-factor", factor, "-x")
        stacks = [
            ended.stderr.partition(f"--- {worker}\n")[2].partition("---")[0]
            for worker in ("worker0", "worker1")
        ]
        if all("in wait_for_the_wind\n" in stack for stack in stacks):
            break

    assert ended.status == 1
    for stack in stacks:
        assert "in wait_for_the_wind\n" in stack
        assert "in join\n" in stack
        assert "processes/worker.py" not in stack  # frames of the harness do not help an author


def test_no_group_starts_after_several_failed(command: Any) -> None:
    command.install("rpc-backend-pigeon", {"PIGEON": "BACKEND"}, HANGING)
    several = ("--chapter", "calls", "-k", "test_self or test_builtin")

    ended = command("conformance", "PIGEON", *several, "--timeout-factor", "0.1", "--json")

    got = [result["got"] for result in ended.json["results"]]
    assert all("did not finish its step in time" in reason for reason in got[:3])
    assert set(got[3:]) == {"not tried, because none of the first 3 groups formed in time"}


def test_json_prints_only_the_report(pigeon: Any) -> None:
    ended = pigeon("conformance", "pigeon", "--json", "--chapter", "calls", "-k", "test_self")

    assert ended.status == 1
    assert ended.stderr == ""
    assert ended.json["verdict"] == "does not conform"
    assert ended.json["backend"]["name"] == "PIGEON"
    assert {result["id"].partition("[")[0] for result in ended.json["results"]} == {"calls.self"}


def test_the_run_gets_options_version_and_report(command: Any, tmp_path: Path) -> None:
    ended = command(
        *("conformance", "FAULTY_TENSORPIPE", *CALLS),
        *("--suite-version", "1", "--timeout-factor", "2"),
        *("--option", "num_worker_threads=3", "--report", str(tmp_path / "out" / "mine")),
    )

    assert ended.status == 0, ended.stderr
    written = json.loads((tmp_path / "out" / "mine.json").read_text())
    assert written["backend"]["options"] == {"num_worker_threads": 3}
    assert written["counted_version"] == 1
    assert "FAULTY_TENSORPIPE" in (tmp_path / "out" / "mine.html").read_text()
    assert ended.stdout.splitlines()[-2:] == [
        f"report: {tmp_path / 'out' / 'mine.json'}",
        f"report: {tmp_path / 'out' / 'mine.html'}",
    ]


def test_the_current_folder_does_not_affect_the_run(command: Any) -> None:
    here = command.packages.parent
    (here / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (here / "conftest.py").write_text("raise RuntimeError('a conftest of somebody')\n")
    (here / "test_mine.py").write_text("def test_mine(): assert False\n")
    (command.packages / "conftest.py").write_text("raise RuntimeError('another')\n")
    command.install("pytest-somebody", {"somebody": ""}, "1/0", group="pytest11")

    ended = command(
        *("conformance", "FAULTY_TENSORPIPE", *CALLS),
        env={"PYTEST_ADDOPTS": "--no-such-option", "PYTEST_PLUGINS": "no_such_plugin"},
    )

    assert ended.status == 0, ended.stderr
    assert not (here / ".pytest_cache").exists()


@pytest.mark.thorough
def test_several_jobs_give_the_same_report(command: Any) -> None:
    both = [
        command("conformance", "FAULTY_TENSORPIPE", "--json", *CALLS, *more).json
        for more in ((), ("--jobs", "2"))
    ]

    first, second = (
        {result["id"]: result["outcome"] for result in report["results"]} for report in both
    )
    assert first == second
    assert len(first) == 3


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("TENSORPIP",), "no RPC backend 'TENSORPIP'. Did you mean 'TENSORPIPE'?"),
        (("FAULTY_TENSORPIPE", "--option", "x"), "--option is 'x'; it must be KEY=VALUE"),
        (
            ("FAULTY_TENSORPIPE", "--option", "num_fail_send=1"),
            "FAULTY_TENSORPIPE refuses the options num_fail_send=1: TypeError: ",
        ),
        (("FAULTY_TENSORPIPE", "--suite-version", "99"), "the installed suite has version"),
        (("FAULTY_TENSORPIPE", "-k", "no_such_test"), "no requirement was chosen"),
        (("FAULTY_TENSORPIPE", "--chapter", "sonnets"), "'sonnets' is not one of "),
        (("FAULTY_TENSORPIPE", "--report", "/proc/no/such"), "the report cannot be written"),
    ],
)
def test_wrong_arguments_are_status_2(command: Any, given: tuple[str, ...], error: str) -> None:
    ended = command("conformance", *given)

    assert ended.status == 2
    assert ended.stdout == ""
    assert error in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "--rpc-" not in ended.stderr  # names of pytest's options, which this command hides


def test_an_unloadable_backend_is_status_2_with_the_cause(command: Any) -> None:
    command.install("rpc-backend-broken", {"BROKEN": "B"}, "import no_such_library")

    ended = command("conformance", "BROKEN", *CALLS)

    assert ended.status == 2
    assert "No module named 'no_such_library'" in ended.stderr


def test_a_terminal_shows_progress_on_one_line(command: Any) -> None:
    terminal, command_end = pty.openpty()
    with started(
        [sys.executable, "-m", "rpc_backends_cli", "conformance", "FAULTY_TENSORPIPE", *CALLS],
        env=command.environ({"TERM": "xterm", "COLUMNS": "90"}),
        cwd=command.packages.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=command_end,
    ) as process:
        os.close(command_end)
        shown = b"".join(_read(terminal))
        stdout, _ = process.communicate()
    os.close(terminal)

    assert process.returncode == 0
    text = shown.decode()
    assert "test_self[sync]" in text
    assert "of 3" in text
    assert "0 failed" in text
    assert b"\x1b" not in stdout


def _read(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 4096)
        except OSError:  # on a terminal: the other side is closed
            return
        if not data:
            return
        yield data


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGTERM]
)
def test_an_interrupted_run_reports_its_results(
    command: Any, tmp_path: Path, number: signal.Signals
) -> None:
    """And it leaves no process."""
    file = tmp_path / "report"
    mark = f"RUN_OF_A_TEST={tmp_path}".encode()
    with started(
        [
            *(sys.executable, "-m", "rpc_backends_cli", "conformance", "FAULTY_TENSORPIPE"),
            *("--chapter", "calls", "--report", str(file)),
        ],
        env=command.environ({"RUN_OF_A_TEST": str(tmp_path)}),
        cwd=command.packages.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        while "passed" not in process.stderr.readline():
            assert process.poll() is None
        assert len(marked(mark)) >= 3  # the command, pytest, the template process
        process.send_signal(number)
        stdout, _ = process.communicate(timeout=60)

    report = json.loads(file.with_suffix(".json").read_text())
    assert process.returncode == 128 + number
    assert report["stopped"].startswith("interrupted")  # between two tests, it names none
    assert not [result for result in report["results"] if result["outcome"] == "failed"]
    assert report["verdict"] == "partial"
    assert report["results"][0]["outcome"] == "passed"
    assert file.with_suffix(".html").exists()
    assert report["stopped"] in " ".join(stdout.split())
    wait_until(lambda: not marked(mark))


@pytest.mark.thorough
def test_a_run_interrupted_at_its_start_leaves_no_process(command: Any) -> None:
    mark = f"RUN_OF_A_TEST={command.packages}".encode()
    with started(
        [sys.executable, "-m", "rpc_backends_cli", "conformance", "FAULTY_TENSORPIPE", *CALLS],
        env=command.environ({"RUN_OF_A_TEST": str(command.packages)}),
        cwd=command.packages.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        wait_until(lambda: len(marked(mark)) >= 3)  # the command, pytest, the template process

        process.send_signal(signal.SIGINT)

        assert process.wait(60) == 128 + signal.SIGINT
    wait_until(lambda: not marked(mark))


def test_closing_the_events_early_ends_the_run(tmp_path: Path) -> None:
    reported = events(arguments("FAULTY_TENSORPIPE", tmp_path, chapters=["calls"]))

    first = next(reported)
    reported.close()

    assert first["event"] == "collected"
    assert first["chapters"].keys() == {"calls"}
