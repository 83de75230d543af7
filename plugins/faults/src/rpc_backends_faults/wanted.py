"""Which rules the next agent is to start with: the environment's, the program's, its options'."""

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
    """What an agent is to start with.

    :ivar seeds: that were given, those first that go before the others, with the rule file's as None.
    :ivar file: the rule file, which is looked at again whenever it changes.
    :ivar seen: the file's state from before it was read.
    :ivar of_file: its rules.
    :ivar given: rules of the program and of its options.
    """

    seeds: tuple[int | None, ...] = (None,)
    file: Path | None = None
    seen: tuple[int, ...] | None = None
    of_file: RuleSet = field(default_factory=RuleSet)
    given: tuple[Rule, ...] = ()
    log: Path | None = None
    replay: Path | None = None

    def seed_with(self, of_file: int) -> int | None:
        """Return the seed if the rule file's is ``of_file``; 0 there is none. None if none was given."""
        for seed in self.seeds:
            if seed is not None:
                return seed
            if of_file:
                return of_file
        return None


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
    seen = None
    if asked.rules is not None:
        with contextlib.suppress(OSError):  # which reading it reports
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
