"""`rpc-backends bench` as users run it: the smallest real runs, errors, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_bench import plan
from support.children import started
from support.command import BACKEND, Command, marked, wait_until

pytestmark = pytest.mark.slow

SMALL = ("--quick", "--only", "latency.noop", "--peer", "none")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path, templates=3)


def names(ended: Any) -> set[tuple[str, str]]:
    return {(row["id"], label) for row in ended.json["rows"] for label in row["results"]}


def test_a_run_writes_results_page_plots_and_comparison(command: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"

    ended = command("bench", "TENSORPIPE", "--vs", "TENSORPIPE@torch", *SMALL, "--out", str(out))

    assert ended.status == 0, ended.stderr
    assert "no-op in Python" in ended.stdout
    assert "Traceback" not in ended.stderr
    written = json.loads((out / "results.json").read_text())
    assert written["complete"] is True
    assert written["reference"] == "TENSORPIPE@torch"
    (row,) = written["rows"]
    assert row["results"].keys() == {"TENSORPIPE", "TENSORPIPE@torch", "limit: socket"}
    assert [len(figures["points"]) for figures in row["results"].values()] == [6, 6, 6]
    assert (out / "index.html").exists()
    assert (out / "latency.png").exists()

    old = command(
        *("bench", "TENSORPIPE", "--vs", "TENSORPIPE@torch", "--quick", "--json"),
        *("--only", "group", "--largest", "2", "--compare", str(out / "results.json")),
    )

    assert old.status == 0, old.stderr
    # torch warns if the name service is slow to answer.
    assert [line for line in old.stderr.splitlines() if "[c10d] The hostname of" not in line] == []
    assert old.json["comparison"]["compared"] == 0  # the two runs have no row in common
    measured = {row["id"]: set(row["results"]) for row in old.json["rows"]}
    assert measured == {
        row_name: {"TENSORPIPE", "TENSORPIPE@torch"} for row_name in plan.choose(["group"])
    }


def test_a_backend_that_cannot_start_is_reported(command: Any) -> None:
    command.install(
        "rpc-backend-sleepy", {"SLEEPY": "BACKEND"}, BACKEND % "raise OSError('asleep')"
    )

    ended = command("bench", "SLEEPY", *SMALL, "--only", "group.start", "--largest", "2", "--json")

    assert ended.status == 1
    assert names(ended) >= {("latency.noop", "TENSORPIPE"), ("group.start", "TENSORPIPE")}
    assert not [label for _, label in names(ended) if label == "SLEEPY"]
    (problem,) = ended.json["problems"]
    assert (problem["label"], problem["at"]) == ("SLEEPY", "start")
    assert problem["text"] == "OSError: asleep"
    assert ended.json["complete"] is True


def test_a_hook_package_that_hangs_at_import_is_named(command: Any) -> None:
    """Hook packages are imported before backends, in the same way."""
    hangs = "import time\ntime.sleep(600)"
    command.install("rpc-sleepy", {"sleepy": "HOOKS"}, hangs, group="rpc.backends.hooks")

    ended = command("bench", "TENSORPIPE", *SMALL, "--timeout", "15")

    assert ended.status == 1
    for part in ("rpc-sleepy 1.0", "rpc_sleepy.py:2", "15 s", "pip uninstall"):
        assert part in ended.stderr


def test_a_backend_whose_worker_dies_is_reported(command: Any) -> None:
    dies = "threading.Timer(0.0, os._exit, [9]).start() if rank == 1 else None"
    command.install(
        "rpc-backend-mortal", {"MORTAL": "BACKEND"}, "import threading\n" + BACKEND % dies
    )

    ended = command("bench", "MORTAL", *SMALL)

    assert ended.status == 1
    assert "MORTAL, start: " in ended.stdout
    assert "no-op in Python" in ended.stdout


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("TENSORPIP",), "no RPC backend 'TENSORPIP'. Did you mean 'TENSORPIPE'?"),
        ((), "name at least one backend"),
        (("GLOO@torch",), "torch has no backend 'GLOO' of its own"),
        (("TENSORPIPE:threads",), "NAME:key=value"),
        (("FAULTY_TENSORPIPE:no_such=1",), "the backend rejects the options: TypeError"),
        (("TENSORPIPE", "--only", "latency.nop"), "--only: there is no row 'latency.nop'"),
        (("TENSORPIPE", "--out", "/proc/no/such"), "cannot be written to"),
        (("TENSORPIPE", "--compare", "no.json"), "no.json cannot be read"),
    ],
)
def test_bad_arguments_exit_with_2_before_measuring(
    command: Any, given: tuple[str, ...], expected: str
) -> None:
    ended = command("bench", *given)

    assert ended.status == 2, ended.stderr
    assert expected in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_help_shows_the_rows_and_examples(command: Any) -> None:
    ended = command("bench", "--help")

    assert ended.status == 0
    assert "rpc-backends bench" in ended.stdout.partition("Examples")[2]
    assert "NAME@torch" in ended.stdout


def test_an_interrupt_keeps_results_and_leaves_no_process(command: Any, tmp_path: Path) -> None:
    arguments = ("bench", "FAULTY_TENSORPIPE", "--vs", "TENSORPIPE", "--json")
    mark = f"RUN_OF_A_TEST={tmp_path}".encode()
    with started(
        [sys.executable, "-m", "rpc_backends_cli", *arguments, "--out", str(tmp_path / "out")],
        env=command.environ({"RUN_OF_A_TEST": str(tmp_path)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        # At least the command, the template, and some workers of the two pairs.
        wait_until(lambda: len(marked(mark)) >= 5)

        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=120)

    assert process.returncode == 130
    assert json.loads(stdout)["complete"] is False
    assert (tmp_path / "out" / "results.json").exists()
    wait_until(lambda: not marked(mark))
