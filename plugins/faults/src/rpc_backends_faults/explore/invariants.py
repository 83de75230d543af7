r"""Checks of what a run left; a user's file of invariants calls them.

An invariant is a function in a Python file whose name begins with ``check_``. It takes a
:class:`~rpc_backends_faults.explore.Run` and raises an error if the run broke a promise::

    from rpc_backends_faults.explore import invariants

    def check_every_update_counts_once(run):
        invariants.exactly_once(run, r"applied update (\S+)")
"""

from __future__ import annotations

import importlib.util
import re
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpc_backends_faults.explore.runs import Run

#: The name that functions of the user's file must begin with.
PREFIX = "check_"
#: How many functions an error lists.
_MOST_NAMES = 10


@dataclass(frozen=True)
class Invariant:
    """A check of a user."""

    name: str
    check: Callable[[Run], Any]

    def problem(self, run: Run) -> str:
        """Return what is wrong with a run, or an empty text."""
        try:
            self.check(run)
        except AssertionError as error:
            return str(error) or traceback.format_exc(limit=-1).strip()
        except Exception as error:  # what a check raises is its finding
            return f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
        return ""


def load(path: Path | None) -> list[Invariant]:
    """Return the invariants in a Python file.

    :raises ValueError: the file cannot be imported, or has none.
    """
    if path is None:
        return []
    spec = importlib.util.spec_from_file_location(f"invariants_{path.stem}", path)
    try:
        assert spec is not None and spec.loader is not None, "its name does not end with .py"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(
            f"the file of invariants {str(path)!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    checks = [
        Invariant(name.removeprefix(PREFIX), value)
        for name, value in vars(module).items()
        if name.startswith(PREFIX) and callable(value)
    ]
    if not checks:
        raise ValueError(
            f"the file of invariants {str(path)!r} has no function whose name begins with {PREFIX!r}."
        )
    return checks


def lines(run: Run, name: str | None = None) -> list[str]:
    """Return the lines of the output.

    :param name: a pattern of files in ``run.left``, such as ``*.txt``, to read instead.
    """
    if name is None:
        return run.output.splitlines()
    files = sorted(run.left.glob(name))
    return [line for file in files for line in file.read_text(errors="replace").splitlines()]


def values(run: Run, pattern: str, *, file: str | None = None) -> list[str]:
    """Return what the first group of a regular expression matches in each line.

    :param file: a pattern of files in ``run.left``; None means the output.
    """
    matches = (re.search(pattern, line) for line in lines(run, file))
    return [match[1] for match in matches if match]


def exactly_once(run: Run, pattern: str, *, file: str | None = None) -> None:
    """Check that each execution that the fault-free run logged happened once, and no other.

    In a run without faults, at least one line must match: a check without any checks nothing.

    :param pattern: matches a line that the callee writes when it executes an update; its first
        group names the update.
    :raises AssertionError: names the updates that were lost, and those that were done more than once.
    """
    times = Counter(values(run, pattern, file=file))
    expected = set(values(run.baseline, pattern, file=file)) if run.baseline else set(times)
    assert expected or times, _no_line(pattern, file)
    lost = sorted(expected - times.keys())
    again = sorted(f"{name} ({count} times)" for name, count in times.items() if count > 1)
    unknown = sorted(times.keys() - expected)
    problems = [
        f"{what}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
        for what, names in (("lost", lost), ("done again", again), ("not expected", unknown))
        if names
    ]
    assert not problems, "; ".join(problems)


def same_as_without_faults(run: Run, pattern: str, *, file: str | None = None) -> None:
    """Check that a result equals that of the fault-free run: resume equivalence.

    :param pattern: its first group is the result, for example a digest of the parameters.
    :raises AssertionError: the results differ, or there is none.
    """
    results = values(run, pattern, file=file)
    assert results, _no_line(pattern, file)
    if run.baseline is not None:
        expected = values(run.baseline, pattern, file=file)
        assert results == expected, f"{results[:5]} differs from {expected[:5]} without faults"


def within(run: Run, pattern: str, least: float, most: float, *, file: str | None = None) -> None:
    """Check that the last value of a number, for example the loss, is within a band.

    :param pattern: its first group is the number.
    :raises AssertionError: it is not, or there is none.
    """
    results = values(run, pattern, file=file)
    assert results, _no_line(pattern, file)
    value = float(results[-1])
    assert least <= value <= most, f"{value:g} is not within {least:g} and {most:g}"


def memory_back(run: Run, *, most: int = 64 * 2**20) -> None:
    """Check that each worker has about as much memory in use at the end as without faults.

    The event log has the memory (RSS) of a worker when its agent stops. Workers that did not get there
    are left out.

    :param most: how many bytes more a worker may have.
    :raises AssertionError: names the workers with more; or the run is the fault-free one, and no worker
        got to the end of its agent.
    """
    if run.baseline is None:
        assert _memory(run), "no event log has the memory of a worker: none called shutdown"
    expected = _memory(run.baseline) if run.baseline is not None else {}
    more = {
        worker: used - expected[worker]
        for worker, used in _memory(run).items()
        if worker in expected and used - expected[worker] > most
    }
    assert not more, "; ".join(
        f"{worker} has {extra / 2**20:.0f} MiB more than without faults"
        for worker, extra in more.items()
    )


def _memory(run: Run) -> dict[str, int]:
    """Return the most memory that an agent of each worker left."""
    used: dict[str, int] = {}
    for log in run.logs:
        worker = str(log[0].get("worker", ""))
        for event in log:
            if event.get("event") == "end of log" and event.get("memory"):
                used[worker] = max(used.get(worker, 0), int(event["memory"]))
    return used


def rrefs_deleted(run: Run, *, before: str = "", most: int = 0) -> None:
    """Check that each user of an RRef told the owner that it does not need the RRef any more.

    Counts ``remote`` calls that were answered and messages that delete RRefs, for each pair of workers.

    :param before: a function: only messages before its last call count. Shutdown deletes all RRefs, so
        name a function that the program calls shortly before it.
    :param most: how many RRefs of a pair may be left.
    :raises AssertionError: names the pairs with more; or nothing called the function ``before``.
    """
    created: Counter[tuple[str, str]] = Counter()
    last = [m["t"] for m in run.messages if before and m.get("function") == before]
    assert last or not before, _no_call(run, before)
    for message in run.messages:
        if last and message["t"] >= last[-1]:
            break
        pair = (str(message["sender"]), str(message["to"]))
        if message["outcome"] != "answer":
            continue
        if message["type"] in {"PYTHON_REMOTE_CALL", "SCRIPT_REMOTE_CALL"}:
            created[pair] += 1
        elif message["type"] == "RREF_USER_DELETE":
            created[pair] -= 1
    left = {pair: count for pair, count in created.items() if count > most}
    assert not left, "; ".join(
        f"{count} RRefs of {owner} that {user} created were not deleted"
        for (user, owner), count in sorted(left.items())
    )


def _no_line(pattern: str, file: str | None) -> str:
    where = "the output" if file is None else f"the files {file!r} in RPC_BACKENDS_FAULTS_RUN"
    return f"no line matches {pattern!r} in {where}"


def _no_call(run: Run, function: str) -> str:
    called = sorted(
        {str(message["function"]) for message in run.messages if message.get("function")}
    )
    names = ", ".join(called[:_MOST_NAMES]) or "none"
    more = " ..." if len(called) > _MOST_NAMES else ""
    return f"no call of {function!r}. The functions called are: {names}{more}"
