"""Programs with a planted bug, the kinds of faults they should survive, and what shows each bug."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_EXAMPLES = _HERE.parents[3] / "examples"
_SURVIVED = (
    "duplicate",
    "reply_lost",
    "reply_fail",
    "reply_delay",
    "drop",
    "fail",
    "delay",
    "reorder",
    "partition",
    "pause",
)


@dataclass(frozen=True)
class Planted:
    """A program with a planted bug.

    :ivar shown: the kind of the cause that shows the bug. The programs have other weaknesses, for example
        calls that are not repeated.
    :ivar hang: seconds after which it hangs, longer than the timeout of its shutdown.
    """

    name: str
    program: Path
    kinds: tuple[str, ...] = _SURVIVED
    shown: str = "invariant"
    hang: float = 45.0

    @property
    def invariants(self) -> Path | None:
        """The file of invariants, if the program has one."""
        names = (f"{self.program.stem}_checks.py", "invariants.py")
        files = (self.program.with_name(name) for name in names)
        return next((file for file in files if file.exists()), None)


PROGRAMS = (
    Planted("lost update", _HERE / "lost_update.py"),
    Planted(
        "double update",
        _EXAMPLES / "parameter_server/train.py",
        ("duplicate", "delay", "reorder"),
        hang=75.0,
    ),
    Planted("pool deadlock", _HERE / "pool_deadlock.py", shown="hang"),
    Planted("lost wake-up", _HERE / "lost_wakeup.py", shown="hang"),
    Planted("leaked RRef", _HERE / "leaked_rref.py"),
    Planted("stale read", _HERE / "stale_read.py"),
    Planted("barrier", _HERE / "barrier.py", (*_SURVIVED, "crash")),
    Planted("checkpoint", _EXAMPLES / "explore/train.py", (*_SURVIVED, "crash"), hang=75.0),
)
