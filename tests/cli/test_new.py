"""`rpc-backends new NAME`: what it writes, and what it refuses."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from rpc_backends_cli import scaffold
from rpc_backends_cli.scaffold.names import BadNameError, package_name, suggestion
from rpc_backends_cli.scaffold.source import Origin, origin_of

ROOT = Path(__file__).parents[2]
X = scaffold.Names.of("X")
TENSORPIPE = scaffold.Variant(scaffold.Kind.TENSORPIPE, dynamic_groups=False)
VARIANTS = [
    TENSORPIPE,
    *(
        scaffold.Variant(kind, dynamic)
        for kind in (scaffold.Kind.PYTHON, scaffold.Kind.CPP)
        for dynamic in (True, False)
    ),
]
FACTS = scaffold.Facts()
INSTALL = ".github/install-rpc-backends.sh"


def made(command: Any) -> list[str]:
    """Return what is in the folder in which the command ran, except the test's own packages."""
    return sorted(p.name for p in command.packages.parent.iterdir() if p != command.packages)


def test_a_package_is_written_and_the_next_commands_are_shown(command: Any) -> None:
    ended = command("new", "MY_BACKEND", "--author", "Ada <ada@example.org>")

    folder = command.packages.parent / "rpc-backend-my-backend"
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert ended.status == 0, ended.stderr
    assert files == {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/rpc_backend_my_backend/__init__.py",
        "src/rpc_backend_my_backend/handlers.py",
        "src/rpc_backend_my_backend/options.py",
        "src/rpc_backend_my_backend/py.typed",
        "tests/test_conformance.py",
        "tests/test_options.py",
        "tests/test_smoke.py",
        ".github/install-rpc-backends.sh",
        ".github/workflows/newest-torch.yml",
        ".github/workflows/release.yml",
        ".github/workflows/test.yml",
        ".gitignore",
    }
    assert all(f"  {file}" in ended.stdout.splitlines() for file in files)
    commands = [
        "  cd rpc-backend-my-backend",
        f"  RPC_BACKENDS_SOURCE={ROOT} bash .github/install-rpc-backends.sh",
        '  pip install -e ".[test]"',
        "  pytest",
    ]
    begin = ended.stdout.splitlines().index("Next")
    assert ended.stdout.splitlines()[begin + 1 : begin + 5] == commands
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "rpc-backend-my-backend"
    assert project["authors"] == [{"name": "Ada", "email": "ada@example.org"}]
    assert project["entry-points"]["rpc.backends"] == {
        "MY_BACKEND": "rpc_backend_my_backend:BACKEND"
    }
    assert "rpc-backends-testing" in project["optional-dependencies"]["test"][0]
    assert project["license"] == "BSD-3-Clause"
    assert "Copyright (c) Ada\n" in (folder / "LICENSE").read_text()


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
    "arguments", [["A" * 101], ["MY_BACKEND", "--package", "a" * 101]], ids=["backend", "package"]
)
def test_a_name_too_long_for_a_file_is_refused(command: Any, arguments: list[str]) -> None:
    ended = command("new", *arguments)

    assert ended.status == 1
    assert "has 101 characters; choose one of at most 100" in ended.stderr
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
def test_a_suggested_name_is_itself_valid(text: str, good: str) -> None:
    assert suggestion(text) == good
    assert not good or scaffold.member_name(good) == good


@pytest.mark.parametrize("name", ["import", "My", "a-b", "1a", "", "_a"])
def test_a_bad_package_is_refused(name: str) -> None:
    with pytest.raises(BadNameError, match="not a valid package name"):
        package_name(name)


@pytest.mark.slow
def test_an_installed_name_is_refused_with_the_package_that_has_it(command: Any) -> None:
    command.install("rpc-backend-loft", {"PIGEON": "B", "Dove": "B"}, "B = None")

    for name in ("PIGEON", "DOVE"):  # names that differ only in case are the same name
        ended = command("new", name)
        assert ended.status == 1
        assert f"the name {name} is taken by rpc-backend-loft 1.0." in ended.stderr
    assert made(command) == []


def test_the_names_of_torchs_own_backends_are_refused(command: Any) -> None:
    ended = command("new", "TENSORPIPE", "--package", "mine")

    assert ended.status == 1
    assert "the name TENSORPIPE is taken by " in ended.stderr
    assert "torch " in ended.stderr


