"""Wheels of every distribution, and fresh environments to install them into.

Made once a session: the wheels, a base environment with torch and the third-party dependencies
(twenty seconds), and two environments that no test changes. A test that needs another mixture makes
its own with `make_environment`, in about a second.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.environments import Environment, base_requirements, build_wheels, distributions
from support.samples import CORE, MakeEnvironment

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.installed)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build a wheel of each distribution of this repository, by the distribution's name."""
    return build_wheels(distributions(ROOT), tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Make an environment with torch and what the core depends on, and nothing of ours."""
    root = tmp_path_factory.mktemp("base")
    yield Environment.create(root, base_requirements(ROOT))
    shutil.rmtree(root, ignore_errors=True)  # pytest would keep the last three: gigabytes


@pytest.fixture(scope="session")
def core_only(
    base: Environment, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Make an environment with the core and no plugin. Not to be changed."""
    environment = Environment.on(base, tmp_path_factory.mktemp("core_only"))
    environment.install(wheels[CORE])
    return environment


@pytest.fixture(scope="session")
def installed(
    base: Environment, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Make an environment with every distribution of the repository. Not to be changed."""
    environment = Environment.on(base, tmp_path_factory.mktemp("installed"))
    environment.install(*wheels.values())
    return environment


@pytest.fixture
def make_environment(
    base: Environment, wheels: dict[str, Path], tmp_path: Path
) -> Iterator[MakeEnvironment]:
    """Give a function that makes an environment with the core and the wheels it is given."""
    made: list[Environment] = []

    def make(*packages: Path | str) -> Environment:
        environment = Environment.on(base, tmp_path / f"environment-{len(made)}")
        made.append(environment)
        chosen = [wheels[item] if isinstance(item, str) else item for item in packages]
        environment.install(wheels[CORE], *chosen)
        return environment

    yield make
    for environment in made:
        shutil.rmtree(environment.root, ignore_errors=True)
