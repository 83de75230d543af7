"""Named marks: a program marks what it is doing, and rules can apply only inside a mark."""

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
    """Receives changes of marks: the rules of a running agent."""

    def set_mark(self, name: str, on: bool) -> None:
        """Handle that the program has entered a mark (``on``) or left it."""


@contextlib.contextmanager
def mark(name: str) -> Iterator[None]:
    """Set the mark ``name`` while the block runs: rules with a matching ``mark`` apply in this process.

    Without rules this costs almost nothing, and it needs no agent. Marks may be nested. Several threads
    may use the same mark: it is set while at least one thread is inside it.
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
    """Tell a listener about the marks that are set now and about all later changes."""
    with _lock:
        _listeners.append(listener)
        for name in _on:
            listener.set_mark(name, True)


def detach(listener: Listener) -> None:
    """Stop telling a listener."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
