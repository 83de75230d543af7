"""Which rules the next agent is to start with: the environment's, the program's, its options'."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rpc_backends_faults import files, settings
from rpc_backends_faults.rules import Rule, RuleSet


@dataclass
class Wanted:
    """What an agent is to start with.

    :ivar file: the rule file, which is looked at again whenever it changes.
    :ivar of_file: its rules.
    :ivar given: rules of the program and of its options.
    """

    seed: int
    file: Path | None = None
    of_file: RuleSet = field(default_factory=RuleSet)
    given: tuple[Rule, ...] = ()
    log: Path | None = None
    replay: Path | None = None


def enable(rules: RuleSet | None = None) -> None:
    """Have the next agents of this process take rules, beginning with these."""
    _program.rules = rules or RuleSet()


def disable() -> None:
    """Take back :func:`enable`, for the next agents."""
    _program.rules = None


@contextlib.contextmanager
def carried_by(rules: RuleSet | None) -> Iterator[None]:
    """Have the agent that is made here start with the rules that its options carry."""
    before, _options.rules = _options.rules, rules
    try:
        yield
    finally:
        _options.rules = before


def now() -> Wanted | None:
    """Return what an agent that is started now is to start with; None if nothing stands before it.

    :raises RuleError: a variable or a rule file means nothing.
    """
    asked = settings.read()
    sources = [rules for rules in (_program.rules, _options.rules) if rules is not None]
    if not asked.on and not sources:
        return None
    of_file = files.read(asked.rules) if asked.rules is not None else RuleSet()
    seeds = [rules.seed for rules in (of_file, *sources) if rules.seed]
    return Wanted(
        seed=asked.seed if asked.seed is not None else next(iter(seeds), 0),
        file=asked.rules,
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
