"""Validating what is read from a store: every process that can reach the store can write to it.

The size of a value is checked before it is parsed, and its form afterwards; errors name the key. The
read itself has no limit: torch's stores return a whole value, however long.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from rpc_backends_core._errors import StoreError

T = TypeVar("T")

#: The most bytes that one worker may contribute to a value: many times what a worker needs.
MOST_BYTES = 1 << 20
#: In torch, ids and ranks are signed 16-bit numbers.
MAX_ID = 32767
_LONGEST_NUMBER = 20
_SHOWN = 60


def unsuitable(key: str, description: str) -> StoreError:
    """Return the error for a value under ``key`` that no worker can have written."""
    return StoreError(
        f"the group's store holds {description} under {key!r}, which no worker of the group wrote. "
        "Something else writes to this store: start again with a store that only these workers "
        "use."
    )


def parsed(
    key: str, text: bytes, shape: Callable[[Any], T] = lambda value: value, most: int = MOST_BYTES
) -> T:
    """Parse the JSON that a store has under ``key`` and validate it with ``shape``.

    :param shape: converts the parsed value, and raises if its form is wrong.
    :param most: the largest accepted size in bytes.
    :raises StoreError: the value is too long, not JSON, or has the wrong form.
    """
    if len(text) > most:
        raise unsuitable(key, f"{len(text)} bytes (at most {most} are read)")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unsuitable(key, f"{shown(text)}, not JSON") from error
    return checked(key, value, shape)


def checked(key: str, value: Any, shape: Callable[[Any], T]) -> T:
    """Validate a value that is already parsed with ``shape``; see :func:`parsed`."""
    try:
        return shape(value)
    except Exception as error:
        # Any exception type: a malformed value can fail anywhere in `shape`.
        why = f"{type(error).__name__}: {error}"[:200]
        raise unsuitable(key, f"{shown(value)} ({why})") from error


def number(key: str, text: bytes, most: int) -> int:
    """Parse the number from 0 to ``most`` that a store has under ``key``.

    :raises StoreError: the value is not such a number.
    """
    if not (text.isdigit() and len(text) <= _LONGEST_NUMBER and int(text) <= most):
        raise unsuitable(key, f"{shown(text)}, not a number from 0 to {most}")
    return int(text)


def added(store: Any, key: str, amount: int) -> int:
    """Add to the number under ``key`` and return the sum.

    :raises StoreError: the value is not a number. (A TCP store then closes the connection.)
    """
    try:
        return int(store.add(key, amount))
    except (
        ValueError,
        IndexError,
    ) as error:  # torch's stores raise these for text and for large numbers
        raise unsuitable(key, "a value that is not a number") from error


def texts(key: str, values: list[Any]) -> list[str]:
    """Return exchanged values after checking that each is a string.

    :raises StoreError: a value is not a string.
    """
    for rank, value in enumerate(values):
        if not isinstance(value, str):
            raise unsuitable(f"{key}/{rank}", f"{shown(value)}, not a string")
    return values


def shown(value: object) -> str:
    """Return the beginning of a value, for error messages."""
    text = repr(value[:_SHOWN] if isinstance(value, bytes | str) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def is_id(value: object) -> bool:
    """Return whether a value is a valid rank or id."""
    return type(value) is int and 0 <= value <= MAX_ID
