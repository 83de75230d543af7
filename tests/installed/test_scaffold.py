"""A package that `rpc-backends new` has written: built, installed, used, and its tests run untouched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.environments import Environment, build_wheels

pytestmark = pytest.mark.slow

NAME = "CARRIER_PIGEON"

CALL = """
    import os
    from torch.distributed import rpc
    import torch

    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", backend="CARRIER_PIGEON", rank=rank, world_size=2)
    print(rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(2), rank)).tolist())
    print(type(rpc.api._get_current_rpc_agent()).__module__)
    rpc.shutdown()
"""


@pytest.fixture(scope="module")
def package(installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a package with the command."""
    folder = tmp_path_factory.mktemp("new") / "pigeon"
    installed.command("rpc-backends", "new", NAME, "--path", str(folder))
    return folder


@pytest.fixture(scope="module")
def environment(
    installed: Environment,
    package: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Environment]:
    """Make an environment with the new package beside all others."""
    built = build_wheels([package], tmp_path_factory.mktemp("dist"))
    made = Environment.like(installed, tmp_path_factory.mktemp("environment"))
    made.install(*built.values())
    yield made
    shutil.rmtree(made.root, ignore_errors=True)


def test_it_is_a_member_once_it_is_installed(environment: Environment) -> None:
    done = environment.run(
        """
        from torch.distributed import rpc

        print(repr(rpc.BackendType.CARRIER_PIGEON), "CARRIER_PIGEON" in dir(rpc.BackendType))
        print([member.name for member in rpc.BackendType])
        """
    )

    assert "CARRIER_PIGEON" in done.stdout.splitlines()[0]
    assert f"'{NAME}'" in done.stdout.splitlines()[1]
    environment.pip_check()


def test_two_workers_call_each_other(environment: Environment) -> None:
    results = environment.run_workers(CALL)

    answers = [result.stdout.splitlines() for result in results]
    agent = "rpc_backend_carrier_pigeon.handlers"
    assert answers == [["[1.0, 1.0]", agent], ["[2.0, 2.0]", agent]]


def run_its_tests(
    environment: Environment, package: Path, report: Path, *arguments: str
) -> dict[str, Any]:
    """Run the tests that came with the package, which must pass; return the report."""
    environment.command(
        *("python", "-m", "pytest", str(package), "-p", "no:cacheprovider"),
        *("--rpc-report", str(report), *arguments),
        timeout=900,
    )
    found: dict[str, Any] = json.loads(report.with_suffix(".json").read_text())
    assert found["backend"]["name"] == NAME
    return found


def test_its_tests_run_untouched(environment: Environment, package: Path, tmp_path: Path) -> None:
    """Its own tests of its options, and the suite's."""
    found = run_its_tests(
        environment, package, tmp_path / "some", "-k", "TestOptions or test_options"
    )
    assert {result["chapter"] for result in found["results"]} == {"options"}


@pytest.mark.thorough
def test_its_tests_pass_untouched(environment: Environment, package: Path, tmp_path: Path) -> None:
    found = run_its_tests(environment, package, tmp_path / "all")

    assert found["verdict"] == "conforms"
    assert "broken" not in found["capabilities"].values()
    # What works is declared: an author starts from what is true.
    assert "works, not declared" not in found["capabilities"].values(), found["capabilities"]
