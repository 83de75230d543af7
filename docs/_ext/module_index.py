"""Makes docs/explanation/modules.md from the first lines of the modules, if run as a program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/modules.md"

_HEAD = """\
# Modules

What each module is for, by its first lines.
`python docs/_ext/module_index.py` writes this page.
[Architecture](architecture.md) shows how the modules work together.
"""


def page() -> str:
    """Return the page."""
    return _HEAD + "".join(
        f"\n## `{title}`\n\n| {kind} | is for |\n|---|---|\n"
        + "".join(f"| `{name}` | {text} |\n" for name, text in sorted(rows))
        for title, kind, rows in _sections()
        if rows
    )


def _sections() -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield for each package and folder of C++: its name, what it has, and each one's text."""
    for source in [ROOT / "src", *sorted(ROOT.glob("p*/*/src"))]:
        for package in sorted(path.parent for path in source.glob("*/__init__.py")):
            modules = [path for path in package.rglob("*.py") if path.read_text().strip()]
            rows = [(_name(path, package), _of_python(path)) for path in modules]
            yield package.name, "module", rows
    for folder in sorted({path.parent for path in ROOT.glob("p*/*/**/*.h") if _is_ours(path)}):
        rows = [(path.name, _of_cpp(path)) for path in folder.glob("*.h")]
        yield str(folder.relative_to(ROOT)), "file", rows


def _is_ours(path: Path) -> bool:
    folders = path.relative_to(ROOT).parts
    return not {"tests", "build", "scaffold"} & set(folders) and bool(
        {"csrc", "include"} & set(folders)
    )


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__"


def _of_python(path: Path) -> str:
    return _cell(ast.get_docstring(ast.parse(path.read_text())) or "")


def _of_cpp(path: Path) -> str:
    lines = path.read_text().splitlines()
    begin = next((n for n, line in enumerate(lines) if line.startswith("//")), len(lines))
    comment = []
    for line in lines[begin:]:
        if not line.startswith("//"):
            break
        comment.append(line.removeprefix("//").strip())
    return _cell("\n".join(comment))


def _cell(text: str) -> str:
    """Return the first sentence of a docstring or comment, as Markdown."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:]) (?=[A-Z])", paragraph)[0].removesuffix(".").removesuffix(":")
    code = re.sub(r":\w+:`[~.]?([^`]+)`", r"`\1`", sentence.replace("``", "`"))
    return (
        code.replace("|", r"\|").replace("<", "&lt;")
        if "`" not in code
        else code.replace("|", r"\|")
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
