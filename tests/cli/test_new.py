"""`rpc-backends new NAME`: what it writes, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_cli import scaffold
from rpc_backends_cli.scaffold.names import BadNameError, package_name, suggestion


def made(command: Any) -> list[str]:
    """Return what there is in the folder in which the command ran, its own packages apart."""
    return sorted(p.name for p in command.packages.parent.iterdir() if p != command.packages)


def test_a_package_is_written_and_the_next_commands_are_shown(command: Any) -> None:
    ended = command("new", "MY_BACKEND", "--author", "Ada <ada@example.org>")

    folder = command.packages.parent / "rpc-backend-my-backend"
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert ended.status == 0, ended.stderr
    assert files == {
        "pyproject.toml",
        "README.md",
        "src/rpc_backend_my_backend/__init__.py",
        "src/rpc_backend_my_backend/handlers.py",
        "src/rpc_backend_my_backend/options.py",
        "src/rpc_backend_my_backend/py.typed",
        "tests/test_conformance.py",
        "tests/test_options.py",
        ".github/workflows/test.yml",
        ".gitignore",
    }
    assert all(f"  {file}" in ended.stdout.splitlines() for file in files)
    commands = ["  cd rpc-backend-my-backend", '  pip install -e ".[test]"', "  pytest"]
    begin = ended.stdout.splitlines().index("Next")
    assert ended.stdout.splitlines()[begin + 1 : begin + 4] == commands
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "rpc-backend-my-backend"
    assert project["authors"] == [{"name": "Ada", "email": "ada@example.org"}]
    assert project["entry-points"]["rpc.backends"] == {
        "MY_BACKEND": "rpc_backend_my_backend:BACKEND"
    }
    assert project["optional-dependencies"]["test"] == ["rpc-backends-testing"]
    assert "license" not in project


def test_folder_and_package_can_be_chosen(command: Any, tmp_path: Path) -> None:
    ended = command("new", "MY_BACKEND", "--path", str(tmp_path / "here"), "--package", "pigeon")

    assert ended.status == 0, ended.stderr
    project = tomllib.loads((tmp_path / "here" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "pigeon"
    assert "authors" not in project
    assert project["entry-points"]["rpc.backends"] == {"MY_BACKEND": "pigeon:BACKEND"}
    assert (tmp_path / "here" / "src" / "pigeon" / "handlers.py").exists()


@pytest.mark.parametrize("name", ["my-backend", "MyBackend", "_MY", "MY__BACKEND", "3D", "name"])
def test_a_bad_name_is_refused_with_a_good_one(command: Any, name: str) -> None:
    ended = command("new", "--", name)

    assert ended.status == 1
    assert f"{name!r} is not a valid backend name" in ended.stderr
    assert f"Did you mean {suggestion(name)}?" in ended.stderr
    assert made(command) == []


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("my-backend", "MY_BACKEND"),
        ("MyBackend2", "MY_BACKEND2"),
        ("Übertragung 2", "UBERTRAGUNG_2"),
        ("__a..b__", "A_B"),
        ("3d", "RPC_3D"),
        ("class", "CLASS"),
        ("HTTP", "HTTP"),
        ("--", ""),
    ],
)
def test_a_suggestion_is_a_name_that_is_taken_then(text: str, good: str) -> None:
    assert suggestion(text) == good
    assert not good or scaffold.member_name(good) == good


@pytest.mark.parametrize("name", ["import", "My", "a-b", "1a", "", "_a"])
def test_a_bad_package_is_refused(name: str) -> None:
    with pytest.raises(BadNameError, match="not a valid package name"):
        package_name(name)


@pytest.mark.slow
def test_an_installed_name_is_refused_with_the_package_that_has_it(command: Any) -> None:
    command.install("rpc-backend-loft", {"PIGEON": "B", "Dove": "B"}, "B = None")

    for name in ("PIGEON", "DOVE"):  # names are one name in any case
        ended = command("new", name)
        assert ended.status == 1
        assert f"the name {name} is taken by rpc-backend-loft 1.0." in ended.stderr
    assert made(command) == []


def test_torchs_own_names_are_refused_where_nothing_of_ours_has_them(command: Any) -> None:
    ended = command("new", "TENSORPIPE", "--package", "mine")

    assert ended.status == 1
    assert "the name TENSORPIPE is taken by " in ended.stderr
    assert "torch " in ended.stderr


def test_a_package_that_is_there_is_refused(command: Any) -> None:
    ended = command("new", "MY_BACKEND", "--package", "rich")

    assert ended.status == 1
    assert "the name rich is taken: a package of that name" in ended.stderr
    assert made(command) == []


def test_a_folder_that_is_there_is_refused_and_left_as_it_is(command: Any) -> None:
    folder = command.packages.parent / "rpc-backend-my-backend"
    folder.mkdir()
    (folder / "mine").write_text("mine")

    ended = command("new", "MY_BACKEND")

    assert ended.status == 1
    assert "already exists" in ended.stderr
    assert [p.name for p in folder.iterdir()] == ["mine"]


def test_a_folder_in_a_folder_that_is_not_there_is_refused(command: Any) -> None:
    ended = command("new", "MY_BACKEND", "--path", "no/such")

    assert ended.status == 1
    assert "there is no folder no" in ended.stderr
    assert made(command) == []


def test_a_half_written_folder_is_removed(tmp_path: Path) -> None:
    texts = {"first": "written", "second": "\ud800"}  # which no file in UTF-8 can hold

    with pytest.raises(UnicodeEncodeError):
        scaffold.write(tmp_path / "new", texts)

    assert list(tmp_path.iterdir()) == []


def test_an_author_is_written_as_toml(tmp_path: Path) -> None:
    for author, expected in (
        ('Ada "the" \\ First', {"name": 'Ada "the" \\ First'}),
        ("<ada@example.org>", {"email": "ada@example.org"}),
    ):
        text = scaffold.files(scaffold.Names.of("X"), author)["pyproject.toml"]
        assert tomllib.loads(text)["project"]["authors"] == [expected]


def tool(folder: Path, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command, "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["X", "MY_BACKEND", "A_QUITE_LONG_NAME_OF_A_BACKEND"])
def test_what_is_written_is_formatted_and_without_lint(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "new"
    scaffold.write(folder, scaffold.files(scaffold.Names.of(name)))

    rules = "--select=E,F,W,I,B,UP,SIM,RET,PTH,C4,RUF,D", "--ignore=D1,D203,D213"
    tool(folder, "ruff", "check", "--no-cache", *rules)
    tool(folder, "ruff", "format", "--no-cache", "--check")


@pytest.mark.thorough
def test_what_is_written_is_typed(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    scaffold.write(folder, scaffold.files(scaffold.Names.of("MY_BACKEND")))

    tool(folder, "mypy", "--strict", f"--cache-dir={tmp_path}/cache")
