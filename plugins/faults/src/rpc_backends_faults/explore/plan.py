"""What to search, and how long, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rpc_backends_faults.explore.invariants import Invariant
from rpc_backends_faults.explore.processes import Program
from rpc_backends_faults.explore.schedules import Strategy


@dataclass(frozen=True)
class Plan:
    """What to search, and how long.

    :ivar seconds: the time for everything; None means no limit.
    :ivar runs: the number of generated schedules; None means no limit.
    :ivar failures: stop exploring after this many different failures; None means no limit.
    :ivar jobs: how many programs run at the same time, besides those that only wait; 1 for one after
        the other.
    :ivar accepted: the exit statuses with which the program may end.
    :ivar corpus: the folder of rule files that are tried first, and to which new ones are added, if any.
    :ivar against: a backend on which shrunk schedules are run too.
    :ivar keep: whether the folders of runs that passed are kept.
    """

    program: Program
    out: Path
    kinds: tuple[str, ...]
    corpus: Path | None = None
    seed: int = 0
    strategy: Strategy = "guided"
    seconds: float | None = None
    runs: int | None = None
    failures: int | None = None
    jobs: int = 2
    confirmations: int = 10
    accepted: tuple[int, ...] = (0,)
    invariants: tuple[Invariant, ...] = ()
    invariants_file: Path | None = None
    against: str | None = None
    keep: bool = False
