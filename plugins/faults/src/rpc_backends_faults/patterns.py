"""Patterns of names: ``*`` is any text, ``?`` any letter; as the agent in C++ has them."""

from __future__ import annotations

import re


def matches(pattern: str, name: str) -> bool:
    """Tell whether ``name`` is what ``pattern`` describes."""
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name, re.DOTALL) is not None
