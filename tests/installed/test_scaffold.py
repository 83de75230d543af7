"""Packages that `rpc-backends new` has written: built, installed, used, and their tests run untouched."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import native
from support.environments import Environment, build_wheels, clean_environ
from support.samples import NEED_AGENTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
AGENTS = ROOT / "packages" / "agents"
COMPILES_AGENTS = ("install-rpc-backends", "./packages/agents")
#: The values of the command's option `--transport`.
TRANSPORTS = ("tensorpipe", "python", "c++")

CALL = """
    import os
    from torch.distributed import rpc
    import torch

    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", backend="NAME", rank=rank, world_size=2)
    print(rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(2), rank)).tolist())
    rpc.shutdown()
"""


@dataclass(frozen=True)
class Package:
    """A new package.

    :ivar name: the backend.
    :ivar environment: an environment with the package and its dependencies.
    """

    name: str
    folder: Path
    environment: Environment


@pytest.fixture(scope="module")
def with_agents(
    installed: Environment, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Environment]:
    """Make an environment with every distribution, and tools that build, test and check a new package."""
    made = Environment.like(installed, tmp_path_factory.mktemp("agents"))
    made.install(*(wheels[name] for name in NEED_AGENTS))
    made.link(
        "scikit-build-core",
        "pybind11",
        "cmake",
        "ninja",
        "hatchling",
        "editables",
        "build",
        "mypy",
        "ruff",
    )
    for tool in ("pip", "pytest", "mypy"):
        _add_program(made, tool, f'exec "{made.python}" -m {tool} "$@"')
    _add_program(made, "ruff", f'exec "{Path(sys.executable).with_name("ruff")}" "$@"')
    yield made
    shutil.rmtree(made.root, ignore_errors=True)


def _add_program(environment: Environment, name: str, line: str) -> None:
    program = environment.root / "bin" / name
    program.unlink(missing_ok=True)
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)


@pytest.fixture(
    scope="module",
    params=TRANSPORTS,
)
def package(
    request: pytest.FixtureRequest,
    with_agents: Environment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Package]:
    """Write a package with the command, build it and install it."""
    name = f"PIGEON_{TRANSPORTS.index(request.param)}"
    folder = tmp_path_factory.mktemp("new") / "pigeon"
    new = ("rpc-backends", "new", name, "--path", str(folder), "--source", str(ROOT))
    with_agents.command(*new, "--transport", request.param)
    made = Environment.like(with_agents, tmp_path_factory.mktemp("environment"))
    made.install(*build_wheels([folder], tmp_path_factory.mktemp("dist")).values())
    yield Package(name, folder, made)
    shutil.rmtree(made.root, ignore_errors=True)


def test_two_workers_call_each_other(package: Package) -> None:
    results = package.environment.run_workers(CALL.replace("NAME", package.name))

    assert [result.stdout.splitlines() for result in results] == [["[1.0, 1.0]"], ["[2.0, 2.0]"]]
    package.environment.pip_check()


def test_the_backend_is_a_member(package: Package) -> None:
    done = package.environment.run(
        """
        from torch.distributed import rpc

        print([member.name for member in rpc.BackendType])
        """
    )

    assert f"'{package.name}'" in done.stdout


def run_its_tests(package: Package, *arguments: str) -> None:
    """Run the tests that came with the package, with the recorder on, as by default; all must pass."""
    package.environment.command(
        *("python", "-m", "pytest", str(package.folder / "tests"), "-p", "no:cacheprovider"),
        *arguments,
        env={"RPC_BACKENDS_RECORDER": "on"},
        timeout=900,
    )


def test_its_smoke_and_option_tests_pass_untouched(package: Package) -> None:
    run_its_tests(package, "-k", "test_smoke or test_options.py")


@pytest.mark.thorough
def test_the_tests_of_its_transport_pass_untouched(package: Package) -> None:
    if (package.folder / "tests" / "test_transport.py").exists():
        run_its_tests(package, "-k", "test_transport.py")


@pytest.mark.thorough
def test_it_conforms_untouched(package: Package, tmp_path: Path) -> None:
    report = tmp_path / "all"
    run_its_tests(package, "--rpc-report", str(report), "-k", f"Test{package.name}")

    results: dict[str, Any] = json.loads(report.with_suffix(".json").read_text())
    assert results["backend"]["name"] == package.name
    assert results["verdict"] == "conforms"
    assert "broken" not in results["capabilities"].values()
    # Every capability that works is declared, so an author starts with a correct declaration.
    assert "works, not declared" not in results["capabilities"].values(), results["capabilities"]


def run_command(package: Package, command: str, **variables: str) -> None:
    """Run a command line in the package's folder and its environment."""
    run_in(package.environment, package.folder, command, **variables)


