"""Rules while the program runs: this worker's, and another's by its name."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.distributed import rpc

from rpc_backends_faults import files, wanted
from rpc_backends_faults.checking import check_rule, default_name, is_seed
from rpc_backends_faults.engine import Engine
from rpc_backends_faults.errors import NotWrappedError, RuleError
from rpc_backends_faults.limits import shown
from rpc_backends_faults.rules import Rule, RuleSet

_numbers = itertools.count(1)
_current: list[Engine] = []


def set_current(engine: Engine) -> None:
    """Make an agent's rules those of this worker, until the agent has stopped."""
    _current.append(engine)
    engine.at_close(lambda: _current.remove(engine))


def engine() -> Engine:
    """Return the rules of this worker.

    :raises NotWrappedError: nothing stands before its agent.
    """
    if _current:
        return _current[-1]
    raise NotWrappedError(
        "no fault rule can act here: this process has no RPC agent, or one that nothing stands before. "
        "Call rpc_backends_faults.enable() before init_rpc, or set RPC_BACKENDS_FAULTS=on."
    )


def enable(*rules: dict[str, Any], file: str | Path | None = None, seed: int = 0) -> None:
    """Have the next agent of this process take rules, beginning with these; call it before ``init_rpc``.

    :param rules: each with the keys of a rule file.
    :param file: a rule file.
    :param seed: in place of the file's.
    :raises RuleError: a rule means nothing.
    """
    if not is_seed(seed):
        raise RuleError([f"the seed is {shown(seed)}; it must be a whole number, 0 or more."])
    of_file = rule_set(file) if file is not None else RuleSet()
    made = rule_set(rules)
    wanted.enable(RuleSet((*of_file.rules, *made.rules), seed or of_file.seed))


def rule_set(rules: str | Path | Iterable[Mapping[str, Any]]) -> RuleSet:
    """Return the rules in a file, or those that are given with the keys of one.

    :raises RuleError: one means nothing.
    """
    if isinstance(rules, str | Path):
        return files.read(Path(rules))
    given = list(rules) if isinstance(rules, Iterable) else [rules]
    for rule in given:
        if not isinstance(rule, Mapping) or not all(isinstance(key, str) for key in rule):
            raise RuleError(
                [f"each rule must be a dict with the keys of a rule file; here is {shown(rule)}."]
            )
    return RuleSet(tuple(make(**rule) for rule in given))


def make(**settings: Any) -> Rule:
    """Return a rule of the keys of a rule file.

    :raises RuleError: it means nothing.
    """
    return check_rule(settings, default_name=default_name(settings, f"live-{next(_numbers)}"))


@contextlib.contextmanager
def rule(**settings: Any) -> Iterator[str]:
    """Have a rule act in this worker for as long as the block runs; gives the rule's name.

    :param settings: the keys of a rule file: ``with rule(what="drop", receiver="ps", first=3):``.
    :raises RuleError: the rule means nothing, or its name is another's.
    :raises NotWrappedError: nothing stands before this worker's agent.
    """
    made = make(**settings)
    rules = engine()
    rules.add(made)
    try:
        yield made.name
    finally:
        rules.remove(made.name)


def add(**settings: Any) -> str:
    """Add a rule to this worker, and return its name; see :func:`rule`."""
    made = make(**settings)
    engine().add(made)
    return made.name


def remove(name: str) -> None:
    """Take away a rule that was added; one that is not there does no harm."""
    engine().remove(name)


def counts() -> dict[str, int]:
    """Return how often each rule of this worker has fired."""
    return engine().counts()


class Worker:
    """Another worker's rules.

    :param name: the worker's.
    :param timeout: seconds that it has to answer.
    """

    def __init__(self, name: str, *, timeout: float = 60.0) -> None:
        self.name = name
        self.timeout = timeout

    def add(self, **settings: Any) -> str:
        """Add a rule there; see :func:`rule`."""
        made: str = rpc.rpc_sync(self.name, add, kwargs=settings, timeout=self.timeout)
        return made

    def remove(self, name: str) -> None:
        """Take a rule away there."""
        rpc.rpc_sync(self.name, remove, args=(name,), timeout=self.timeout)

    def counts(self) -> dict[str, int]:
        """Return how often each rule has fired there."""
        found: dict[str, int] = rpc.rpc_sync(self.name, counts, timeout=self.timeout)
        return found

    @contextlib.contextmanager
    def rule(self, **settings: Any) -> Iterator[str]:
        """Have a rule act there for as long as the block runs here."""
        name = self.add(**settings)
        try:
            yield name
        finally:
            self.remove(name)
