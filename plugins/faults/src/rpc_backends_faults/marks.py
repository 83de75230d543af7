"""Named marks: a program says what it is at, and rules can go by it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

_lock = threading.Lock()
_on: Counter[str] = Counter()
_listeners: list[Listener] = []


class Listener(Protocol):
    """Who wants to know of marks: the rules of a running agent."""

    def set_mark(self, name: str, on: bool) -> None:
        """Hear that the program has come into a mark, or out of one."""


@contextlib.contextmanager
def mark(name: str) -> Iterator[None]:
    """Be in the mark ``name``: rules with a fitting ``mark`` act, in this process, for as long.

    Costs next to nothing where there are no rules, and needs no agent. Marks may lie within each other,
    and several threads may be in one: it is on while anybody is.
    """
    _change(name, 1)
    try:
        yield
    finally:
        _change(name, -1)


def _change(name: str, by: int) -> None:
    with _lock:
        before, _on[name] = _on[name], _on[name] + by
        after = _on[name]
        if not after:
            del _on[name]
        if bool(before) != bool(after):
            for listener in _listeners:
                listener.set_mark(name, bool(after))


def attach(listener: Listener) -> None:
    """Tell somebody of all marks, now and from now on."""
    with _lock:
        _listeners.append(listener)
        for name in _on:
            listener.set_mark(name, True)


def detach(listener: Listener) -> None:
    """Tell it no more."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
