"""``rpc-backends lock`` and ``RPC_BACKENDS_LOCK``, with wheels that are changed after locking."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from support.environments import Environment, Result, free_port
from support.once import made_once
from support.samples import (
    COMMAND,
    WORKING_BACKEND,
    backend_package,
    hooks_package,
)

LOCK = "rpc-backends.lock"
MODULE = "rpc_backend_pigeon.py"
HOOKS = """
    from rpc_backends_core import hookimpl

    @hookimpl
    def rpc_backends_loaded(record):
        pass
"""
#: Print the error of starting PIGEON, and which of the packages' modules were imported.
START = """
    import json, sys, torch.distributed.rpc as rpc, rpc_backends_core
    try:
        rpc.init_rpc("worker0", backend=sys.argv[1], rank=0, world_size=1)
        rpc.shutdown()
        said = None
    except rpc_backends_core.LockError as error:
        said = str(error)
    ours = ("rpc_backend_pigeon", "rpc_backend_loft", "rpc_tracing", "rpc_policy")
    print(json.dumps([said, sorted(set(ours) & set(sys.modules))]))
"""


@pytest.fixture(scope="session")
def locked_once(
    core_only: Environment, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Make an environment with a backend, a hook package and a lock. Tests must not change it."""

    def make(root: Path) -> None:
        environment = Environment.like(core_only, root)
        folder = tmp_path_factory.mktemp("packages")
        environment.install(
            *(wheels[name] for name in COMMAND),
            backend_package(folder),
            hooks_package(folder, HOOKS, distribution="rpc-tracing"),
        )
        environment.command("rpc-backends", "lock")

    return Environment(made_once(tmp_path_factory, "locked", make))


@pytest.fixture
def locked(locked_once: Environment, tmp_path: Path) -> Environment:
    """Copy the environment with its lock, for one test to change."""
    environment = Environment.like(locked_once, tmp_path / "locked")
    (environment.root / LOCK).write_text((locked_once.root / LOCK).read_text())
    return environment


def start(
    environment: Environment, backend: str = "PIGEON", **env: str
) -> tuple[str | None, list[str]]:
    """Start a backend under the lock; return the error and the imported modules."""
    variables = {
        "RPC_BACKENDS_LOCK": LOCK,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **env,
    }
    error, modules = environment.run(START, backend, env=variables).json
    return error, modules


def check(environment: Environment) -> Result:
    """Run `rpc-backends lock --check`, as CI does."""
    return environment.command("rpc-backends", "lock", "--check", check=False)


def test_locked_packages_load(locked: Environment) -> None:
    assert start(locked) == (None, ["rpc_backend_pigeon", "rpc_tracing"])
    done = check(locked)
    assert (done.returncode, done.stdout) == (0, f"4 packages and {LOCK} agree.\n")


def _change_a_file(environment: Environment) -> str:
    with (environment.site_packages / MODULE).open("a") as file:
        file.write("# changed\n")
    return f"rpc-backend-pigeon 1.0: {MODULE} was changed"


def _remove_a_file(environment: Environment) -> str:
    (environment.site_packages / MODULE).unlink()
    return f"rpc-backend-pigeon 1.0: {MODULE} is missing"


def _install_another_version(environment: Environment) -> str:
    environment.install(backend_package(environment.root / "wheels", version="1.1"))
    return "rpc-backend-pigeon 1.1: the lock has version 1.0"


def _add_a_backend(environment: Environment) -> str:
    environment.install(
        backend_package(environment.root / "wheels", name="DOVE", distribution="rpc-backend-loft")
    )
    return "rpc-backend-loft 1.0 is not in the lock (backend DOVE)"


def _add_a_hook(environment: Environment) -> str:
    environment.install(
        hooks_package(environment.root / "wheels", HOOKS, distribution="rpc-policy")
    )
    return "rpc-policy 1.0 is not in the lock (hooks rpc_policy)"


def _remove_a_hook(environment: Environment) -> str:
    environment.uninstall("rpc-tracing")
    return "rpc-tracing 1.0 is in the lock, but is not installed"


def _claim_the_name(environment: Environment) -> str:
    environment.install(
        backend_package(environment.root / "wheels", distribution="rpc-backend-loft")
    )
    return "rpc-backend-loft 1.0 is not in the lock (backend PIGEON)"


def _shadow_the_distribution(environment: Environment) -> str:
    first = environment.root / "first"
    environment.install_into(
        first, backend_package(environment.root / "wheels", "BACKEND = None\n", version="1.0")
    )
    environment.add_first_path(first)
    return f"rpc-backend-pigeon 1.0: {MODULE} was changed"


def _shadow_the_distribution_by_a_zip(environment: Environment) -> str:
    folder, archive = environment.root / "unpacked", environment.root / "first.zip"
    environment.install_into(
        folder, backend_package(environment.root / "wheels", "BACKEND = None\n", version="1.0")
    )
    shutil.make_archive(str(archive.with_suffix("")), "zip", folder)
    environment.add_first_path(archive)
    return f"rpc-backend-pigeon 1.0: it is in the zip file {archive}, whose files cannot be checked"


def _shadow_the_module(environment: Environment) -> str:
    first = environment.root / "first"
    first.mkdir()
    (first / MODULE).write_text("BACKEND = None\n")
    environment.add_first_path(first)
    return (
        f"rpc-backend-pigeon 1.0: Python imports rpc_backend_pigeon from {first / MODULE}, which does "
        "not belong to the package"
    )


