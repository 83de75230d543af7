"""Documents are written one sentence a line."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SENTENCES = runpy.run_path(str(ROOT / "docs/_ext/sentences.py"))


def test_documents_have_one_sentence_a_line() -> None:
    """If this fails, run `make format`."""
    pages = SENTENCES["pages"]()
    wrong = [page for page in pages if SENTENCES["formatted"](page.read_text()) != page.read_text()]

    assert len(pages) > 100
    assert [str(page.relative_to(ROOT)) for page in wrong] == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("It is\nlong. It ends.", ["It is long.", "It ends."]),
        ("- An item. It\n  goes on.\n- b", ["- An item.", "  It goes on.", "- b"]),
        ("1. A step. Then\n   another.", ["1. A step.", "   Then another."]),
        ("> Quoted. Twice.", ["> Quoted.", "> Twice."]),
        ("**Bold.** And *more.* End.", ["**Bold.**", "And *more.*", "End."]),
        ("Some (e.g. this) and 2 ... 4 of 1.5 s.", ["Some (e.g. this) and 2 ... 4 of 1.5 s."]),
        ("See `a. b` and [a. B](c. d). Done?", ["See `a. b` and [a. B](c. d).", "Done?"]),
        ("A break.  \nIt stays. So.", ["A break.  ", "It stays. So."]),
        ("| a. b |\n|---|\n| C. D |", ["| a. b |", "|---|", "| C. D |"]),
        ("```\nA. B\nC\n```", ["```", "A. B", "C", "```"]),
        (
            "```{glossary}\nterm\n  A thing. It\n  goes on.\n\nb\n  B.\n```\nA. B",
            [
                "```{glossary}",
                "term",
                "  A thing.",
                "  It goes on.",
                "",
                "b",
                "  B.",
                "```",
                "A.",
                "B",
            ],
        ),
        ("It is 3. 1. is no item.", ["It is 3. 1.", "is no item."]),
    ],
)
def test_each_sentence_gets_a_line(text: str, lines: list[str]) -> None:
    assert SENTENCES["formatted"](text) == "\n".join(lines)