def run_in(environment: Environment, folder: Path, command: str, **variables: str) -> None:
    """Run a command line without a network, and without compiling this project's C++ again."""
    programs = environment.root / "bin"
    with native.prebuilt(AGENTS) as prebuilt:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=folder,
            env={
                **clean_environ(),
                "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
                "PIP_NO_INDEX": "1",
                "PIP_NO_BUILD_ISOLATION": "0",  # 0 makes pip build without isolation
                **(prebuilt if any(name in command for name in COMPILES_AGENTS) else {}),
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
    assert done.returncode == 0, f"$ {command}\n{done.stdout[-5000:]}{done.stderr[-5000:]}"


def commands_of(page: Path) -> list[str]:
    """Return the commands of a page, in order."""
    blocks = re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.mark.thorough
def test_the_commands_of_its_readme_work(package: Package) -> None:
    commands = commands_of(package.folder / "README.md")

    assert commands[0] == "bash .github/install-rpc-backends.sh"
    for command in commands:
        run_command(package, command)
    assert "conforms" in (package.folder / "conformance.svg").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "job"), [("test", "lint"), ("test", "test"), ("release", "build")]
)
def test_the_steps_of_its_workflows_run(package: Package, name: str, job: str) -> None:
    """Steps that install from an index are left out. Of the suite, only the chapter `calls` runs."""
    text = (package.folder / ".github" / "workflows" / f"{name}.yml").read_text()
    steps = [step["run"] for step in yaml.safe_load(text)["jobs"][job]["steps"] if "run" in step]
    variables = {"RPC_BACKENDS_SOURCE": str(ROOT), "GITHUB_REF_NAME": "v0.1.0"}

    ran = 0
    for step in steps:
        if step.startswith(("pip install torch", "pip install build")):
            continue
        if step.startswith("pytest"):
            step += f" -k 'not Test{package.name} or TestCalls'"  # noqa: PLW2901
        if (
            step == "python -m build"
        ):  # in isolation, it would install the build backend from an index
            step += " --no-isolation"  # noqa: PLW2901
        run_command(package, step, **variables)
        ran += 1
    assert ran >= 2


def test_the_program_of_its_readme_runs(package: Package) -> None:
    text = (package.folder / "README.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    store = f"file://{package.environment.root}/store"

    done = package.environment.run(program.replace("tcp://127.0.0.1:29500", store))

    assert done.stdout == "tensor([2., 2.])\n"


GUIDES = ("write-a-backend.md", "write-a-backend-in-python.md", "write-a-backend-in-cpp.md")


@pytest.mark.thorough
@pytest.mark.parametrize("name", GUIDES)
def test_the_commands_of_a_guide_for_authors_work(
    name: str, with_agents: Environment, tmp_path: Path
) -> None:
    """This runs the guide's commands for the new package, with one chapter of the suite."""
    environment = Environment.like(with_agents, tmp_path / "environment")
    (tmp_path / "home").mkdir()
    commands = commands_of(ROOT / "docs" / "how-to" / name)
    parts = ("~/", "./p", "./e", "MY_BACKEND", "SOCKETS")
    commands = [command for command in commands if any(part in command for part in parts)]

    for command in commands:
        if command.startswith("pytest --pyargs"):  # would run the same suite again
            continue
        chapter = " --chapter metrics" if " conformance " in command else ""
        run_in(environment, ROOT, command + chapter, HOME=str(tmp_path / "home"))
    assert any("rpc-backends new MY_BACKEND" in command for command in commands)
