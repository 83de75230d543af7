"""Backends that each break the contract in one way, for tests of the suite that must find it.

Each is TENSORPIPE with something put in between: where torch sends a call, packs a message, runs a
function, or asks the agent. They are installed as a package of their own (`conftest.py`), so that the
suite finds them as it finds any backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rpc_backends_core import Backend


@dataclass(frozen=True)
class Broken:
    """A backend that breaks one thing.

    :ivar backend: it.
    :ivar chapter: the chapter of the suite that must fail, and the only one unless it spreads.
    :ivar tells: a requirement that must fail (its id begins like this), and words that its call, what was
        expected or what came must have: they tell the author what is wrong.
    :ivar spreads: whether other chapters fail, too.
    """

    backend: Backend
    chapter: str
    tells: tuple[str, str]
    spreads: bool = False

    @property
    def chosen(self) -> tuple[str, ...]:
        """What of the suite tells that it is broken, and that the suite is sound: chapters, or a test."""
        if self.spreads:
            chapter, _, name = self.tells[0].partition(".")
            return (f"{chapter}::test_{name}",)
        return (self.chapter, self.sound)

    @property
    def sound(self) -> str:
        """A chapter that must pass: a small one that starts groups and makes calls."""
        return "metrics" if self.chapter != "metrics" else "options"


def all_broken() -> dict[str, Broken]:
    """Return every broken backend by name."""
    from rpc_broken_backends import agents, calls, data, life, others, over_transports

    found: dict[str, Broken] = {}
    for module in (agents, calls, data, life, others, over_transports):
        found.update(module.BROKEN)
    return found


def __getattr__(name: str) -> Any:
    """Return the backend of that name, for the entry points."""
    if not name.isupper():
        raise AttributeError(name)
    return all_broken()[name].backend
