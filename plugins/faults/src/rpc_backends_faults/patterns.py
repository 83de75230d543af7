"""Patterns of names: ``*`` is any text, ``?`` any letter; as the agent in C++ has them."""

from __future__ import annotations

import re


def matches(pattern: str, name: str) -> bool:
    """Tell whether ``name`` is what ``pattern`` describes."""
    first, *others = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    if not others:
        return re.fullmatch(first, name, re.DOTALL) is not None
    # Each part is taken where it first occurs and not looked for again: many stars cost no more time.
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.fullmatch(f"{first}{middle}.*{others[-1]}", name, re.DOTALL) is not None
