"""What the wheels hold, and that they install beside each other."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from support.environments import Environment

DISTRIBUTIONS = ["rpc-backends-core", "rpc-backend-tensorpipe", "rpc-backend-faulty-tensorpipe"]


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_wheel_ships_its_types_and_its_license(
    wheels: dict[str, Path], distribution: str
) -> None:
    names = names_in(wheels[distribution])

    assert [name for name in names if name.endswith("/py.typed")], names
    assert [name for name in names if name.endswith("LICENSE")], names


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_wheel_holds_one_import_package_and_nothing_else(
    wheels: dict[str, Path], distribution: str
) -> None:
    roots = {name.split("/")[0] for name in names_in(wheels[distribution])}

    assert len([root for root in roots if not root.endswith(".dist-info")]) == 1, roots


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_wheel_has_a_long_description(wheels: dict[str, Path], distribution: str) -> None:
    with zipfile.ZipFile(wheels[distribution]) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        headers, _, description = archive.read(metadata).decode().partition("\n\n")

    assert "Requires-Python: >=3.11" in headers
    assert len(description) > 200, description


def test_the_distributions_satisfy_each_others_dependencies(installed: Environment) -> None:
    assert "No broken requirements" in installed.pip_check().stdout


def test_the_packages_are_imported_from_the_environment_not_from_the_checkout(
    installed: Environment,
) -> None:
    result = installed.run(
        """
        import json
        import rpc_backends_core, rpc_backend_tensorpipe, rpc_backend_faulty_tensorpipe
        packages = rpc_backends_core, rpc_backend_tensorpipe, rpc_backend_faulty_tensorpipe
        print(json.dumps([package.__file__ for package in packages]))
        """
    )

    assert [Path(file).is_relative_to(installed.site_packages) for file in result.json] == [
        True
    ] * 3
