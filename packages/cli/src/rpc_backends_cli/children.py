"""Processes of our own that may crash or hang: started, watched, and ended in all cases.

A child runs the ``main`` of one of our modules and writes what it has to say into a file (see `child`).
It ends itself at its time limit, leaving behind where it was stuck, even if whoever started it is gone;
and its process group is killed from here in any case.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpc_backends_cli.child import SAID

#: Seconds that the others have to end by themselves when one of them has failed.
_GRACE = 5.0
#: Seconds over its limit after which a child that did not end itself is killed.
_PATIENCE = 3.0
_PAUSE = 0.02
_LOG_LINES = 15
_CORE = Path(__file__).parents[1]
_PLACES = 3

_DUMP = re.compile(r"^(Timeout \(|Fatal Python error: )", re.MULTILINE)
_IMPORTING = re.compile(r"<frozen importlib|importlib(_metadata)?/")
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')

# The path is handed over so that a child finds the packages that this process finds.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rpc_backends_cli.child import work; work(*sys.argv[2:])"
)


@dataclass(frozen=True)
class Outcome:
    """What became of a child.

    :ivar said: what it said, in order.
    :ivar log: the end of what it wrote to stdout and stderr.
    :ivar timed_out: whether its time was up.
    :ivar at: the innermost places of its Python code then, or where it crashed; "" if not known.
    :ivar returncode: negative for a signal.
    """

    said: list[dict[str, Any]]
    log: str
    timed_out: bool
    at: str
    returncode: int

    @property
    def error(self) -> str | None:
        """What went wrong, None if nothing did."""
        for facts in self.said:
            if "error" in facts:
                return str(facts["error"])
        if self.timed_out:
            ending = "it was not done in time and was ended"
        elif self.returncode < 0:
            ending = f"the process was ended by {signal.Signals(-self.returncode).name}"
        elif self.returncode > 0:
            ending = f"the process ended with status {self.returncode}"
        else:
            return None
        where = f", at {self.at}" if self.at else ""
        return ending + where + (f"; it wrote:\n{self.log}" if self.log else "")

    def fact(self, name: str) -> Any:
        """Return what it said last under ``name``, None if nothing."""
        found = [facts[name] for facts in self.said if name in facts]
        return found[-1] if found else None


def run(module: str, specs: Sequence[Mapping[str, Any]], limit: float) -> list[Outcome]:
    """Run one child for each of ``specs``, side by side, and return what became of them.

    :param module: one of ours, with ``main(spec, say)``.
    :param limit: seconds; a child that still runs then is ended.
    """
    with tempfile.TemporaryDirectory(prefix="rpc-backends-") as folder, ended_by_signals():
        children = []
        try:
            for number, spec in enumerate(specs):
                children.append(_start(module, Path(folder, str(number)), spec, limit))
            timed_out = _wait(children, limit)
        finally:
            for child in children:
                _end(child)
        return [
            _outcome(Path(folder, str(number)), child, number in timed_out)
            for number, child in enumerate(children)
        ]


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


def _wait(children: list[subprocess.Popen[bytes]], limit: float) -> set[int]:
    """Wait until all have ended, or it is time to end them; return which still run."""
    deadline = time.monotonic() + limit + _PATIENCE
    failed = False
    while time.monotonic() < deadline:
        endings = [_ending(child) for child in children]
        if all(ending is not None for ending in endings):
            break
        if any(endings) and not failed:
            failed = True
            deadline = min(deadline, time.monotonic() + _GRACE)
        time.sleep(_PAUSE)
    return {number for number, child in enumerate(children) if _ending(child) is None}


def _ending(child: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status of ``child``, None while it runs; its id stays taken."""
    info = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if info is None else info.si_status


def _end(child: subprocess.Popen[bytes]) -> None:
    # Before its id is given back by wait(), so that no other process can have it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _outcome(folder: Path, child: subprocess.Popen[bytes], timed_out: bool) -> Outcome:
    said_file = folder / SAID
    lines = said_file.read_text().splitlines() if said_file.exists() else []
    log, dump = _split((folder / "log").read_text(errors="replace"))
    return Outcome(
        [json.loads(line) for line in lines],
        "\n".join(log.strip().splitlines()[-_LOG_LINES:]),
        timed_out or dump.startswith("Timeout"),
        _innermost(dump),
        child.returncode,
    )


def _split(log: str) -> tuple[str, str]:
    """Part what a child wrote from what faulthandler wrote when it crashed or its time was up."""
    found = _DUMP.search(log)
    return (log[: found.start()], log[found.start() :]) if found else (log, "")


def _innermost(dump: str) -> str:
    """Return where the main thread was, the innermost place first; its block is the last one."""
    main = dump.rpartition("(most recent call first):")[2]
    places: list[str] = []
    somebody_elses = False
    for file, line, name in _FRAME.findall(main):
        if _IMPORTING.search(file):
            continue
        ours = Path(file).is_relative_to(_CORE)
        if ours and somebody_elses:
            break  # nobody needs to know how we got there
        somebody_elses = somebody_elses or not ours
        places.append(f"{Path(file).name}:{line} ({name})")
    return " < ".join(places[:_PLACES])


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
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
