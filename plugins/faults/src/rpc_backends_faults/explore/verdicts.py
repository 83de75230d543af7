"""Judges a run: exit status, hang, signal, processes left behind, invariants."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rpc_backends_faults.explore.diagnosis import LIBRARY
from rpc_backends_faults.explore.invariants import Invariant
from rpc_backends_faults.explore.runs import Run

_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+, in (.+)$')
_ERROR = re.compile(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning))(?:: (.*))?$")
_SIGNAL = re.compile(r"terminated with signal (SIG[A-Z]+)")
_MOST_TITLE = 200
_LAUNCHERS = ("torch.multiprocessing", "torch.distributed.elastic")


@dataclass(frozen=True)
class Cause:
    """Why a run failed.

    :ivar kind: `exit`, `hang`, `signal`, `left behind` or `invariant`.
    :ivar key: the text by which failures are grouped, without numbers that differ between runs.
    :ivar title: one line for people.
    :ivar detail: the traceback, the stacks, or the message of the invariant.
    :ivar waiting: of a hang: where the threads of the program waited.
    """

    kind: str
    key: str
    title: str
    detail: str = ""
    waiting: frozenset[str] = frozenset()

    def is_same(self, other: Cause) -> bool:
        """Return whether two runs failed for the same cause.

        On a busy machine, some or all workers do not answer when they are asked where they wait.
        So a hang is also the same if the workers of one waited at some of the places of the other.
        """
        if self.key == other.key:
            return True
        both_hang = self.kind == other.kind == "hang"
        return both_hang and (self.waiting <= other.waiting or other.waiting <= self.waiting)


def judge(
    run: Run, invariants: Sequence[Invariant] = (), accepted: Collection[int] = (0,)
) -> list[Cause]:
    """Return the causes for which a run failed, the most telling first; none if it passed.

    Invariants judge only runs that ended with status 0: others did not reach their end.

    :param accepted: the exit statuses with which the program may end.
    """
    if run.hang:
        return [_hang(run)]
    causes = [*_signals(run)]
    if not causes and run.status not in accepted:
        causes.append(_exit(run))
    if run.status == 0:
        for invariant in invariants:
            problem = invariant.problem(run)
            if problem:
                key = f"invariant {invariant.name}"
                title = f"{invariant.name}: {_short(problem.splitlines()[0])}"
                causes.append(Cause("invariant", key, title, problem))
    if run.left_behind:
        commands = [entry.partition(" ")[2] for entry in run.left_behind]
        title = f"{len(commands)} processes left behind: {_short(commands[0])}"
        causes.append(Cause("left behind", "left behind", title, "\n".join(run.left_behind)))
    return causes


def _hang(run: Run) -> Cause:
    waiting = ", ".join(run.waiting)
    text = run.causes[0] if run.causes else run.hang
    if waiting and not run.causes:
        text += f"; waiting in {waiting}"
    # The likely reason depends on the moment of the question, so it is not a part of the key.
    key = f"hang in {waiting}" if waiting else "hang"
    detail = f"{run.hang}\n\n{run.diagnosis}"
    return Cause("hang", key, f"hang: {_short(text)}", detail, frozenset(run.waiting))


def _signals(run: Run) -> list[Cause]:
    """Return the signals that ended processes, unless a fault did."""
    status = run.status or 0
    names = [signal.Signals(-status).name] if status < 0 else _SIGNAL.findall(run.output)
    crashed = any(fault.what == "crash" for fault in run.injected)
    names = [name for name in names if not (crashed and name == "SIGKILL")]
    tail = "\n".join(run.output.splitlines()[-60:])
    return [
        Cause("signal", f"signal {name}", f"a process was ended by {name}", tail)
        for name in dict.fromkeys(names)
    ]


def _exit(run: Run) -> Cause:
    lines = run.output.splitlines()
    errors = _errors(lines)
    assertions = [error for error in errors if error[0].endswith("AssertionError")]
    if not errors:
        last = next((line for line in reversed(lines) if line.strip()), "no output")
        title = f"exit status {run.status}: {_short(last)}"
        return Cause("exit", f"exit {_stable(last)}", title, "\n".join(lines[-60:]))
    # What a launcher raises repeats the error of a worker.
    of_workers = [error for error in errors if not error[0].startswith(_LAUNCHERS)]
    name, text, where, line = (assertions or of_workers or errors)[0]
    title = f"{name} in {where}: {_short(text)}" if where else f"{name}: {_short(text)}"
    detail = "\n".join(lines[max(0, line - 60) : line + 1])
    return Cause("exit", f"exit {name} in {where}", title, detail)


def _errors(lines: Sequence[str]) -> list[tuple[str, str, str, int]]:
    """Return the exceptions in an output: class, text, innermost function of the program, line."""
    errors = []
    where, outer = "", ""
    for number, line in enumerate(lines):
        if frame := _FRAME.match(line):
            outer = frame[2]
            where = where if LIBRARY.search(frame[1]) else frame[2]
        elif "Traceback (most recent call last)" in line:
            where, outer = "", ""
        elif (error := _ERROR.match(line)) and outer:
            errors.append((error[1], error[2] or "", where or outer, number))
    return errors


def _stable(text: str) -> str:
    """Return a text without numbers and addresses."""
    return re.sub(r"0x[0-9a-f]+|\d+", "N", text)[:_MOST_TITLE]


def _short(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= _MOST_TITLE else f"{first[:_MOST_TITLE]}..."
