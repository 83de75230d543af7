"""Name patterns: ``*`` matches any text, ``?`` any one character; the C++ interceptor does the same."""

from __future__ import annotations

import re


def matches(pattern: str, name: str) -> bool:
    """Return whether ``pattern`` matches the whole ``name``."""
    first, *others = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    if not others:
        return re.fullmatch(first, name, re.DOTALL) is not None
    # Atomic groups take the first occurrence of each part and never backtrack, so many stars stay fast.
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.fullmatch(f"{first}{middle}.*{others[-1]}", name, re.DOTALL) is not None