def test_the_name_of_an_installed_package_is_refused(command: Any) -> None:
    ended = command("new", "MY_BACKEND", "--package", "rich")

    assert ended.status == 1
    assert "the name rich is taken: a package of that name" in ended.stderr
    assert made(command) == []


def test_an_existing_folder_is_refused_and_left_unchanged(command: Any) -> None:
    folder = command.packages.parent / "rpc-backend-my-backend"
    folder.mkdir()
    (folder / "mine").write_text("mine")

    ended = command("new", "MY_BACKEND")

    assert ended.status == 1
    assert "already exists" in ended.stderr
    assert [p.name for p in folder.iterdir()] == ["mine"]


def test_a_path_in_a_missing_folder_is_refused(command: Any) -> None:
    ended = command("new", "MY_BACKEND", "--path", "no/such")

    assert ended.status == 1
    assert "there is no folder no" in ended.stderr
    assert made(command) == []


def test_a_half_written_folder_is_removed(tmp_path: Path) -> None:
    texts = {"first": "written", "second": "\ud800"}  # UTF-8 cannot encode this text

    with pytest.raises(UnicodeEncodeError):
        scaffold.write(tmp_path / "new", texts)

    assert list(tmp_path.iterdir()) == []


def test_an_author_is_written_as_toml(tmp_path: Path) -> None:
    for author, expected in (
        ('Ada "the" \\ First', {"name": 'Ada "the" \\ First'}),
        ("<ada@example.org>", {"email": "ada@example.org"}),
        ("𠮷野 É", {"name": "𠮷野 É"}),
    ):
        text = scaffold.files(X, TENSORPIPE, scaffold.Facts(author=author))["pyproject.toml"]
        assert tomllib.loads(text)["project"]["authors"] == [expected]


@pytest.mark.parametrize("kind", [scaffold.Kind.PYTHON, scaffold.Kind.CPP])
@pytest.mark.parametrize("dynamic", [True, False])
def test_dynamic_groups_are_declared_if_wanted(kind: scaffold.Kind, dynamic: bool) -> None:
    texts = scaffold.files(X, scaffold.Variant(kind, dynamic))

    handlers = texts["src/rpc_backend_x/handlers.py"]
    assert ("dynamic_groups=False" in handlers) != dynamic
    assert ("def test_a_dynamic_group_is_refused" in texts["tests/test_smoke.py"]) != dynamic


def test_dynamic_groups_on_tensorpipe_are_refused(command: Any) -> None:
    ended = command("new", "MY_BACKEND", "--dynamic-groups")

    assert ended.status == 1
    assert "has no dynamic groups. Use --transport python" in ended.stderr
    assert made(command) == []


def test_a_transport_in_cpp_is_installed_without_isolation(command: Any) -> None:
    ended = command("new", "MY_BACKEND", "--transport", "c++")

    assert ended.status == 0, ended.stderr
    assert '  pip install --no-build-isolation -e ".[test]"' in ended.stdout.splitlines()
    assert (command.packages.parent / "rpc-backend-my-backend" / "csrc" / "transport.cpp").exists()


def test_a_transport_in_cpp_is_an_engine_on_the_kit() -> None:
    texts = scaffold.files(X, scaffold.Variant(scaffold.Kind.CPP, dynamic_groups=True))
    engine = texts["csrc/transport.cpp"]

    assert len(engine.splitlines()) < 100
    assert "public rpc_backends::StreamEngine" in engine
    assert "bind_engine<" in engine
    assert "PyCapsule" not in engine
    assert "GuardedTransport" in texts["src/rpc_backend_x/transport.py"]


def test_a_default_timeout_of_sockets_ends_no_connection() -> None:
    module = transport_in_python()
    socket.setdefaulttimeout(0.01)
    try:
        caller, callee = module["SocketTransport"](), module["SocketTransport"]()
        caller.listen(0, "worker0", SimpleNamespace(lost=print, found=print))
        callee_inbox: Queue[tuple[int, list[bytearray]]] = Queue()
        address = callee.listen(
            1, "worker1", SimpleNamespace(deliver=lambda *m: callee_inbox.put(m))
        )
        caller.learn(1, "worker1", address)
        caller.send(1, [memoryview(b"call")], reply=False)
        link = caller._links[1, False]
        link.reader.join(0.3)  # it ends if recv() times out
        still_there = link.reader.is_alive()
    finally:
        socket.setdefaulttimeout(None)
    assert callee_inbox.get(timeout=10) == (0, [bytearray(b"call")])
    caller.close(10)
    callee.close(10)

    assert still_there


