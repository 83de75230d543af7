"""What is read from a store: anybody who reaches the store can write there, so nothing in it is believed.

A value has a bound before it is parsed, and what is parsed has a shape; an error names the key. What a
store hands out cannot be bounded: torch's stores return a value whole, however long it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from rpc_backends_core._errors import StoreError

T = TypeVar("T")

#: Bytes of one worker's share of anything, many times what any needs.
MOST_BYTES = 1 << 20
#: Ids are 16 bits, signed, in torch; ranks are no more.
MAX_ID = 32767
_LONGEST_NUMBER = 20
_SHOWN = 60


def unsuitable(key: str, found: str) -> StoreError:
    """Return the error that ``key`` holds what no worker has written."""
    return StoreError(
        f"the group's store holds under {key!r} {found}, which no worker of the group has written. "
        "Somebody else writes to the store: use a store that nobody else writes to, and start anew."
    )


def parsed(
    key: str, text: bytes, shape: Callable[[Any], T] = lambda value: value, most: int = MOST_BYTES
) -> T:
    """Return what ``shape`` makes of the JSON that a store has under ``key``.

    :param shape: returns what the value stands for, and raises where it has another form.
    :param most: bytes that are looked at.
    :raises StoreError: it is longer, no JSON, or of another form.
    """
    if len(text) > most:
        raise unsuitable(key, f"{len(text)} bytes (at most {most} are read)")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unsuitable(key, f"{shown(text)}, no JSON") from error
    return checked(key, value, shape)


def checked(key: str, value: Any, shape: Callable[[Any], T]) -> T:
    """Return what ``shape`` makes of a value that was parsed already; see :func:`parsed`."""
    try:
        return shape(value)
    except Exception as error:
        # Of whatever type: a value of another form fails where it happens to.
        why = f"{type(error).__name__}: {error}"[:200]
        raise unsuitable(key, f"{shown(value)} ({why})") from error


def number(key: str, text: bytes, most: int) -> int:
    """Return the number from 0 to ``most`` that a store has under ``key``.

    :raises StoreError: it is none.
    """
    if not (text.isdigit() and len(text) <= _LONGEST_NUMBER and int(text) <= most):
        raise unsuitable(key, f"{shown(text)}, no number from 0 to {most}")
    return int(text)


def added(store: Any, key: str, amount: int) -> int:
    """Add to the number under ``key``, and return what it is now.

    :raises StoreError: it is no number. (A TCP store ends the connection then.)
    """
    try:
        return int(store.add(key, amount))
    except (
        ValueError,
        IndexError,
    ) as error:  # of torch's stores, for text and for what is too large
        raise unsuitable(key, "what is no number") from error


def texts(key: str, values: list[Any]) -> list[str]:
    """Return what each worker has exchanged, which must be a text.

    :raises StoreError: it is none.
    """
    for rank, value in enumerate(values):
        if not isinstance(value, str):
            raise unsuitable(f"{key}/{rank}", f"{shown(value)}, no text")
    return values


def shown(value: object) -> str:
    """Return the beginning of a value, for an error."""
    text = repr(value[:_SHOWN] if isinstance(value, bytes | str) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def is_id(value: object) -> bool:
    """Return whether a value is a rank or an id."""
    return type(value) is int and 0 <= value <= MAX_ID
