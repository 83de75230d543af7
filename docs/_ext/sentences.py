"""Writes the documents one sentence a line, so that a change of a sentence is a change of one line.

``python docs/_ext/sentences.py`` rewrites them, as ``make format`` does.
Headings, tables, code and lines that a backslash or two spaces end are left alone; a glossary is text.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.deflist import deflist_plugin

ROOT = Path(__file__).parents[2]

#: A full stop, with what closes a quotation, an emphasis or a parenthesis after it.
_END = re.compile(r"(?<![.])[.!?][)\"'*_]*[ ](?=\S)")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:e\.g|i\.e|cf|vs|etc|ca|no|approx|incl)\.$", re.IGNORECASE
)
#: Code and links, in which no sentence ends.
_WHOLE = re.compile(r"(`+).+?\1(?!`)|\[[^\]]*\](?:\([^)]*\))?|<[^>\s]+>")
#: What would begin a block of its own at the start of a line.
_BLOCK = re.compile(r"(?:\d+[.)]|[-+*:])\s|[#>|=~]|:::")
_MARKER = re.compile(r"\s*(?:(?:[-+*]|\d+[.)]|:)\s+|>\s?)*(?:\[[ xX]\]\s+)?")


def pages() -> list[Path]:
    """Return the project's documents."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.md.txt"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines()]


def formatted(text: str) -> str:
    """Return a document with each sentence of its paragraphs and items on a line of its own."""
    lines = text.split("\n")
    for first, end in reversed(list(_paragraphs(text))):
        paragraph = lines[first:end]
        if not any(line.endswith(("  ", "\\")) for line in paragraph):
            lines[first:end] = _one_sentence_a_line(paragraph)
    return "\n".join(lines)


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first line of each paragraph, and the line after its last."""
    parser = MarkdownIt("commonmark").enable("table").use(colon_fence_plugin).use(deflist_plugin)
    tokens = parser.parse(text)
    for token in tokens:
        if token.type == "paragraph_open" and token.map:
            yield token.map[0], token.map[1]
        elif token.type == "fence" and token.info == "{glossary}" and token.map:
            yield from _indented(token.content.split("\n"), token.map[0] + 1)


def _indented(lines: list[str], first: int) -> Iterator[tuple[int, int]]:
    """Yield the paragraphs of a glossary, which are indented below their terms."""
    for is_text, run in itertools.groupby(enumerate(lines, first), lambda line: line[1][:1] == " "):
        numbers = [number for number, _ in run]
        if is_text:
            yield numbers[0], numbers[-1] + 1


def _one_sentence_a_line(paragraph: list[str]) -> list[str]:
    marker = _MARKER.match(paragraph[0])
    assert marker is not None  # it matches an empty text
    start = marker.group()
    # a quotation's marker stands on each line, an item's only on its first
    indent = re.sub(r"[^>\s]", " ", start)
    rest = [line.removeprefix(indent.rstrip()).strip() for line in paragraph[1:]]
    whole = " ".join([paragraph[0][len(start) :].strip(), *rest])
    first, *others = _sentences(whole)
    return [start + first, *(indent + other for other in others)]


def _sentences(text: str) -> list[str]:
    inside = [match.span() for match in _WHOLE.finditer(text)]
    sentences, start = [], 0
    for match in _END.finditer(text):
        at, end = match.start(), match.end()
        if (
            any(first <= at < last for first, last in inside)
            or _ABBREVIATION.search(text[: at + 1])
            or _BLOCK.match(text[end:])
        ):
            continue
        sentences.append(text[start:end].strip())
        start = end
    return [*sentences, text[start:].strip()]


def main() -> None:
    """Rewrite the documents."""
    for page in pages():
        text = page.read_text()
        if (made := formatted(text)) != text:
            page.write_text(made)


if __name__ == "__main__":
    main()
