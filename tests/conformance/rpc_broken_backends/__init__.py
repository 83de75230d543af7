"""Backends that each break the contract in one way, to check that the suite finds it.

Each is TENSORPIPE with code inserted at one place: where torch sends a call, packs a message, runs a
function, or calls the agent. They are installed as a package of their own (`conftest.py`), so that the
suite finds them as it finds any backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rpc_backends_core import Backend


@dataclass(frozen=True)
class Broken:
    """A backend that breaks the contract in one way.

    :ivar backend: the backend.
    :ivar chapter: the chapter of the suite that must fail; no other may fail unless ``spreads`` is set.
    :ivar tells: the beginning of the id of a requirement that must fail, and words that tell the author
        what is wrong. The reported call, the expected or the actual result must have these words.
    :ivar spreads: whether other chapters fail, too.
    """

    backend: Backend
    chapter: str
    tells: tuple[str, str]
    spreads: bool = False

    @property
    def chosen(self) -> tuple[str, ...]:
        """The part of the suite to run: a chapter that must fail and one that must pass, or one test."""
        if self.spreads:
            chapter, _, name = self.tells[0].partition(".")
            return (f"{chapter}::test_{name}",)
        return (self.chapter, self.sound)

    @property
    def sound(self) -> str:
        """A small chapter that must pass; it starts groups and makes calls."""
        return "metrics" if self.chapter != "metrics" else "options"


def all_broken() -> dict[str, Broken]:
    """Return every broken backend by name."""
    from rpc_broken_backends import agents, calls, data, life, others, over_transports

    broken: dict[str, Broken] = {}
    for module in (agents, calls, data, life, others, over_transports):
        broken.update(module.BROKEN)
    return broken


def all_backends() -> dict[str, Backend]:
    """Return every backend by name: the broken ones, and correct ones that declare no transport."""
    from rpc_broken_backends.over_transports import SOUND

    return {**{name: broken.backend for name, broken in all_broken().items()}, **SOUND}


def __getattr__(name: str) -> Any:
    """Return the backend of that name, for the entry points."""
    if not name.isupper():
        raise AttributeError(name)
    return all_backends()[name]
