"""Bounds of what rules and recordings may ask for; docs/how-to/inject-faults.md states them."""

from __future__ import annotations

#: Seconds of a delay, a pause, a window: a year. Clocks in C++ would overflow at 292 years.
MOST_SECONDS = 31_536_000.0
#: Bytes a second of a slow link.
LEAST_RATE, MOST_RATE = 1.0, 1e12
#: How often `duplicate` sends a message in all.
MOST_COPIES = 1000
#: Counts and seeds: what 64 bits hold.
MOST_COUNT = 2**63 - 1
#: Letters of an error's text, and of a pattern; patterns of a key.
MOST_TEXT = 10_000
MOST_PATTERN = 1000
MOST_PATTERNS = 1000
#: Bytes and rules of a rule file, and parts of a key in it.
MOST_BYTES = 2**20
MOST_RULES = 1000
MOST_PARTS = 16
#: Unknown keys of one table that an error names: each is looked for in the file.
MOST_UNKNOWN = 20

_MOST_SHOWN = 100


def shown(value: object) -> str:
    """Return a value as an error shows it, however large it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits, or deeper, than Python writes
        return f"an {type(value).__name__} too large to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def is_number(value: object, least: float, most: float) -> bool:
    """Tell whether a value is a number within bounds. Not a number is within none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def is_count(value: object, least: int, most: int = MOST_COUNT) -> bool:
    """Tell whether a value is a whole number within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
