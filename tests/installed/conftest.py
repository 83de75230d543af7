"""Wheels of every distribution, and new environments to install them into.

Made once a run: the wheels, a base environment with torch and the third-party dependencies, and two
environments that no test changes. A test that needs another combination makes its own with
`make_environment`, in about a second.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from support.environments import (
    Environment,
    build_wheels,
    distributions,
    third_party,
    wheels_in,
)
from support.once import made_once
from support.samples import CORE, FAULTY_TENSORPIPE, NEED_AGENTS, TENSORPIPE, MakeEnvironment

ROOT = Path(__file__).parents[2]


#: What `make test` runs of this folder; CI runs all of it for each change.
_IN_EACH_RUN = {
    "test_command.py",
    "test_import_torch.py",
    "test_members.py",
    "test_wheels.py",
    "test_zeromq.py",
}


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.installed)
            if item.path.name not in _IN_EACH_RUN:
                item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build a wheel of each distribution of this repository; return them by name."""
    folder = made_once(tmp_path_factory, "dist", partial(build_wheels, distributions(ROOT)))
    return wheels_in(folder)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Make an environment with all third-party dependencies and no distribution of this project."""
    requirements = third_party(distributions(ROOT))
    return Environment(
        made_once(tmp_path_factory, "base", lambda root: Environment.of_links(root, requirements))
    )


@pytest.fixture(scope="session")
def core_only(
    base: Environment, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Make an environment with the core and no plugin. Tests must not change it."""
    return _environment(tmp_path_factory, "core_only", base, [wheels[CORE]])


@pytest.fixture(scope="session")
def installed(
    base: Environment, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Make an environment with every distribution that needs no C++. Tests must not change it."""
    chosen = [wheel for name, wheel in wheels.items() if name not in NEED_AGENTS]
    return _environment(tmp_path_factory, "installed", base, chosen)


def _environment(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    base: Environment,
    wheels: Iterable[Path],
) -> Environment:
    def make(root: Path) -> None:
        Environment.on(base, root).install(*wheels)

    return Environment(made_once(tmp_path_factory, name, make))


@pytest.fixture
def make_environment(
    core_only: Environment, wheels: dict[str, Path], tmp_path: Path
) -> Iterator[MakeEnvironment]:
    """Yield a function that makes an environment with the core and the given wheels."""
    made: list[Environment] = []

    def make(*packages: Path | str) -> Environment:
        environment = Environment.like(core_only, tmp_path / f"environment-{len(made)}")
        made.append(environment)
        names = list(packages)
        if FAULTY_TENSORPIPE in names and TENSORPIPE not in names:
            names.insert(0, TENSORPIPE)  # FAULTY_TENSORPIPE depends on it
        chosen = [wheels[item] if isinstance(item, str) else item for item in names]
        if chosen:
            environment.install(*chosen)
        return environment

    yield make
    for environment in made:
        shutil.rmtree(environment.root, ignore_errors=True)
