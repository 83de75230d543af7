"""A stage of ``make test`` runs again if something that it depends on has changed, and only then."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import stages

ROOT = Path(__file__).parents[2]
FILES = ("src", ":!*/tests/*")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a repository with one file in it."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    write(tmp_path / "src/a.py", "1")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("changed", ["src/a.py", "src/new.py", "plugins/x/src/x/_native.so"])
def test_a_changed_file_changes_the_fingerprint(checkout: Path, changed: str) -> None:
    before = stages.fingerprint(FILES, [], checkout)
    write(checkout / changed, "2")

    assert stages.fingerprint(FILES, [], checkout) != before


@pytest.mark.parametrize("changed", ["docs/a.md", "src/x/tests/test_a.py"])
def test_other_files_do_not_change_the_fingerprint(checkout: Path, changed: str) -> None:
    before = stages.fingerprint(FILES, [], checkout)
    write(checkout / changed, "2")

    assert stages.fingerprint(FILES, [], checkout) == before


def test_a_removed_file_changes_the_fingerprint(checkout: Path) -> None:
    before = stages.fingerprint(FILES, [], checkout)
    (checkout / "src/a.py").unlink()

    assert stages.fingerprint(FILES, [], checkout) != before


def test_another_command_or_variable_changes_the_fingerprint(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stages.fingerprint(FILES, ["pytest"], checkout)

    assert stages.fingerprint(FILES, ["pytest", "-x"], checkout) != before
    monkeypatch.setenv("RPC_BACKENDS_DENY", "X")
    assert stages.fingerprint(FILES, ["pytest"], checkout) != before


def test_without_git_every_stage_runs(tmp_path: Path) -> None:
    assert stages.fingerprint(FILES, [], tmp_path) is None


def test_a_stage_without_a_record_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "PASSED", tmp_path)
    assert not stages.has_passed("core", "abc")

    (tmp_path / "core").write_text("abc")

    assert stages.has_passed("core", "abc")
    assert not stages.has_passed("core", "abd")


def test_packages_and_plugins_use_no_tests_of_other_folders() -> None:
    others = "|".join(set(stages._OTHER_TESTS) - {"inspect"})  # a module of Python, too
    uses = re.compile(rf"^\s*(from|import) ({others})\b|tests[/.\"', ]+({others})\b", re.MULTILINE)
    files = [*ROOT.glob("packages/*/tests/**/*.py"), *ROOT.glob("plugins/*/tests/**/*.py")]

    assert files
    assert [str(file) for file in files if uses.search(file.read_text())] == []


def test_every_folder_of_tests_is_in_a_stage() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}

    assert folders <= {*stages._OTHER_TESTS, "support"}
