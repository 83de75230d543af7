"""What the workers of `faults.py` do with their rules."""

from __future__ import annotations

import rpc_backends_faults as faults
from rpc_backends_cli.processes import Me


def can_have_rules(me: Me) -> bool:
    """Return whether fault injection is in front of this worker's agent."""
    try:
        faults.counts()
    except faults.NotWrappedError:
        return False
    return True


def set_rules(me: Me, count: int) -> None:
    """Have so many rules, none of which applies to any message of the benchmark."""
    names: list[str] = me.memory.setdefault("rules", [])
    while names:
        faults.remove(names.pop())
    for number in range(count):
        # Half of them ask for the function, which costs most to find out.
        which = (
            {"function": f"*.train.step_{number}"} if number % 2 else {"receiver": f"ps{number}"}
        )
        names.append(faults.add(what="drop", name=f"never-{number}", **which))
