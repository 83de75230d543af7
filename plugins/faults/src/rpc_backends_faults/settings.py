"""The environment variables of fault injection, read when an agent starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rpc_backends_core.spi import nearest
from rpc_backends_faults.checking import is_seed
from rpc_backends_faults.errors import RuleError
from rpc_backends_faults.limits import MOST_COUNT, shown

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
#: What people write to switch something, and do not mean as the name of a file.
_SWITCHES = frozenset({"1", "true", "yes", "on", "0", "false", "no", "off"})


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

    :raises RuleError: a variable means nothing, or is unknown.
    """
    _refuse_unknown(environ)
    rules = environ.get(RULES, "").strip()
    if rules != _ON and rules.lower() in _SWITCHES:
        raise RuleError(
            [
                f"{RULES}={rules!r} must be 'on' or a rule file; without faults it is not set. Write "
                f"'./{rules}' for a file of that name."
            ]
        )
    seed = environ.get(SEED, "").strip()
    if seed and not (seed.isascii() and seed.isdigit() and len(seed) < 20 and is_seed(int(seed))):
        raise RuleError(
            [
                f"{SEED}={shown(seed)} is no seed: it must be a whole number, 0 or more, "
                f"{MOST_COUNT} at most."
            ]
        )
    log, replay = _path(LOG, environ), _path(REPLAY, environ)
    return Settings(
        rules=_path(RULES, environ) if rules != _ON else None,
        on=bool(rules or log or replay),
        seed=int(seed) if seed else None,
        log=log,
        replay=replay,
    )


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    problems = []
    for name in sorted(environ):
        if not name.startswith(RULES) or name in VARIABLES or not environ[name].strip():
            continue
        # All begin alike, which makes none of them nearer than the others.
        endings = {known.removeprefix(RULES): known for known in VARIABLES}
        close = nearest(name.removeprefix(RULES), endings)
        hint = f"Did you mean {endings[close]}?" if close else f"There are: {', '.join(VARIABLES)}."
        problems.append(f"{name} is no variable of fault injection. {hint}")
    if problems:
        raise RuleError(problems)


def _path(name: str, environ: Mapping[str, str]) -> Path | None:
    text = environ.get(name, "").strip()
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError as error:
        raise RuleError([f"{name}={shown(text)} names no file: {error}"]) from error
