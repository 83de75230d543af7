"""Runs a program as a process group, notices that it hangs, and ends all of its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rpc_backends_faults import settings
from rpc_backends_faults.explore import diagnosis, watchdog
from rpc_backends_faults.explore.progress import Waiting, kept_waiting
from rpc_backends_faults.explore.runs import Run
from rpc_backends_processes import free_port

#: Seconds that processes of a program may wait after the program has ended.
_GRACE_PERIOD = 3.0
#: Seconds after which a program waits for a time-out or hangs, and hardly needs a processor.
_IDLE = 2.0
#: How many times `timeout` a run may take if it had no processor for most of that time.
_LONGEST = 4
#: How many times longer a program may take until its first event or output: it imports torch then.
_STARTING = 4
#: The variables that choose the backend of a program. Others may be secrets and are not recorded.
_BACKEND_VARIABLES = ("RPC_BACKENDS_DEFAULT", "RPC_BACKENDS_OVERRIDE")


@dataclass(frozen=True)
class Program:
    """A program and its limits.

    :ivar hang: seconds without an event in a log and without output after which a run hangs. Those in
        which it computes or waits for a processor count less (:mod:`.progress`).
    :ivar timeout: seconds that a run may take, without those in which it waits for a processor.
    :ivar variables: additional environment variables.
    :ivar diagnose: whether the workers of a run that hangs are asked for the reason.
    """

    command: tuple[str, ...]
    hang: float
    timeout: float
    variables: Mapping[str, str] = field(default_factory=dict)
    diagnose: bool = True


class RunningProgram:
    """A program that runs with faults in a folder of its own.

    :raises ValueError: the program cannot be started.
    """

    def __init__(self, program: Program, folder: Path, rules: str) -> None:
        self._program = program
        self._folder = folder.absolute()
        self._left = self._folder / "left"
        self._left.mkdir(parents=True)
        (self._folder / "rules.toml").write_text(rules, encoding="utf-8")
        (self._folder / "tmp").mkdir()
        with (self._folder / "output.txt").open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    program.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment(),
                    process_group=0,
                )
            except OSError as error:
                raise ValueError(
                    f"{program.command[0]!r} cannot be run: {error.strerror}."
                ) from error
        self._begin = time.monotonic()
        self._waiting = Waiting(self.processes, min(1.0, program.hang / 4))
        self._size = -1
        self._end: float | None = None
        self._seconds = 0.0
        self._hang, self._diagnosis = "", diagnosis.Diagnosis()

    def _environment(self) -> dict[str, str]:
        ours = {settings.SEED, settings.REPLAY}
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        # Several runs at the same time need a port each.
        environment["MASTER_PORT"] = str(free_port())
        environment |= {
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self._folder / "tmp"),
            settings.RULES: str(self._folder / "rules.toml"),
            settings.LOG: str(self._folder / "logs"),
            settings.RUN: str(self._left),
        }
        return environment | dict(self._program.variables)

    def poll(self) -> Run | None:
        """Return the finished run, or None if the program still runs. Ends a program that hangs."""
        now = time.monotonic()
        if self._end is None:
            if self._process.poll() is not None:
                self._end, self._seconds = now, now - self._begin
                self._waiting.restart()
            else:
                self._look_for_hang(now)
                return self._ended([]) if self._hang else None
        left = self.processes()
        self._waiting.look(now)
        if left and self._waiting.seconds < _GRACE_PERIOD:
            return None
        return self._ended(left)

    def is_idle(self) -> bool:
        """Return whether the program has waited for some time."""
        return self._waiting.seconds > _IDLE

    def _look_for_hang(self, now: float) -> None:
        size = _size(self._folder)
        if size != self._size:
            self._size = size
            self._waiting.restart()
        self._waiting.look(now)
        limit = self._program.hang * (1 if self._size else _STARTING)
        if self._waiting.seconds > limit:
            self._hang = f"no event and no output for {limit:g} s"
        elif now - self._begin > self._program.timeout and self._is_over(now - self._begin):
            self._hang = f"it had not ended after {self._program.timeout:g} s"
        if self._hang:
            self._seconds = now - self._begin
            if self._program.diagnose:
                self._diagnosis = diagnosis.diagnose(self.processes())

    def _is_over(self, seconds: float) -> bool:
        """Return whether a run took too long, also without the time in which it had no processor."""
        timeout = self._program.timeout
        return seconds > min(timeout + kept_waiting(self.processes()), _LONGEST * timeout)

    def _ended(self, left: list[int]) -> Run:
        behind = [f"{pid} {command_line(pid)}" for pid in left]
        self.stop()
        status = None if self._hang else self._process.returncode
        return Run(
            self._folder,
            status,
            round(self._seconds, 2),
            hang=self._hang,
            diagnosis=self._diagnosis.text,
            causes=self._diagnosis.causes,
            waiting=self._diagnosis.waiting,
            left_behind=behind,
        )

    def processes(self) -> list[int]:
        """Return the processes of this run, also those that have left its process group."""
        return watchdog.processes_of(settings.RUN, self._left)

    def stop(self) -> None:
        """End all processes of this run; return when they are gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        watchdog.end_all(settings.RUN, self._left)


def command_line(pid: int) -> str:
    """Return the command line of a process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join(word.decode(errors="replace") for word in words if word)[:300]


def _size(folder: Path) -> int:
    """Return how many bytes the program has written to its logs and its output."""
    size = 0
    for path in (folder / "output.txt", *(folder / "logs").glob("*.jsonl")):
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    return size


def backend_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of the environment that choose the backend of a program."""
    return {name: environ[name] for name in _BACKEND_VARIABLES if environ.get(name, "").strip()}


def resolved(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command in which `python` is this interpreter, if PATH has no other one."""
    import shutil

    first = command[0]
    if first in {"python", "python3"} and shutil.which(first) is None:
        first = sys.executable
    return (first, *command[1:])
