"""The mutants that are known to survive, each with the reason, from ``survivors.txt``."""

from __future__ import annotations

from pathlib import Path

from mutation.mutants import Mutant
from mutation.running import Fate

#: The transport that is mutated.
SOUND = Path(__file__).parents[2] / "packages/agents/src/rpc_backends_agents/transports/sockets.py"
FILE = Path(__file__).parent / "survivors.txt"


def share(fates: list[Fate]) -> float:
    """Return the share of mutants that were killed, of all that are not known to be equivalent."""
    survivors = [fate.mutant for fate in fates if not fate.killed_by]
    missed = [survivor for survivor in survivors if not is_equivalent(survivor)]
    killed = len(fates) - len(survivors)
    return killed / max(killed + len(missed), 1)


def is_equivalent(mutant: Mutant) -> bool:
    """Return whether the reason says that the mutant keeps every promise."""
    return listed().get((mutant.fault, mutant.before), "").startswith("equivalent")


def listed() -> dict[tuple[str, str], str]:
    """Return the reasons, by fault and original code.

    The file has two lines for each: ``FAULT: BEFORE``, and the reason, indented.
    """
    reasons: dict[tuple[str, str], str] = {}
    name = ("", "")
    for line in FILE.read_text().splitlines():
        if line.startswith("    "):
            reasons[name] = f"{reasons[name]} {line.strip()}".strip()
        elif line and not line.startswith("#"):
            fault, _, before = line.partition(": ")
            name = (fault, before)
            reasons[name] = ""
    return reasons
