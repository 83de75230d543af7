"""Processes of our own that may crash or hang: started, watched, and ended in all cases.

A child runs the ``main`` of one of our modules and writes what it has to say, a JSON object a line, into
a file. It ends itself at its time limit, leaving behind where it was stuck, even if whoever started it is
gone; and its process group is killed from here in any case.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

#: Seconds that the others have to end by themselves when one of them has failed.
_GRACE = 5.0
#: Seconds over its limit after which a child that did not end itself is killed.
_PATIENCE = 3.0
_PAUSE = 0.02
_LOG_LINES = 15

# The path is handed over so that a child finds the packages that this process finds.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rpc_backends_core.cli import children; children.work(*sys.argv[2:])"
)


class Say(Protocol):
    """Tells the process that started this one something; keywords become a JSON object."""

    def __call__(self, **facts: object) -> None:
        """Write it at once."""


@dataclass(frozen=True)
class Outcome:
    """What became of a child.

    :ivar said: what it said, in order.
    :ivar log: the end of what it wrote to stdout and stderr.
    :ivar stuck_at: the innermost places of its main thread when its time was up, else None.
    :ivar returncode: negative for a signal.
    """

    said: list[dict[str, Any]]
    log: str
    stuck_at: str | None
    returncode: int

    @property
    def error(self) -> str | None:
        """What went wrong, None if nothing did."""
        for facts in self.said:
            if "error" in facts:
                return str(facts["error"])
        if self.stuck_at is not None:
            return f"not done when its time was up, and killed; it was at {self.stuck_at}"
        if self.returncode == 0:
            return None
        if self.returncode < 0:
            ending = f"was ended by {signal.Signals(-self.returncode).name}"
        else:
            ending = f"ended with status {self.returncode}"
        return f"the process {ending}" + (f" and wrote:\n{self.log}" if self.log else "")

    def fact(self, name: str) -> Any:
        """Return what it said last under ``name``, None if nothing."""
        found = [facts[name] for facts in self.said if name in facts]
        return found[-1] if found else None


def run(module: str, specs: Sequence[Mapping[str, Any]], limit: float) -> list[Outcome]:
    """Run one child for each of ``specs``, side by side, and return what became of them.

    :param module: one of ours, with ``main(spec, say)``.
    :param limit: seconds; a child that still runs then is ended.
    """
    with tempfile.TemporaryDirectory(prefix="rpc-backends-") as folder, _ended_by_signals():
        children = []
        try:
            for number, spec in enumerate(specs):
                children.append(_start(module, Path(folder, str(number)), spec, limit))
            _wait(children, limit)
        finally:
            for child in children:
                _end(child)
        return [
            _outcome(Path(folder, str(number)), child) for number, child in enumerate(children)
        ]


def work(module: str, folder: str, spec: str, limit: str) -> None:
    """Do the work of a child; called in it."""
    faulthandler.enable()
    watch(float(limit))
    with Path(folder, "said").open("a", buffering=1) as file:

        def say(**facts: object) -> None:
            file.write(json.dumps(facts) + "\n")

        try:
            import_module(module).main(json.loads(spec), say)
        except BaseException as error:
            say(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
            raise


def watch(limit: float) -> None:
    """End this process in ``limit`` seconds from now, writing down where it is; called in a child."""
    faulthandler.dump_traceback_later(limit, exit=True)


def _start(
    module: str, folder: Path, spec: Mapping[str, Any], limit: float
) -> subprocess.Popen[bytes]:
    folder.mkdir()
    arguments = [json.dumps(sys.path), module, str(folder), json.dumps(spec), str(limit)]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            start_new_session=True,  # so that what it starts can be ended with it
        )


def _wait(children: list[subprocess.Popen[bytes]], limit: float) -> None:
    """Wait until all have ended, or it is time to end them."""
    deadline = time.monotonic() + limit + _PATIENCE
    failed = False
    while time.monotonic() < deadline:
        endings = [_ending(child) for child in children]
        if all(ending is not None for ending in endings):
            return
        if any(endings) and not failed:
            failed = True
            deadline = min(deadline, time.monotonic() + _GRACE)
        time.sleep(_PAUSE)


def _ending(child: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status of ``child``, None while it runs; its id stays taken."""
    info = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if info is None else info.si_status


def _end(child: subprocess.Popen[bytes]) -> None:
    # Before its id is given back by wait(), so that no other process can have it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _outcome(folder: Path, child: subprocess.Popen[bytes]) -> Outcome:
    said_file = folder / "said"
    lines = said_file.read_text().splitlines() if said_file.exists() else []
    log = (folder / "log").read_text(errors="replace")
    return Outcome(
        [json.loads(line) for line in lines],
        "\n".join(log.strip().splitlines()[-_LOG_LINES:]),
        _stuck_at(log),
        child.returncode,
    )


def _stuck_at(log: str) -> str | None:
    """Return where the main thread was, from what faulthandler wrote; its block is the last."""
    _, found, dump = log.rpartition("\nTimeout (" if "\nTimeout (" in log else "Timeout (")
    if not found:
        return None
    main = dump.rpartition("(most recent call first):")[2]
    frames = re.findall(r'File "(.+)", line (\d+) in (.+)', main)
    # Where a program waits is mostly in the standard library, and who waits is a little further out.
    return " < ".join(f"{Path(file).name}:{line} ({name})" for file, line, name in frames[:4])


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a request to end this process unwind it, so that no child stays behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    before = {one: signal.signal(one, leave) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
