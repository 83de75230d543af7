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
    RULES: "the path of the rule file; 'on' to start without rules and add them at run time",
    SEED: "the seed; overrides the seed in the rule file",
    LOG: "the folder for event logs, one file per worker",
    REPLAY: "event logs of an earlier run (a folder or one log); injects the same faults again",
}
_ON = "on"
#: Values that look like switches. They are rejected, because they are hardly the name of a rule file.
_SWITCHES = frozenset({"1", "true", "yes", "on", "0", "false", "no", "off"})


@dataclass(frozen=True)
class Settings:
    """The settings in the environment.

    :ivar rules: the path of the rule file.
    :ivar on: whether agents start with fault injection, with or without a rule file.
    """

    rules: Path | None = None
    on: bool = False
    seed: int | None = None
    log: Path | None = None
    replay: Path | None = None


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from the environment.

    :raises RuleError: a variable is unknown, or its value is not valid.
    """
    _refuse_unknown(environ)
    rules = environ.get(RULES, "").strip()
    if rules != _ON and rules.lower() in _SWITCHES:
        raise RuleError(
            [
                f"{RULES}={rules!r} must be 'on' or the path of a rule file. Unset it to run without "
                f"faults, or write './{rules}' for a file with that name."
            ]
        )
    seed = environ.get(SEED, "").strip()
    if seed and not (seed.isascii() and seed.isdigit() and len(seed) < 20 and is_seed(int(seed))):
        raise RuleError(
            [
                f"{SEED}={shown(seed)} is not a valid seed: it must be a whole number from 0 to "
                f"{MOST_COUNT}."
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
        # All names start the same, so only their endings are compared.
        endings = {known.removeprefix(RULES): known for known in VARIABLES}
        close = nearest(name.removeprefix(RULES), endings)
        names = f"The variables are: {', '.join(VARIABLES)}."
        hint = f"Did you mean {endings[close]}?" if close else names
        problems.append(f"{name} is not a variable of fault injection. {hint}")
    if problems:
        raise RuleError(problems)


def _path(name: str, environ: Mapping[str, str]) -> Path | None:
    text = environ.get(name, "").strip()
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError as error:
        raise RuleError([f"{name}={shown(text)} is not a valid path: {error}"]) from error
