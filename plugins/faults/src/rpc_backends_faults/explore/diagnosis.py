"""Asks ``rpc-backends inspect`` why the workers of a run hang."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_LIMIT = 60.0
#: Files that are not the program's: Python's, installed packages, and these packages in a checkout.
LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3|/src/rpc_backends?_\w+/|<frozen|<string>"
)


@dataclass(frozen=True)
class Diagnosis:
    """Why workers hang.

    :ivar text: the reasons, the calls in flight and the stacks, for people.
    :ivar causes: the likely reasons that the flight recorder gives.
    :ivar waiting: where the threads of the program wait, sorted: the innermost functions of the program.
    """

    text: str = ""
    causes: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


def diagnose(pids: Sequence[int]) -> Diagnosis:
    """Return the state of these processes; says what is missing if they cannot be asked."""
    options = [option for pid in pids for option in ("--pid", str(pid))]
    command = [sys.executable, "-m", "rpc_backends_cli", "inspect", "--json", *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT, check=False, errors="replace"
        )
        state = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return Diagnosis(f"`rpc-backends inspect` did not end within {_LIMIT:g} s.")
    except ValueError:
        why = done.stderr.strip().splitlines()
        return Diagnosis(
            "The workers could not be inspected: " + (why[-1] if why else "no output") + "\n"
        )
    if "error" in state:
        return Diagnosis(f"The workers could not be inspected: {state['error']}\n")
    causes = [str(cause["text"]) for cause in state.get("causes", [])]
    parts = [*causes, *(_worker(worker) for worker in state.get("workers", []))]
    places = {
        place for worker in state.get("workers", []) for place in waits(worker.get("threads", []))
    }
    return Diagnosis("\n\n".join(parts), causes, sorted(places))


def waits(threads: Iterable[dict[str, Any]]) -> set[str]:
    """Return where threads wait: for each thread the innermost function of the program and its caller.

    Line numbers and library functions are left out, because they differ between runs that hang alike.
    """
    calls = set()
    for thread in threads:
        frames = thread["frames"]
        program = [frame["function"] for frame in frames if not LIBRARY.search(frame["file"])]
        if program:
            calls.add(" from ".join(program[:2]))
    return calls


def _worker(worker: dict[str, Any]) -> str:
    lines = [f"{worker['worker']} (process {worker['pid']}) {worker.get('problem', '')}".rstrip()]
    for call in worker.get("in_flight", []):
        way = "from" if call["direction"] == "incoming" else "to"
        name = call["function"] or call["type"]
        seconds = (worker["time_us"] - call["begin_us"]) / 1e6
        lines.append(f"  in flight: {name} {way} {call['peer']} for {seconds:.1f} s")
    lines += [f"  {line}" for line in str(worker.get("stacks", "")).splitlines()]
    return "\n".join(lines)
