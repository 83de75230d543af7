"""The worker processes as the console sees them: started, listened to, and ended in all cases.

Plain subprocesses and pipes rather than multiprocessing: that would add processes of its own (a
resource tracker, a fork server), and a queue shared with a worker that is killed can lock up.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, TypeAlias

from demo import rules
from demo.messages import Failed, Finished, Message, decode
from demo.plan import SERVER, TRAINERS, WORKERS, Plan
from demo.worker import STOP
from rpc_backends_core.spi.inspection import settings

SILENCE = 180.0  # seconds without a message after which the run is given up
LAST_WORDS = 1.0  # seconds that the other workers have to speak after the first failure
LOG_LINES = 20

_Mail: TypeAlias = "queue.Queue[tuple[str, Message | None]]"


class WorkerFailedError(Exception):
    """A worker ended with an error or fell silent; the text says which and shows its traceback."""


class Workers:
    """All workers of one run, as a context: within it they run, after it none does.

    :param silence: seconds without any message after which ``messages`` gives up.
    """

    def __init__(self, plan: Plan, silence: float = SILENCE) -> None:
        self._plan = plan
        self._silence = silence
        self._mail: _Mail = queue.Queue()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Workers:
        self._environment = _environment(self._plan)
        try:
            for name in WORKERS:
                self.processes[name] = self._start(name)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def messages(self) -> Iterator[Message]:
        """Yield what the workers report until all have ended well.

        :raises WorkerFailedError: one of them did not, or nobody reported anything for too long.
        """
        running, training = set(WORKERS), set(TRAINERS)
        while running:
            try:
                name, message = self._mail.get(timeout=self._silence)
            except queue.Empty:
                raise WorkerFailedError(
                    f"no news for {self._silence:g} s from {', '.join(sorted(running))}"
                ) from None
            if message is None and self.processes[name].wait() == 0:
                running.remove(name)
                continue
            if message is None or isinstance(message, Failed):
                raise WorkerFailedError(self._explain(name, message))
            if isinstance(message, Finished) and name in training:
                training.remove(name)
                if not training:
                    self._stop_server()
            yield message

    def end(self) -> None:
        """End every process that still runs and wait for it."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin:
                with contextlib.suppress(OSError):
                    process.stdin.close()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        with Path(self._plan.folder, f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker", name, self._plan.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                process_group=0,  # Ctrl-C is for the console, which ends the workers
            )
        listener = threading.Thread(
            target=_listen, args=(name, process.stdout, self._mail), daemon=True
        )
        listener.start()
        return process

    def _stop_server(self) -> None:
        stdin = self.processes[SERVER].stdin
        assert stdin is not None
        with contextlib.suppress(OSError):  # if it has died, its pipe says so next
            stdin.write(STOP)
            stdin.flush()

    def _explain(self, name: str, message: Failed | None) -> str:
        """Return what the first failed worker and those failing with it have to say.

        Whoever died without a word comes first: the others' errors mostly follow from that.
        """
        problems = {name: message}
        deadline = time.monotonic() + LAST_WORDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                name, news = self._mail.get(timeout=left)
            except queue.Empty:
                break
            if news is None or isinstance(news, Failed):
                problems.setdefault(name, news)
        ordered = sorted(problems.items(), key=lambda problem: problem[1] is not None)
        return "\n\n".join(self._complaint(*problem) for problem in ordered)

    def _complaint(self, name: str, message: Failed | None) -> str:
        if message:
            return f"{name} failed:\n{message.traceback.rstrip()}"
        log = Path(self._plan.folder, f"{name}.log").read_text(errors="replace").splitlines()
        ending = "\n".join(log[-LOG_LINES:]) or "(its log is empty)"
        return f"{name} ended with status {self.processes[name].wait()}:\n{ending}"


def _listen(name: str, output: IO[bytes], mail: _Mail) -> None:
    """Put every message of a worker into ``mail``, and None when it has ended."""
    with output:
        for line in output:
            if line.endswith(b"\n"):  # the last line of a killed worker may be half a message
                mail.put((name, decode(line)))
    mail.put((name, None))


def _environment(plan: Plan) -> dict[str, str]:
    """Return the workers' environment: one thread each, the loopback interface, what the plan says.

    That is its backend and its faults, and no others that programs get here.
    """
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    for name in os.environ:
        if name == settings.OVERRIDE or name.startswith(rules.VARIABLE):
            del environment[name]
    if plan.faults.by:
        environment[rules.VARIABLE] = str(rules.write(plan))
    if any(interface == "lo" for _, interface in socket.if_nameindex()):
        environment.setdefault("TP_SOCKET_IFNAME", "lo")
    return environment
