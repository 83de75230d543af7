"""The guide shows the files that are built and run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "write-an-interceptor.md"
SHOWN = re.findall(r"<!-- file: (\S+) -->\n\n```\w+\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_the_guide_shows_the_whole_examples() -> None:
    files = {
        str(path.relative_to(ROOT))
        for folder in ("interceptor", "call_policy")
        for ending in ("cpp", "py", "toml", "txt")
        for path in (ROOT / "examples" / folder).rglob(f"*.{ending}")
        if "build" not in path.parts
    }
    assert {name for name, _ in SHOWN} == files


@pytest.mark.parametrize(("name", "text"), SHOWN, ids=[name for name, _ in SHOWN])
def test_code_in_the_guide_is_the_file(name: str, text: str) -> None:
    assert text == (ROOT / name).read_text()


def test_the_interceptor_has_at_most_forty_lines() -> None:
    lines = (ROOT / "examples/interceptor/csrc/allowlist.cpp").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 40


def test_the_interceptor_in_python_has_at_most_ten_lines() -> None:
    lines = (ROOT / "examples/call_policy/rpc_call_policy.py").read_text().splitlines()
    code = [
        line for line in lines if line.strip() and not line.startswith(('"""', "import", "from"))
    ]
    assert len(code) <= 10
