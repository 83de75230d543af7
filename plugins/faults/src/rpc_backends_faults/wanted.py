"""Collects the rules for the next agent, from the environment, the program and the agent's options."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rpc_backends_faults import files, regular_files, settings
from rpc_backends_faults.rules import Rule, RuleSet


@dataclass
class Wanted:
    """The rules and settings for a new agent.

    :ivar seeds: the given seeds, in order of precedence; None stands for the seed of the rule file.
    :ivar file: the rule file, which is read again whenever it changes.
    :ivar seen: the state of the file before it was read.
    :ivar of_file: the rules of the file.
    :ivar given: the rules from the program and from the agent's options.
    """

    seeds: tuple[int | None, ...] = (None,)
    file: Path | None = None
    seen: tuple[int, ...] | None = None
    of_file: RuleSet = field(default_factory=RuleSet)
    given: tuple[Rule, ...] = ()
    log: Path | None = None
    replay: Path | None = None

    def seed_with(self, of_file: int) -> int | None:
        """Return the seed to use; None if none was given.

        :param of_file: the seed of the rule file; 0 if it has none.
        """
        for seed in self.seeds:
            if seed is not None:
                return seed
            if of_file:
                return of_file
        return None


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
    asked = settings.read()
    sources = [rules for rules in (_program.rules, _options.rules) if rules is not None]
    if not asked.on and not sources:
        return None
    seen = None
    if asked.rules is not None:
        with contextlib.suppress(OSError):  # files.read() reports the error
            seen = regular_files.state(asked.rules)
    of_file = files.read(asked.rules) if asked.rules is not None else RuleSet()
    of_variable = () if asked.seed is None else (asked.seed,)
    return Wanted(
        seeds=(*of_variable, None, *(rules.seed for rules in sources if rules.seed)),
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