def test_a_connection_that_opens_while_a_transport_in_python_closes_is_closed() -> None:
    module = transport_in_python()
    caller, callee = module["SocketTransport"](), module["SocketTransport"]()
    caller.listen(0, "worker0", SimpleNamespace(lost=print, found=print))
    address = callee.listen(1, "worker1", SimpleNamespace(deliver=print))
    caller.learn(1, "worker1", address)
    links = []

    def close_first(link: Any) -> None:
        links.append(link)
        caller.close(0)

    caller._register = close_first
    with pytest.raises(ConnectionError, match="the transport is closed"):
        caller.send(1, [memoryview(b"call")], reply=False)
    callee.close(10)

    assert [link.connection.fileno() for link in links] == [-1]


def transport_in_python() -> dict[str, Any]:
    """Return the names of the module that a new package with a transport in Python has."""
    texts = scaffold.files(X, scaffold.Variant(scaffold.Kind.PYTHON, dynamic_groups=True))
    module: dict[str, Any] = {"__name__": "transport"}
    exec(texts["src/rpc_backend_x/transport.py"], module)
    return module


def test_the_repository_is_named_in_the_metadata() -> None:
    url = "https://example.org/ada/pigeon"
    text = scaffold.files(X, TENSORPIPE, scaffold.Facts(url=f"{url}/"))["pyproject.toml"]

    assert tomllib.loads(text)["project"]["urls"] == {"Repository": url, "Issues": f"{url}/issues"}


@pytest.mark.parametrize(
    ("record", "origin"),
    [
        (
            {"url": (ROOT / "packages/cli").as_uri(), "dir_info": {"editable": True}},
            Origin(clone=str(ROOT)),
        ),
        ({"url": "https://example.org/r.git", "vcs_info": {}}, Origin("https://example.org/r.git")),
        ({"url": "file:///tmp/rpc_backends-0.1.0.whl", "archive_info": {}}, Origin()),
        ({"url": "file:///nowhere/packages/cli", "dir_info": {}}, Origin()),
    ],
    ids=["clone", "git", "wheel", "other folder"],
)
def test_the_origin_is_what_the_command_was_installed_from(
    record: dict[str, Any], origin: Origin
) -> None:
    assert origin_of(json.dumps(record)) == origin


@pytest.mark.parametrize("transport", ["tensorpipe", "python", "c++"])
def test_no_file_of_a_new_package_has_a_path_of_this_machine(command: Any, transport: str) -> None:
    """This command is installed from a clone."""
    ended = command("new", "MY_BACKEND", "--transport", transport)

    assert ended.status == 0, ended.stderr
    folder = command.packages.parent / "rpc-backend-my-backend"
    texts = {p.relative_to(folder): p.read_text() for p in folder.rglob("*") if p.is_file()}
    places = {str(ROOT), str(Path.home()), sys.prefix, str(folder)}
    assert [path for path, text in texts.items() if any(place in text for place in places)] == []


def test_no_comment_of_a_new_package_has_the_address_of_an_index(all_variants: Path) -> None:
    texts = {path: path.read_text() for path in all_variants.rglob("*.yml")}
    comments = [line for text in texts.values() for line in text.splitlines() if "#" in line]
    assert comments
    assert [line for line in comments if "pypi.org" in line] == []


