"""Tasks that run in the workers of `faults.py`."""

from __future__ import annotations

import rpc_backends_faults as faults
from rpc_backends_processes import WorkerContext


def can_have_rules(me: WorkerContext) -> bool:
    """Return whether fault injection wraps this worker's agent."""
    try:
        faults.counts()
    except faults.NotWrappedError:
        return False
    return True


def set_rules(me: WorkerContext, count: int) -> None:
    """Replace the rules with ``count`` rules, none of which applies to a message of the benchmark."""
    names: list[str] = me.memory.setdefault("rules", [])
    while names:
        faults.remove(names.pop())
    for number in range(count):
        # Half of the rules name a function, because the function is the most expensive field to find.
        which = (
            {"function": f"*.train.step_{number}"} if number % 2 else {"receiver": f"ps{number}"}
        )
        names.append(faults.add(what="drop", name=f"never-{number}", **which))
