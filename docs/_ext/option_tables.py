"""Writes the tables of options, from their declarations, between the markers of the pages.

Run it after a change of an option: ``python docs/_ext/option_tables.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rpc_backend_ucx import UCXRpcBackendOptions
from rpc_backend_zeromq import ZeroMQRpcBackendOptions
from rpc_backends_agents.engine.declarations import DeclaredOptions, Option

ROOT = Path(__file__).parents[2]
ENGINES: tuple[type[DeclaredOptions], ...] = (ZeroMQRpcBackendOptions, UCXRpcBackendOptions)
_PREFIX = "RPC_BACKENDS_"


def readme_table(options_type: type[DeclaredOptions]) -> str:
    """Return the table of an engine's README: each option with its variable."""
    prefix = f"{_PREFIX}{options_type.BACKEND}_"
    rows = [
        [
            f"`{option.name}`",
            f"`{option.variable.removeprefix(prefix)}`" if option.variable else "",
            _text(option.kind.values),
            _text(option.default_in_words),
            _text(option.meaning),
        ]
        for option in _ordered(options_type)
    ]
    return _table(["option", f"variable `{prefix}...`", "value", "default", "meaning"], rows)


def reference_table(options_type: type[DeclaredOptions]) -> str:
    """Return the two tables of the reference page: options with a variable, and the others."""
    variables, others = [], []
    for option in _ordered(options_type):
        cells = [
            _text(option.kind.values),
            _text(option.default_in_words),
            f"{_text(option.meaning)}.",
        ]
        if option.variable:
            variables.append([f"`{option.variable}`", *cells])
        else:
            others.append([f"`{option.name}`", *cells])
    return "\n".join(
        [
            _table(["variable", "value", "default", "what it sets"], variables),
            "",
            "These options have no variable:",
            "",
            _table(["option", "value", "default", "what it sets"], others),
        ]
    )


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page that has a generated table, and the text that it should have."""
    reference = ROOT / "docs/reference/environment.md"
    text = reference.read_text()
    for engine in ENGINES:
        text = _replaced(text, engine, reference_table)
        readme = ROOT / "plugins" / engine.BACKEND.lower() / "README.md"
        yield readme, _replaced(readme.read_text(), engine, readme_table)
    yield reference, text


def _replaced(
    text: str, engine: type[DeclaredOptions], table: Callable[[type[DeclaredOptions]], str]
) -> str:
    begin, end = f"<!-- options of {engine.BACKEND}: generated -->", "<!-- end of options -->"
    before, _, rest = text.partition(begin)
    _, end_mark, after = rest.partition(end)
    if not end_mark:
        raise SystemExit(f"error: a page lacks the markers {begin!r} and {end!r}.")
    return f"{before}{begin}\n\n{table(engine)}\n\n{end}{after}"


def _ordered(options_type: type[DeclaredOptions]) -> list[Option[Any, Any]]:
    """Return the options: those with a variable first, and then the engine's own."""
    shared = set(options_type.__base__.DECLARED)  # type: ignore[union-attr]
    return sorted(
        options_type.DECLARED.values(),
        key=lambda option: (
            option.variable is None,
            option.variable is None and option.name in shared,
        ),
    )


def _text(text: str) -> str:
    return re.sub("``+", "`", text).replace("|", r"\|")


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(
        f"| {' | '.join(cells)} |" if cells[0] != "---" else f"|{'|'.join(cells)}|"
        for cells in lines
    )


if __name__ == "__main__":
    for page, wanted in pages():
        page.write_text(wanted)
