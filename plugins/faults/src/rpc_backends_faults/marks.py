"""Named marks: a program says what it is at, and rules can go by it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpc_backends_faults.engine import Engine

_lock = threading.Lock()
_on: Counter[str] = Counter()
_engines: list[Engine] = []


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
            for engine in _engines:
                engine.set_mark(name, bool(after))


def attach(engine: Engine) -> None:
    """Tell an engine of all marks, now and from now on."""
    with _lock:
        _engines.append(engine)
        for name in _on:
            engine.set_mark(name, True)


def detach(engine: Engine) -> None:
    """Tell it no more."""
    with _lock:
        if engine in _engines:
            _engines.remove(engine)
