"""Runs the tests of a transport on mutants of it, each in a process of its own, two at a time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation.mutants import Mutant

#: The name under which the tests import the mutant.
MODULE = "transport_under_test"
#: Multiplies the time limits of the tests. A sound transport does not reach any of them.
TIMEOUT_FACTOR = 0.8
#: Seconds that a run of all tests may take; the tests have limits of their own.
SECONDS = 200.0
_TESTS = f"""
import {MODULE}
from rpc_backends_testing import TransportContract


class TestMutant(TransportContract):
    timeout_factor = {TIMEOUT_FACTOR}

    def make_transport(self, worker_id):
        return {MODULE}.SocketTransport()
"""


@dataclass(frozen=True)
class Fate:
    """The result of the tests on a mutant.

    :ivar killed_by: the test that failed; empty if the mutant has survived.
    :ivar got: the error of that test, or a text that says that the run did not end.
    """

    mutant: Mutant
    killed_by: str
    got: str
    seconds: float


def sound(source: str) -> Mutant:
    """Return the transport without a fault, to check that the tests pass on it."""
    return Mutant(0, "no fault", "", source)


def run(mutants: Iterable[Mutant], jobs: int = 2) -> Iterator[Fate]:
    """Run the tests on each mutant until one test fails, and yield the results as they come."""
    import hypothesis  # noqa: F401  # imported once, before processes are forked
    import pytest  # noqa: F401

    import rpc_backends_testing.transports.contract  # noqa: F401

    waiting = iter(mutants)
    running: dict[int, tuple[int, Mutant, Path, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "test_mutant.py").write_text(_TESTS)
        count = 0
        try:
            while True:
                while len(running) < jobs and (mutant := next(waiting, None)) is not None:
                    count += 1
                    result = folder / f"{count}.json"
                    process = _start(mutant, folder, result)
                    running[os.pidfd_open(process)] = (process, mutant, result, time.monotonic())
                if not running:
                    return
                yield from _ended(running)
        finally:
            for ended, (process, *_) in running.items():
                signal.pidfd_send_signal(ended, signal.SIGKILL)
                os.waitpid(process, 0)
                os.close(ended)


def _ended(running: dict[int, tuple[int, Mutant, Path, float]]) -> Iterator[Fate]:
    """Wait until a process has ended or its time is over; yield the results of all such processes."""
    done, _, _ = select.select(list(running), [], [], 1.0)
    for ended, (process, mutant, result, started) in list(running.items()):
        seconds = time.monotonic() - started
        if ended not in done and seconds < SECONDS:
            continue
        killed_by, got = "", ""
        if ended not in done:
            signal.pidfd_send_signal(ended, signal.SIGKILL)
            got = f"the tests still run after {seconds:.0f} s"
        _, status = os.waitpid(process, 0)
        os.close(ended)
        del running[ended]
        with contextlib.suppress(OSError, ValueError):
            killed_by, got = json.loads(result.read_text())
        if not killed_by and not got and status != 0:
            killed_by, got = "pytest", f"its process has ended with status {status}"
        yield Fate(mutant, killed_by, got, seconds)


def _start(mutant: Mutant, folder: Path, result: Path) -> int:
    """Start the tests in a forked process; return its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        output = os.open(result.with_suffix(".log"), os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        status = _run_tests(mutant, result)
    finally:
        os._exit(status)


def _run_tests(mutant: Mutant, result: Path) -> int:
    import pytest

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    try:
        exec(compile(mutant.source, MODULE, "exec"), vars(module))
    except Exception as error:
        result.write_text(json.dumps(("import", repr(error))))
        return 1
    arguments = [
        "-x",
        "-q",
        "--tb=short",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
        "-p",
        "no:cacheprovider",
    ]
    return int(pytest.main([*arguments, "test_mutant.py"], plugins=[_FirstFailure(result)]))


class _FirstFailure:
    """Writes down the first test that fails, and why."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self._file.exists():
            name = report.nodeid.rpartition("::")[2]
            text = str(report.longrepr)
            lines = [line for line in text.splitlines() if line.startswith("E  ")] or [text[-200:]]
            self._file.write_text(
                json.dumps((name, " | ".join(line[4:].strip() for line in lines)))
            )
