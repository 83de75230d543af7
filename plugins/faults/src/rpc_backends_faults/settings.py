"""What the next agent starts with: variables, and rules of the program and of the agent's options."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rpc_backends_agents.engine.files import state
from rpc_backends_core.spi import nearest
from rpc_backends_faults import files
from rpc_backends_faults.checking import is_seed
from rpc_backends_faults.rules import MOST_COUNT, Rule, RuleError, RuleSet, shown

RULES = "RPC_BACKENDS_FAULTS"
SEED = "RPC_BACKENDS_FAULTS_SEED"
LOG = "RPC_BACKENDS_FAULTS_LOG"
REPLAY = "RPC_BACKENDS_FAULTS_REPLAY"
RUN = "RPC_BACKENDS_FAULTS_RUN"
VARIABLES = {
    RULES: "the path of the rule file; 'on' to start without rules and add them at run time",
    SEED: "the seed; overrides the seed in the rule file",
    LOG: "the folder for event logs, one file per worker",
    REPLAY: "event logs of an earlier run (a folder or one log); injects the same faults again",
    RUN: "the folder for files that the program leaves for invariants; `explore` sets it",
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


# --- the rules of the next agent


@dataclass(frozen=True)
class Seeds:
    """The given seeds. That of the variable is before that of the rule file, the program's is last."""

    variable: int | None = None
    program: int | None = None

    def chosen(self, of_file: int) -> int | None:
        """Return the seed to use; None if none was given.

        :param of_file: the seed of the rule file; 0 if it has none.
        """
        if self.variable is not None:
            return self.variable
        return of_file or self.program


@dataclass
class Wanted:
    """The rules and settings for a new agent.

    :ivar seeds: the given seeds.
    :ivar file: the rule file, which is read again whenever it changes.
    :ivar seen: the state of the file before it was read.
    :ivar of_file: the rules of the file.
    :ivar given: the rules from the program and from the agent's options.
    """

    seeds: Seeds = Seeds()
    file: Path | None = None
    seen: tuple[int, ...] | None = None
    of_file: RuleSet = field(default_factory=RuleSet)
    given: tuple[Rule, ...] = ()
    log: Path | None = None
    replay: Path | None = None


def enable(rules: RuleSet | None = None) -> None:
    """Enable fault injection for the next agents of this process, with these rules to start with."""
    _program.rules = rules or RuleSet()


def disable() -> None:
    """Undo :func:`enable` for the next agents; running agents keep their rules."""
    _program.rules = None


@contextlib.contextmanager
def carried_by(rules: RuleSet | None) -> Iterator[None]:
    """Give ``rules``, which are from an agent's options, to the agent that is made inside the block."""
    before, _options.rules = _options.rules, rules
    try:
        yield
    finally:
        _options.rules = before


def now() -> Wanted | None:
    """Return the rules for an agent that starts now; None if fault injection is off.

    :raises RuleError: an environment variable or the rule file is not valid.
    """
    asked = read()
    sources = [rules for rules in (_program.rules, _options.rules) if rules is not None]
    if not asked.on and not sources:
        return None
    seen = None
    if asked.rules is not None:
        with contextlib.suppress(OSError):  # files.read() reports the error
            seen = state(asked.rules)
    of_file = files.read(asked.rules) if asked.rules is not None else RuleSet()
    return Wanted(
        seeds=Seeds(asked.seed, next((rules.seed for rules in sources if rules.seed), None)),
        file=asked.rules,
        seen=seen,
        of_file=of_file,
        given=tuple(rule for rules in sources for rule in rules.rules),
        log=asked.log,
        replay=asked.replay,
    )


class _Program:
    def __init__(self) -> None:
        self.rules: RuleSet | None = None


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.rules: RuleSet | None = None


_program = _Program()
_options = _PerThread()
