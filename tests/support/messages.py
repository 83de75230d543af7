"""The texts in the code of the packages, to compare with those that pages quote."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "src", *ROOT.glob("packages/*/src"), *ROOT.glob("plugins/*/src")]


def text_of(node: ast.AST) -> str:
    """Return the text of a string literal, with … for each value that is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    assert isinstance(node, ast.JoinedStr)
    return "".join(
        text_of(value) if isinstance(value, ast.Constant) else "…" for value in node.values
    )


@cache
def texts() -> str:
    """Return every string literal in the Python and C++ code of the packages, one on each line."""
    parts = []
    for file in (file for source in SOURCES for file in source.rglob("*.py")):
        nodes = ast.walk(ast.parse(file.read_text()))
        parts += [text_of(node) for node in nodes if isinstance(node, ast.JoinedStr | ast.Constant)]
    compiled = (*ROOT.glob("p*/*/csrc/**/*.cpp"), *ROOT.glob("packages/*/src/**/*.cpp"))
    for file in compiled:
        joined = re.sub(r'"\s*\n\s*"', "", file.read_text())
        # Literals with an expression between them are one message.
        parts.append(
            re.sub(r'"(?:\s*\+[^;"]+\+\s*|\s*,[^;"]+,\s*)"', "…", joined).replace("\n", " ")
        )
    return "\n".join(part.replace("\n", " ") for part in parts)


def missing_from_the_code(quote: str) -> list[str]:
    """Return the pieces of a quoted message, between its …, that no literal contains."""
    pieces = [piece.strip() for piece in quote.split("…")]
    return [piece for piece in pieces if piece not in texts()]