@pytest.mark.parametrize("source", ["", "/no/such folder", "/it's"])
def test_a_missing_source_is_refused(tmp_path: Path, source: str) -> None:
    text = scaffold.files(X, TENSORPIPE, scaffold.Facts(source=source))[INSTALL]
    (tmp_path / "install.sh").write_text(text)

    done = subprocess.run(
        ["bash", "install.sh"],
        cwd=tmp_path,
        env={**os.environ, "RPC_BACKENDS_SOURCE": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert f"the source of rpc-backends is '{source}', which is no folder" in done.stderr
    assert "Set the variable RPC_BACKENDS_SOURCE" in done.stderr


@pytest.fixture(scope="module")
def all_variants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write packages of each variant, with names of several lengths."""
    folder = tmp_path_factory.mktemp("variants")
    for name in ("X", "MY_BACKEND", "A_QUITE_LONG_NAME_OF_A_BACKEND"):
        for place, variant in enumerate(VARIANTS):
            facts = scaffold.Facts(author="Ada", url="https://example.org/a") if place else FACTS
            texts = scaffold.files(scaffold.Names.of(name), variant, facts)
            scaffold.write(folder / f"{name}-{place}", texts)
    return folder


def tool(folder: Path, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_written_is_formatted_and_without_lint(all_variants: Path) -> None:
    """The rules are those in its own pyproject.toml, which ruff finds, and some more."""
    rules = "--extend-select=D", "--ignore=D1,D203,D213"
    tool(all_variants, "ruff", "check", "--no-cache", *rules, ".")
    tool(all_variants, "ruff", "format", "--no-cache", "--check", ".")


def test_no_placeholder_is_left(all_variants: Path) -> None:
    texts = {path: path.read_text() for path in all_variants.rglob("*") if path.is_file()}
    assert [path for path, text in texts.items() if "%%" in text] == []


WORKFLOWS = ("test.yml", "newest-torch.yml", "release.yml")


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_is_one_for_github(all_variants: Path, name: str, variant: int) -> None:
    path = all_variants / f"X-{variant}" / ".github" / "workflows" / name
    # YAML reads the key `on` as true.
    workflow = {str(key): value for key, value in yaml.safe_load(path.read_text()).items()}

    assert set(workflow) <= {"name", "True", "permissions", "env", "jobs"}
    assert set(workflow["True"]) <= {"push", "pull_request", "schedule", "workflow_dispatch"}
    for job in workflow["jobs"].values():
        assert set(job) <= {
            *("runs-on", "timeout-minutes", "strategy", "steps", "needs"),
            *("environment", "permissions"),
        }
        assert job["timeout-minutes"] > 0
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), step
            assert set(step) <= {"name", "run", "uses", "with", "env", "if"}, step
            assert re.fullmatch(r"[\w-]+/[\w/-]+@(v\d+|release/v1)", step.get("uses", "a/b@v1"))


def test_ci_tests_the_oldest_torch_and_the_newest_tested(all_variants: Path) -> None:
    folder = all_variants / "X-0"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    (torch,) = [
        Requirement(dependency)
        for dependency in project["dependencies"]
        if dependency.startswith("torch")
    ]
    (ours,) = [
        Requirement(text)
        for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        if text.startswith("torch")
    ]
    workflow = yaml.safe_load((folder / ".github/workflows/test.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]

    assert torch.specifier == ours.specifier
    assert all(ours.specifier.contains(version) for version in matrix["torch"])
    oldest = Version(min(matrix["torch"], key=Version))
    assert f">={oldest.major}.{oldest.minor}" in str(ours.specifier)
    pairs = json.loads((ROOT / "docs/compatibility.json").read_text())["pairs"]
    tested = max(Version(pair["torch"]) for pair in pairs)
    newest = Version(max(matrix["torch"], key=Version))
    assert newest.release[:2] == tested.release[:2]


def test_ci_tests_the_pairs_of_torch_and_python_that_were_tested_here(all_variants: Path) -> None:
    workflow = yaml.safe_load((all_variants / "X-0/.github/workflows/test.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    pairs = set(itertools.product(matrix["torch"], matrix["python"]))
    pairs -= {(entry["torch"], entry["python"]) for entry in matrix["exclude"]}

    tested = json.loads((ROOT / "docs/compatibility.json").read_text())["installations"]
    known = {(Version(entry["torch"]).public, entry["python"]) for entry in tested}
    assert pairs == {pair for pair in known if pair[0] in matrix["torch"]}


@pytest.mark.thorough
@pytest.mark.parametrize("variant", range(len(VARIANTS)))
def test_what_is_written_is_typed(all_variants: Path, variant: int, tmp_path: Path) -> None:
    tool(all_variants / f"MY_BACKEND-{variant}", "mypy", f"--cache-dir={tmp_path}")