def _shadow_by_a_folder(environment: Environment) -> str:
    folder = environment.site_packages / "rpc_backend_pigeon"
    folder.mkdir()
    (folder / "__init__.py").write_text("BACKEND = None\n")
    return (
        f"rpc-backend-pigeon 1.0: Python imports rpc_backend_pigeon from {folder / '__init__.py'}, "
        "which does not belong to the package"
    )


def _add_a_module(environment: Environment) -> str:
    path = environment.site_packages / "rpc_backend_tensorpipe" / "options.so"
    path.write_bytes(b"")
    return (
        "rpc-backend-tensorpipe 0.1.0: rpc_backend_tensorpipe/options.so does not belong to the "
        "package"
    )


@pytest.mark.parametrize(
    "change",
    [
        _change_a_file,
        _remove_a_file,
        _install_another_version,
        _add_a_backend,
        _add_a_hook,
        _remove_a_hook,
        _claim_the_name,
        _shadow_the_distribution,
        _shadow_the_distribution_by_a_zip,
        _shadow_the_module,
        _shadow_by_a_folder,
        _add_a_module,
    ],
)
def test_a_changed_environment_loads_nothing(
    locked: Environment, change: Callable[[Environment], str]
) -> None:
    difference = change(locked)

    error, modules = start(locked)

    assert error is not None
    assert difference in error
    assert f"rpc-backends lock {LOCK}" in error
    assert modules == []


def test_no_backend_starts_next_to_a_changed_one(locked: Environment) -> None:
    """This includes TENSORPIPE, because a hook package takes part in every start."""
    _change_a_file(locked)
    error, modules = start(locked, "TENSORPIPE")
    assert error is not None
    assert modules == []


def test_the_command_lists_each_difference(locked: Environment) -> None:
    expected = [_change_a_file(locked), _add_a_backend(locked)]
    done = check(locked)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"Error: the installed packages differ from {LOCK}:",
        *(f"- {difference}" for difference in sorted(expected)),
    ]
    done = locked.command("rpc-backends", "lock", "--check", "--json", check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["differences"] == sorted(expected)


def test_a_package_in_a_zip_cannot_be_locked(locked: Environment) -> None:
    _shadow_the_distribution_by_a_zip(locked)
    done = locked.command("rpc-backends", "lock", check=False)
    assert done.returncode == 1
    assert "whose files cannot be checked; install a wheel" in done.stderr


def test_a_lock_is_not_written_to_a_fifo(locked: Environment) -> None:
    """Opening it would wait for a reader."""
    os.mkfifo(locked.root / "fifo")
    done = locked.command("rpc-backends", "lock", "fifo", check=False)
    assert done.returncode == 1
    assert "fifo is not a regular file" in done.stderr


def test_a_package_changed_before_locking_is_refused(locked: Environment) -> None:
    _change_a_file(locked)
    done = locked.command("rpc-backends", "lock", check=False)
    assert done.returncode == 1
    assert f"{MODULE} was changed after the installation" in done.stderr


def test_without_the_variable_the_lock_is_not_imported(locked: Environment) -> None:
    code = """
        import json, sys, torch.distributed.rpc as rpc
        list(rpc.BackendType)
        print(json.dumps("rpc_backends_core._lock" in sys.modules))
    """
    assert locked.run(code).json is False


@pytest.mark.parametrize(
    "text",
    [None, "a FIFO", "no JSON", '{"version": 2}', '{"version": 1}'],
)
def test_an_unreadable_lock_loads_nothing(locked: Environment, text: str | None) -> None:
    if text in (None, "a FIFO"):
        (locked.root / LOCK).unlink()
    if text == "a FIFO":
        os.mkfifo(locked.root / LOCK)  # reading it would wait for its writer
    elif text is not None:
        (locked.root / LOCK).write_text(text)
    code = """
        import json, torch.distributed.rpc as rpc, rpc_backends_core
        try:
            list(rpc.BackendType)
        except rpc_backends_core.SettingError as error:
            print(json.dumps(str(error)))
    """
    error = locked.run(code, env={"RPC_BACKENDS_LOCK": LOCK}).json
    assert f"the lock file {LOCK} " in error
    assert f"rpc-backends lock {LOCK}" in error


def test_an_editable_install_needs_consent(locked: Environment, tmp_path: Path) -> None:
    """With `--allow-editable`, the lock has the folder of the sources, but not their contents."""
    source = tmp_path / "source"
    write_source(source)
    locked.uninstall("rpc-backend-pigeon")
    locked.link("setuptools")
    locked.install_editable(source)

    error, modules = start(locked)
    assert error is not None
    assert f"rpc-backend-pigeon 1.0: it is an editable install of {source}" in error
    assert modules == []

    done = locked.command("rpc-backends", "lock", check=False)
    assert done.returncode == 1
    assert f"rpc-backend-pigeon ({source})" in done.stderr

    done = locked.command("rpc-backends", "lock", "--allow-editable")
    assert "changes of the sources of rpc-backend-pigeon" in done.stderr
    with (source / MODULE).open("a") as file:
        file.write("# changed\n")
    assert start(locked)[0] is None


def write_source(folder: Path) -> None:
    """Write the project of the backend PIGEON, to install in editable mode."""
    folder.mkdir()
    (folder / MODULE).write_text(dedent(WORKING_BACKEND))
    (folder / "pyproject.toml").write_text(
        dedent(
            """
            [build-system]
            requires = ["setuptools"]
            build-backend = "setuptools.build_meta"

            [project]
            name = "rpc-backend-pigeon"
            version = "1.0"

            [project.entry-points."rpc.backends"]
            PIGEON = "rpc_backend_pigeon:BACKEND"

            [tool.setuptools]
            py-modules = ["rpc_backend_pigeon"]
            """
        )
    )
