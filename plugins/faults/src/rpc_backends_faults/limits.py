"""Limits on the values in rules and recordings; docs/reference/file-formats.md lists them."""

from __future__ import annotations

#: Seconds of a delay, a pause or a time window: a year. Clocks in C++ would overflow at 292 years.
MOST_SECONDS = 31_536_000.0
#: Bytes per second of a slow link.
LEAST_RATE, MOST_RATE = 1.0, 1e12
#: How many times `duplicate` sends a message, the original included.
MOST_COPIES = 1000
#: Counts and seeds: the largest signed 64-bit integer.
MOST_COUNT = 2**63 - 1
#: Characters of an error text, characters of a pattern, and patterns of one key.
MOST_TEXT = 10_000
MOST_PATTERN = 1000
MOST_PATTERNS = 1000
#: Bytes of a rule file, rules in it, and dotted parts of one of its keys.
MOST_BYTES = 2**20
MOST_RULES = 1000
MOST_PARTS = 16
#: Unknown keys that an error names; the search for the line of each takes time.
MOST_UNKNOWN = 20

_MOST_SHOWN = 100


def shown(value: object) -> str:
    """Return a short text of any value for an error message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits or too deep for repr()
        return f"an {type(value).__name__} too large to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def is_number(value: object, least: float, most: float) -> bool:
    """Return whether a value is a number from ``least`` to ``most``; NaN is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def is_count(value: object, least: int, most: int = MOST_COUNT) -> bool:
    """Return whether a value is an integer from ``least`` to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
