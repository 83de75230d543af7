"""`make lint` runs clang-tidy on what a change touches."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidy

FILES = {
    "plugins/ucx/csrc/link.cpp": '#include "link.h"',
    "plugins/ucx/csrc/link.h": '#include "timers.h"',
    "plugins/ucx/csrc/timers.h": "#include <agents/text.h>",
    "plugins/ucx/csrc/other.cpp": "",
    "packages/agents/src/agents/include/agents/text.h": "",
    "packages/agents/src/agents/include/agents/certificates.cpp": "",
}
LINK = "plugins/ucx/csrc/link.cpp"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a clean checkout of FILES in which clang-tidy has checked nothing."""
    for name, text in FILES.items():
        Path(tmp_path, name).parent.mkdir(parents=True, exist_ok=True)
        Path(tmp_path, name).write_text(text)
    commands = [
        {"file": str(tmp_path / name), "command": "c++"} for name in FILES if name.endswith(".cpp")
    ]
    for name, text in ((".clang-tidy", ""), ("commands.json", json.dumps(commands))):
        Path(tmp_path, name).write_text(text)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "files")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    monkeypatch.setattr(tidy, "COMMANDS", tmp_path / "commands.json")
    monkeypatch.setattr(tidy, "PASSED", tmp_path / "passed")
    tidy._files.cache_clear()
    yield tmp_path
    tidy._files.cache_clear()


def checked(checkout: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> set[str]:
    """Return the files that clang-tidy gets."""
    files = set[str]()

    def check(waiting: tuple[Path, str]) -> bool:
        files.add(str(waiting[0].relative_to(checkout)))
        return True

    monkeypatch.setattr(tidy, "_check", check)
    monkeypatch.setattr("sys.argv", ["tidy.py", *arguments])
    assert tidy.main() == 0
    return files


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (LINK, {LINK}),
        ("plugins/ucx/csrc/link.h", {LINK}),
        ("plugins/ucx/csrc/timers.h", {LINK}),
        ("packages/agents/src/agents/include/agents/text.h", {LINK}),
        ("README.md", set()),
    ],
    ids=lambda value: Path(value).name if isinstance(value, str) else "",
)
def test_a_change_checks_the_files_that_include_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, changed: str, expected: set[str]
) -> None:
    with Path(checkout, changed).open("a") as file:
        file.write("// changed")

    assert checked(checkout, monkeypatch, "--changed") == expected


def test_every_compiled_file_of_a_package_is_checked(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checked(checkout, monkeypatch) == {name for name in FILES if name.endswith(".cpp")}
