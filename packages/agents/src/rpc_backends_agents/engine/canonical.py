"""Canonical JSON for the values that workers publish, and the checks for parsing it strictly."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

#: Bytes of the longest JSON that is parsed: many times what any worker writes.
LIMIT = 16384
#: In torch, a worker id is a signed 16-bit integer.
MAX_ID = 32767
MAX_NAME = 1024
MAX_GROUP = 256
SESSION_DIGITS = 32
_SESSION = re.compile(f"[0-9a-f]{{{SESSION_DIGITS}}}")


class MalformedError(ValueError):
    """The text is not the JSON of a published value."""


def dump(value: Any) -> str:
    """Return the canonical JSON of a dataclass: sorted keys, no white space, ASCII."""
    return json.dumps(dataclasses.asdict(value), sort_keys=True, separators=(",", ":"))


def parse(text: str) -> Any:
    """Parse JSON of limited size.

    :raises MalformedError: ``text`` is not JSON, or too long.
    """
    if len(text) > LIMIT:
        raise MalformedError(f"it has more than {LIMIT} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"it is not JSON: {error}") from error


def check_form(value: Any, text: str) -> None:
    """Check that ``text`` is the canonical JSON of the dataclass ``value``.

    :raises MalformedError: it is not.
    """
    if dump(value) != text:
        raise MalformedError("it is not in canonical form")


def fields(data: Any, what: str, of: type) -> dict[str, Any]:
    """Return ``data`` if it has exactly the fields of the dataclass ``of``.

    :raises MalformedError: it has others.
    """
    if not isinstance(data, dict) or data.keys() != {
        field.name for field in dataclasses.fields(of)
    }:
        raise MalformedError(f"{what} does not have the fields of a {of.__name__}")
    return data


def text(fields: dict[str, Any], name: str, limit: int) -> str:
    """Return a field that is a string of at most ``limit`` characters.

    :raises MalformedError: it is not.
    """
    value = fields[name]
    if not isinstance(value, str) or len(value) > limit:
        raise MalformedError(f"its {name!r} is not a string of at most {limit} characters")
    return value


def number(fields: dict[str, Any], name: str, limit: int) -> int:
    """Return a field that is an integer from 0 to ``limit``.

    :raises MalformedError: it is not.
    """
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise MalformedError(f"its {name!r} is not an integer from 0 to {limit}")
    return value


def session(fields: dict[str, Any]) -> str:
    """Return the field ``session``: 32 hexadecimal digits.

    :raises MalformedError: it has another form.
    """
    value = text(fields, "session", SESSION_DIGITS)
    if not _SESSION.fullmatch(value):
        raise MalformedError(f"its 'session' is not {SESSION_DIGITS} hexadecimal digits")
    return value
