"""The stages of ``make test``: which run again, and how two run side by side."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
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


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keep what the stages write, and how SIGTERM is handled, out of this process's."""
    monkeypatch.setattr(stages, "OUTPUTS", tmp_path / "outputs")
    monkeypatch.setattr(stages, "PASSED", tmp_path / "passed")
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def a_run(name: str, code: str) -> stages.Run:
    stage = stages.Stage(name, f"the stage {name}", (), ())
    return stages.Run(stage, [sys.executable, "-c", code], None)


#: Writes a file, and waits for that of the other stage.
MEET = """
import pathlib, sys, time
mine, other = map(pathlib.Path, {paths})
print("begin", mine.name, flush=True)
mine.touch()
while not other.exists():
    time.sleep(0.01)
print("end", mine.name)
"""


def test_two_stages_run_side_by_side_with_separate_output(
    outputs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = str(outputs / "a"), str(outputs / "b")
    runs = [a_run("a", MEET.format(paths=[a, b])), a_run("b", MEET.format(paths=[b, a]))]

    stages.run_side_by_side(runs)

    assert not any(run.has_failed(none_selected=True) for run in runs)
    printed = capfd.readouterr().out
    assert "begin a\nend a\n" in printed
    assert "begin b\nend b\n" in printed


def test_a_failed_stage_does_not_keep_another_from_running(outputs: Path) -> None:
    runs = [a_run("a", "raise SystemExit(1)"), *(a_run(name, "") for name in "bc")]

    stages.run_side_by_side(runs)

    assert [run.has_failed(none_selected=True) for run in runs] == [True, False, False]


def test_an_interrupt_ends_both_stages(outputs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = ("a", "b")
    waits = "import sys, time; print('runs', flush=True); open({!r}, 'w').close(); time.sleep(600)"
    runs = [a_run(name, waits.format(str(outputs / name))) for name in names]

    def interrupt() -> None:
        while not all((outputs / name).exists() for name in names):
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        stages.run_side_by_side(runs)
    thread.join()

    assert all(run.has_failed(none_selected=True) for run in runs)
    assert capfd.readouterr().out.count("runs\n") == len(names)
