"""The environment variables of fault injection, read when an agent starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RULES = "RPC_BACKENDS_FAULTS"
SEED = "RPC_BACKENDS_FAULTS_SEED"
LOG = "RPC_BACKENDS_FAULTS_LOG"
REPLAY = "RPC_BACKENDS_FAULTS_REPLAY"
VARIABLES = {
    RULES: "the rule file; or 'on', for rules that come while the program runs",
    SEED: "the seed, in place of the rule file's",
    LOG: "a folder for the event logs, one a worker",
    REPLAY: "an earlier run's folder of event logs, or one log: the same faults for the same messages",
}
_ON = "on"


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    :ivar rules: the rule file.
    :ivar on: whether agents are to be ready for rules, whether or not there is a file.
    """

    rules: Path | None = None
    on: bool = False
    seed: int | None = None
    log: Path | None = None
    replay: Path | None = None


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return what the environment asks for.

    :raises ValueError: a variable means nothing.
    """
    rules = environ.get(RULES, "").strip()
    seed = environ.get(SEED, "").strip()
    if seed and not (seed.isascii() and seed.isdigit() and int(seed) < 2**63):
        raise ValueError(f"{SEED}={seed!r} is no seed: it must be a whole number, 0 or more.")
    log, replay = environ.get(LOG, "").strip(), environ.get(REPLAY, "").strip()
    return Settings(
        rules=Path(rules).expanduser() if rules and rules != _ON else None,
        on=bool(rules or log or replay),
        seed=int(seed) if seed else None,
        log=Path(log).expanduser() if log else None,
        replay=Path(replay).expanduser() if replay else None,
    )
