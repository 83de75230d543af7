"""Changes rules while the program runs, on this worker and on others."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.distributed import rpc

from rpc_backends_faults import files, settings
from rpc_backends_faults.checking import check_rule, default_name, is_seed
from rpc_backends_faults.engine import Engine
from rpc_backends_faults.rules import NotWrappedError, Rule, RuleError, RuleSet, shown

_numbers = itertools.count(1)
_current: list[Engine] = []


def set_current(engine: Engine) -> None:
    """Make ``engine`` the engine of this worker until its agent stops."""
    _current.append(engine)
    engine.at_close(lambda: _current.remove(engine))


def close_engines() -> None:
    """Stop the engines of agents that could not start; those of other agents have stopped."""
    for engine in [*_current]:
        engine.close()


def engine() -> Engine:
    """Return the engine of this worker.

    :raises NotWrappedError: the worker's agent runs without fault injection.
    """
    if _current:
        return _current[-1]
    raise NotWrappedError(
        "fault injection is not active in this process: it has no RPC agent, or its agent started "
        "without fault injection. Call rpc_backends_faults.enable() before init_rpc, or set "
        "RPC_BACKENDS_FAULTS=on."
    )


def enable(*rules: dict[str, Any], file: str | Path | None = None, seed: int = 0) -> None:
    """Enable fault injection for the next agents of this process; call this before ``init_rpc``.

    :param rules: the first rules, each a dict with the keys of a rule file; more can be added later.
    :param file: the path of a rule file.
    :param seed: overrides the seed of the file, unless it is 0.
    :raises RuleError: a rule or the seed is not valid.
    """
    if not is_seed(seed):
        raise RuleError([f"the seed is {shown(seed)}; it must be a whole number, 0 or more."])
    of_file = rule_set(file) if file is not None else RuleSet()
    made = rule_set(rules)
    settings.enable(RuleSet((*of_file.rules, *made.rules), seed or of_file.seed))


def rule_set(rules: str | Path | Iterable[Mapping[str, Any]]) -> RuleSet:
    """Return the rules in a file, or the rules given as dicts with the keys of a rule file.

    :raises RuleError: a rule is not valid.
    """
    if isinstance(rules, str | Path):
        return files.read(Path(rules))
    given = list(rules) if isinstance(rules, Iterable) else [rules]
    for rule in given:
        if not isinstance(rule, Mapping) or not all(isinstance(key, str) for key in rule):
            raise RuleError(
                [
                    f"each rule must be a dict with the keys of a rule file, but one is {shown(rule)}."
                ]
            )
    return RuleSet(tuple(make(**rule) for rule in given))


def make(**settings: Any) -> Rule:
    """Return the rule with these settings, which are the keys of a rule file.

    :raises RuleError: the rule is not valid.
    """
    return check_rule(settings, default_name=default_name(settings, f"live-{next(_numbers)}"))


@contextlib.contextmanager
def rule(**settings: Any) -> Iterator[str]:
    """Apply a rule on this worker while the block runs; yields the rule's name.

    :param settings: the keys of a rule file: ``with rule(what="drop", receiver="ps", first=3):``.
    :raises RuleError: the rule is not valid, or another rule has its name.
    :raises NotWrappedError: this worker's agent runs without fault injection.
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
    """Remove a rule that :func:`add` added; an unknown name is ignored."""
    engine().remove(name)


def counts() -> dict[str, int]:
    """Return how often each rule has fired on this worker, by rule name."""
    return engine().counts()


class Worker:
    """Changes the rules of another worker, by RPC.

    :param name: the worker's name.
    :param timeout: timeout of each call, in seconds.
    """

    def __init__(self, name: str, *, timeout: float = 60.0) -> None:
        self.name = name
        self.timeout = timeout

    def add(self, **settings: Any) -> str:
        """Add a rule on that worker and return its name; see :func:`rule`."""
        made: str = rpc.rpc_sync(self.name, add, kwargs=settings, timeout=self.timeout)
        return made

    def remove(self, name: str) -> None:
        """Remove a rule on that worker."""
        rpc.rpc_sync(self.name, remove, args=(name,), timeout=self.timeout)

    def counts(self) -> dict[str, int]:
        """Return how often each rule has fired on that worker, by rule name."""
        fired: dict[str, int] = rpc.rpc_sync(self.name, counts, timeout=self.timeout)
        return fired

    @contextlib.contextmanager
    def rule(self, **settings: Any) -> Iterator[str]:
        """Apply a rule on that worker while the block runs here; yields the rule's name."""
        name = self.add(**settings)
        try:
            yield name
        finally:
            self.remove(name)
