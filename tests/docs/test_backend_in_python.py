"""The guide shows the files that the tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "write-a-backend-in-python.md"
SHOWN = re.findall(r"<!-- file: (\S+) -->\n\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_the_guide_shows_the_transport_and_the_backend() -> None:
    assert [name for name, _ in SHOWN] == [
        "packages/agents/src/rpc_backends_agents/transports/sockets.py",
        "examples/sockets_backend/sockets_backend.py",
    ]


@pytest.mark.parametrize(("name", "text"), SHOWN, ids=[name for name, _ in SHOWN])
def test_what_the_guide_shows_is_the_file(name: str, text: str) -> None:
    assert text == (ROOT / name).read_text()


def test_the_transport_is_about_a_hundred_lines_of_code() -> None:
    lines = (ROOT / SHOWN[0][0]).read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) < 110
