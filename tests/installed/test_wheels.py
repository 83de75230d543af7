"""What the wheels contain, and that they can be installed together."""

from __future__ import annotations

import sysconfig
import tarfile
import zipfile
from importlib import metadata
from itertools import islice
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rpc_backends_agents import sources
from support.environments import (
    Environment,
    build_sdist,
    build_wheels,
    distributions,
    read_project,
    unpack,
)
from support.samples import COMMAND, CORE, MakeEnvironment, first_and_thorough
from wheelhouse.trial import WheelTrial

ROOT = Path(__file__).parents[2]
FOLDERS = {read_project(folder)["name"]: folder for folder in distributions(ROOT)}
DISTRIBUTIONS = list(FOLDERS)
#: The import packages of each distribution; ``rpc-backends`` has only dependencies.
PACKAGES = {name: {name.replace("-", "_")} for name in DISTRIBUTIONS if name != "rpc-backends"}
PACKAGES["rpc-backends-cli"].add("rpc_backends_processes")
NATIVE = [name for name, folder in FOLDERS.items() if (folder / "CMakeLists.txt").exists()]


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.parametrize("distribution", sorted(PACKAGES))
def test_a_wheel_ships_its_types_and_its_license(
    wheels: dict[str, Path], distribution: str
) -> None:
    names = names_in(wheels[distribution])

    assert [name for name in names if name.endswith("/py.typed")], names
    assert [name for name in names if name.endswith("LICENSE")], names


@pytest.mark.parametrize("distribution", ["rpc-backend-zeromq", "rpc-backend-ucx"])
def test_a_wheel_with_openssl_ships_its_license(wheels: dict[str, Path], distribution: str) -> None:
    names = names_in(wheels[distribution])

    assert [name for name in names if name.endswith("licenses/LICENSE.openssl")], names


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_wheel_contains_only_its_import_packages(
    wheels: dict[str, Path], distribution: str
) -> None:
    roots = {name.split("/")[0] for name in names_in(wheels[distribution])}
    packages = {root for root in roots if not root.endswith(".dist-info")}

    assert packages == PACKAGES.get(distribution, set())


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_wheel_has_a_long_description(wheels: dict[str, Path], distribution: str) -> None:
    with zipfile.ZipFile(wheels[distribution]) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        headers, _, description = archive.read(metadata).decode().partition("\n\n")

    assert "Requires-Python: >=3.11" in headers
    assert len(description) > 200, description


