"""The stages of ``make test``: which run again, and how two run side by side."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import sysconfig
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


@pytest.mark.parametrize(
    "changed",
    [
        *("src/a.py", "src/new.py", "plugins/x/src/x/builds/torch/_C.so"),
        *("pytest.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "conftest.py"),
    ],
)
def test_a_changed_file_changes_the_fingerprint(checkout: Path, changed: str) -> None:
    before = stages.fingerprint(FILES, [], checkout)
    write(checkout / changed, "2")

    assert stages.fingerprint(FILES, [], checkout) != before


@pytest.mark.parametrize("stage", stages.STAGES, ids=lambda stage: stage.name)
@pytest.mark.parametrize("engine", ["ucx", "zeromq"])
def test_a_stage_whose_tests_name_an_engine_depends_on_it(stage: stages.Stage, engine: str) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--", *stage.files],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    if any(file.startswith(f"plugins/{engine}/src/") for file in listed):
        return
    folders = tuple(folder for folder in stage.arguments if (ROOT / folder).is_dir())
    tests = [file for file in listed if file.endswith(".py") and file.startswith(folders)]
    marker = stage.markers if stage.markers.isidentifier() else ""
    texts = {file: (ROOT / file).read_text() for file in tests}
    using = [file for file, text in texts.items() if marker in text and engine.upper() in text]
    # For the conformance suite, the backend is an argument.
    chosen = (
        stage.arguments[stage.arguments.index("--rpc-backend") + 1 :][:1] if not folders else ()
    )
    assert not using
    assert engine.upper() not in chosen


@pytest.mark.parametrize("changed", ["docs/a.md", "src/x/tests/test_a.py"])
def test_other_files_do_not_change_the_fingerprint(checkout: Path, changed: str) -> None:
    before = stages.fingerprint(FILES, [], checkout)
    write(checkout / changed, "2")

    assert stages.fingerprint(FILES, [], checkout) == before


def test_a_removed_file_changes_the_fingerprint(checkout: Path) -> None:
    before = stages.fingerprint(FILES, [], checkout)
    (checkout / "src/a.py").unlink()

    assert stages.fingerprint(FILES, [], checkout) != before


def test_a_recompiled_extension_changes_the_fingerprint(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = checkout.parent / "site-packages"
    monkeypatch.setattr(stages.sysconfig, "get_path", lambda name: str(site))
    before = stages.fingerprint(FILES, [], checkout)
    write(site / "rpc_backend_ucx/_native.so", "2")

    assert stages.fingerprint(FILES, [], checkout) != before


def test_the_installed_extensions_are_where_the_fingerprint_looks() -> None:
    pytest.importorskip("rpc_backend_ucx")
    spec = importlib.util.find_spec("rpc_backend_ucx._native")

    assert spec
    assert spec.origin
    assert Path(spec.origin) in Path(sysconfig.get_path("platlib")).glob("rpc_*/**/*.so")


def test_another_command_changes_the_fingerprint(checkout: Path) -> None:
    before = stages.fingerprint(FILES, ["pytest"], checkout)

    assert stages.fingerprint(FILES, ["pytest", "-x"], checkout) != before


@pytest.mark.parametrize(
    "name",
    [
        *("PYTEST_ADDOPTS", "PYTHONPATH", "LD_PRELOAD", "RPC_BACKENDS_DENY", "UCX_TLS"),
        *("OMP_NUM_THREADS", "TORCH_LOGS", "CUDA_VISIBLE_DEVICES", "CXX", "LANG"),
    ],
)
def test_another_variable_changes_the_fingerprint(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = stages.fingerprint(FILES, [], checkout)
    monkeypatch.setenv(name, "X")

    assert stages.fingerprint(FILES, [], checkout) != before


def test_variables_of_a_terminal_do_not_change_the_fingerprint(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stages.fingerprint(FILES, [], checkout)
    monkeypatch.setenv("WINDOWID", "X")
    monkeypatch.setenv("COLUMNS", "9")

    assert stages.fingerprint(FILES, [], checkout) == before


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


def listed(*pathspecs: str) -> set[str]:
    """Return the files that git knows, and the new ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *pathspecs]
    return set(subprocess.check_output(command, cwd=ROOT, text=True).splitlines())


@pytest.mark.parametrize("stage", stages.STAGES, ids=lambda stage: stage.name)
def test_a_stage_depends_on_the_tests_that_it_runs(stage: stages.Stage) -> None:
    run = {name for name in stage.arguments if (ROOT / name).is_dir()}

    assert {file for name in run for file in listed(name)} <= listed(*stage.files)


@pytest.mark.parametrize("stage", stages.STAGES, ids=lambda stage: stage.name)
def test_a_stage_depends_on_the_folders_of_tests_that_its_files_use(stage: stages.Stage) -> None:
    folders = {file.split("/")[1] for file in listed("tests/*/*.py")}
    files = listed(*stage.files)
    others = folders - {file.split("/")[1] for file in files if file.startswith("tests/")}
    names = "|".join(others) or "(?!)"
    # `inspect` is a module of Python, too.
    uses = re.compile(
        rf"^\s*(from|import) (?!inspect\b)({names})\b|\btests(/|\W+\")({names})\b", re.MULTILINE
    )
    tests = [
        file for file in files if re.match(r"(p\w+/\w+/tests/|tests/\w+/|conftest).*\.py$", file)
    ]

    assert tests
    assert [file for file in tests if uses.search((ROOT / file).read_text())] == []


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


def a_run(name: str, code: str, *, recorded: bool = False) -> stages.Run:
    stage = stages.Stage(name, f"the stage {name}", ("tests/structure",), ())
    command = [sys.executable, "-c", code]
    return stages.Run(
        stage, command, stages.fingerprint(stage.files, command) if recorded else None
    )


def run_alone(run: stages.Run) -> None:
    run.start(shown=True)
    run.wait()


def test_a_stage_that_passes_is_recorded(outputs: Path) -> None:
    run_alone(a_run("a", "", recorded=True))

    assert (outputs / "passed/a").exists()


@pytest.mark.parametrize("recorded", [True, False], ids=["stage", "with arguments"])
def test_a_failure_removes_the_record(outputs: Path, recorded: bool) -> None:
    write(outputs / "passed/a", "before")

    run_alone(a_run("a", "raise SystemExit(1)", recorded=recorded))

    assert not (outputs / "passed/a").exists()


def test_an_interrupted_run_removes_the_record(outputs: Path) -> None:
    write(outputs / "passed/a", "before")
    run = a_run("a", "input()", recorded=True)

    run.start(shown=False)
    run.end()

    assert not (outputs / "passed/a").exists()


def test_some_passing_tests_of_a_stage_keep_its_record(outputs: Path) -> None:
    write(outputs / "passed/a", "before")

    run_alone(a_run("a", ""))

    assert (outputs / "passed/a").read_text() == "before"


def test_a_stage_without_tests_is_not_recorded(outputs: Path) -> None:
    run_alone(a_run("a", "raise SystemExit(5)", recorded=True))

    assert not (outputs / "passed/a").exists()


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
