"""The mutants that are known to survive, each with the reason, from ``survivors.txt``."""

from __future__ import annotations

from pathlib import Path

#: The transport that is mutated.
SOUND = Path(__file__).parents[2] / "packages/agents/src/rpc_backends_agents/transports/sockets.py"
FILE = Path(__file__).parent / "survivors.txt"


def listed() -> dict[tuple[str, str], str]:
    """Return the reasons by fault and what it was before.

    The file has two lines for each: ``FAULT: BEFORE``, and the reason, indented.
    """
    found: dict[tuple[str, str], str] = {}
    name = ("", "")
    for line in FILE.read_text().splitlines():
        if line.startswith("    "):
            found[name] = f"{found[name]} {line.strip()}".strip()
        elif line and not line.startswith("#"):
            fault, _, before = line.partition(": ")
            name = (fault, before)
            found[name] = ""
    return found