@pytest.mark.parametrize(
    "distribution",
    first_and_thorough(NATIVE),
)
def test_an_sdist_contains_all_sources(distribution: str, tmp_path: Path) -> None:
    folder = FOLDERS[distribution]
    files = [
        *folder.glob("csrc/**/*.c*"),
        *folder.glob("csrc/**/*.h"),
        *folder.glob("src/*/include/**/*.*"),
    ]
    with tarfile.open(build_sdist(folder, tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {str(path.relative_to(folder)) for path in files} <= names


def test_the_wheel_of_the_agents_has_a_build_for_torch(wheels: dict[str, Path]) -> None:
    minor = ".".join(metadata.version("torch").split(".")[:2])
    names = names_in(wheels["rpc-backends-agents"])

    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert f"rpc_backends_agents/builds/torch-{minor}/_C{suffix}" in names


def test_the_wheel_of_the_agents_has_its_sources(wheels: dict[str, Path]) -> None:
    folder = FOLDERS["rpc-backends-agents"]
    files = [folder / "CMakeLists.txt", *folder.glob("*.cmake"), *folder.glob("csrc/**/*.*")]
    carried = {f"rpc_backends_agents/cpp/{path.relative_to(folder)}" for path in files}

    assert carried <= set(names_in(wheels["rpc-backends-agents"]))


def test_the_wheel_of_the_agents_has_the_hash_of_its_sources(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["rpc-backends-agents"]) as archive:
        stored = archive.read("rpc_backends_agents/cpp/fingerprint.txt").decode()

    assert stored == sources.compute_fingerprint()


@pytest.mark.parametrize("distribution", NATIVE)
def test_no_distribution_limits_torch_from_above(distribution: str) -> None:
    """Otherwise pip would replace a newer torch, or a nightly one."""
    requirements = map(Requirement, read_project(FOLDERS[distribution])["dependencies"])
    (torch,) = (requirement for requirement in requirements if requirement.name == "torch")

    assert str(torch.specifier) == ">=2.6"


@pytest.fixture
def trial(base: Environment, wheels: dict[str, Path], tmp_path: Path) -> WheelTrial:
    """Return a trial of the wheels; `make test-wheels` does the same for every torch, with the index."""
    environment = Environment.on(base, tmp_path / "environment")

    def install(*_requirements: str) -> None:
        environment.install(*wheels.values())

    folder = wheels["rpc-backends-agents"].parent
    return WheelTrial(environment.python, folder, tmp_path / "trial", install)


def test_the_engines_work_without_a_compiler(trial: WheelTrial) -> None:
    """The first call, the quickstart and doctor."""
    assert len(list(islice(trial.run(), 3))) == 3


@pytest.mark.thorough
def test_the_engines_conform_without_a_compiler(trial: WheelTrial) -> None:
    assert len(list(trial.run())) == 4


@pytest.mark.thorough
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_wheel_built_from_an_sdist_is_the_same(
    wheels: dict[str, Path], distribution: str, tmp_path: Path
) -> None:
    """A package index gets both. C++ is compiled here, as on a user's machine."""
    sdist = build_sdist(FOLDERS[distribution], tmp_path)
    unpack(sdist, tmp_path)
    (built,) = build_wheels([tmp_path / sdist.name.removesuffix(".tar.gz")], tmp_path).values()
    assert sorted(names_in(built)) == sorted(names_in(wheels[distribution]))


def required(name: str) -> set[str]:
    """Return the distributions of this repository that a distribution installs, itself included."""
    needed, waiting = set(), [name]
    while waiting:
        needed.add(name := waiting.pop())
        project = read_project(FOLDERS[name])
        requirements = map(Requirement, project.get("dependencies", []))
        waiting += [requirement.name for requirement in requirements if requirement.name in FOLDERS]
    return needed


def test_what_users_install_has_neither_suite_nor_bench() -> None:
    assert required("rpc-backends") == {CORE, *COMMAND}


@pytest.mark.parametrize(
    "tool",
    ["rpc-backends-cli", "rpc-backends-inspect", "rpc-backends-bench", "rpc-backends-testing"],
)
def test_a_tool_installs_no_backend(tool: str) -> None:
    assert [name for name in required(tool) if name.startswith("rpc-backend-")] == []


def test_an_extra_of_what_users_install_names_each_other_distribution() -> None:
    extras = read_project(FOLDERS["rpc-backends"])["optional-dependencies"]
    (everything,) = map(Requirement, extras.pop("all"))
    named = {Requirement(text).name for texts in extras.values() for text in texts}

    assert named | {CORE, *COMMAND} == set(FOLDERS) - {"rpc-backends-agents"}
    assert (everything.name, everything.extras) == ("rpc-backends", set(extras))


def test_the_debugger_leaves_torchs_own_tensorpipe(
    make_environment: MakeEnvironment,
) -> None:
    tools = ("rpc-backends-cli", "rpc-backends-agents", "rpc-backends-inspect")
    environment = make_environment(*tools)

    ran = environment.run(
        """
        import json
        from torch.distributed import rpc
        import rpc_backends_core
        assert rpc.BackendType.TENSORPIPE
        print(json.dumps(rpc_backends_core.record("TENSORPIPE").distribution))
        """
    )

    assert ran.json == "torch"


def test_the_distributions_satisfy_each_others_dependencies(installed: Environment) -> None:
    assert "No broken requirements" in installed.pip_check().stdout


def test_packages_are_imported_from_the_environment(
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
