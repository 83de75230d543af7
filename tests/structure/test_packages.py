"""Which packages may import which; imports go only downwards."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rpc_backends_core._bridge import torch_internals
from structure.imports import ROOT, Import, imports, modules

#: What each package may import beside itself: the dependencies of its distribution.
BELOW = {
    "rpc_backends_core": set[str](),
    "rpc_backends_agents": {"rpc_backends_core"},
    "rpc_backend_tensorpipe": {"rpc_backends_core"},
    "rpc_backend_faulty_tensorpipe": {"rpc_backends_core", "rpc_backend_tensorpipe"},
    "rpc_backends_processes": set[str](),
    "rpc_backends_cli": {"rpc_backends_core", "rpc_backends_processes"},
    # Only tests of transports in C++ import the agents. They are installed there, because such a
    # transport is built with their header.
    "rpc_backends_testing": {
        "rpc_backends_core",
        "rpc_backends_processes",
        "rpc_backends_cli",
        "rpc_backends_agents",
    },
    "rpc_backends_bench": {
        "rpc_backends_core",
        "rpc_backends_processes",
        "rpc_backends_cli",
    },
    "rpc_backend_ucx": {"rpc_backends_core", "rpc_backends_agents"},
    "rpc_backend_zeromq": {"rpc_backends_core", "rpc_backends_agents"},
    "rpc_backends_faults": {"rpc_backends_core", "rpc_backends_agents", "rpc_backends_processes"},
    "rpc_backends_guard": {"rpc_backends_core", "rpc_backends_agents"},
    "rpc_backends_opentelemetry": {"rpc_backends_core", "rpc_backends_agents"},
    "rpc_backends_inspect": {
        "rpc_backends_core",
        "rpc_backends_agents",
        "rpc_backends_processes",
        "rpc_backends_cli",
    },
}
#: Modules that other packages may import; all other modules are private to their package.
PUBLIC = {
    "rpc_backends_core": {
        "rpc_backends_core",
        "rpc_backends_core.spi",
        "rpc_backends_core.spi.inspection",
    },
    "rpc_backends_agents": {
        "rpc_backends_agents",
        "rpc_backends_agents.engine",
        *(name for name in modules() if name.startswith("rpc_backends_agents.engine.")),
    },
    "rpc_backend_tensorpipe": {"rpc_backend_tensorpipe.agents"},
    "rpc_backends_cli": {"rpc_backends_cli"},
    "rpc_backends_processes": {
        "rpc_backends_processes",
        "rpc_backends_processes.isolation",
        "rpc_backends_processes.stacks",
    },
    "rpc_backends_testing": {"rpc_backends_testing"},
}
#: Modules that only an installed command or test runner loads, and what else these may import.
TOOLS = {
    "rpc_backend_ucx.check": {"rpc_backends_cli"},
    "rpc_backend_zeromq.check": {"rpc_backends_cli"},
    "rpc_backends_agents.build_command": {"rpc_backends_cli"},
    "rpc_backends_agents.check": {"rpc_backends_cli"},
    "rpc_backends_agents.engine.certificate_check": {"rpc_backends_cli"},
    "rpc_backends_agents.engine.secret_command": {"rpc_backends_cli"},
    "rpc_backends_faults.check": {"rpc_backends_cli"},
    "rpc_backends_faults.command": {"rpc_backends_cli"},
    "rpc_backends_faults.explore.command": {"rpc_backends_cli"},
    "rpc_backends_faults.pytest_plugin": {"rpc_backends_testing"},
    "rpc_backends_guard.check": {"rpc_backends_cli"},
    "rpc_backends_guard.command": {"rpc_backends_cli"},
    "rpc_backends_faults.testing": {"rpc_backends_testing"},
}
#: The folder of each distribution.
FOLDERS = {
    tomllib.loads(file.read_text())["project"]["name"]: file.parent
    for file in (ROOT / "pyproject.toml", *sorted(ROOT.glob("p*/*/pyproject.toml")))
}
#: A private name of torch, as an attribute of one of its RPC modules.
PRIVATE_NAME_OF_TORCH = re.compile(
    r"\b(?:rpc|api|dist_autograd|backend_registry|torch\._C)\.(?:api\.)?_(?!_|testing\b)\w+"
    r"|from torch\._C\b|from torch\.distributed\.rpc\._(?!testing\b)"
)


def between_packages() -> list[Import]:
    return [each for each in imports() if each.packages[0] != each.packages[1]]


def show(wrong: list[Import]) -> str:
    return "\n".join(f"{each.importer} imports {each.imported} {each.name}" for each in wrong)


def test_every_package_has_a_rule() -> None:
    assert {name.partition(".")[0] for name in modules()} == set(BELOW)


def test_a_package_imports_each_package_that_it_may() -> None:
    used = {edge.packages for edge in between_packages()}
    assert {(above, below) for above, allowed in BELOW.items() for below in allowed} <= used


def dependencies(folder: Path) -> set[str]:
    """Return the packages of a distribution and of those that it depends on."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    source = ROOT / "src" if folder == ROOT else folder / "src"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    for requirement in map(Requirement, project["dependencies"]):
        if requirement.name in FOLDERS:
            packages |= dependencies(FOLDERS[requirement.name])
    return packages


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_a_distribution_depends_on_what_its_packages_import(folder: Path) -> None:
    needed = dependencies(folder)
    allowed = {name for package in needed & BELOW.keys() for name in BELOW[package]}
    if "rpc_backends_testing" in needed:
        # Transports in C++ are tested where the agents are installed.
        allowed.discard("rpc_backends_agents")
    assert allowed <= needed


def test_no_package_imports_upwards() -> None:
    wrong = [
        edge
        for edge in between_packages()
        if edge.packages[1] not in BELOW[edge.packages[0]] | TOOLS.get(edge.importer, set())
    ]
    assert not wrong, show(wrong)


def test_packages_import_only_public_modules() -> None:
    wrong = [
        edge
        for edge in between_packages()
        if edge.imported not in PUBLIC.get(edge.packages[1], {edge.packages[1]})
    ]
    assert not wrong, show(wrong)


def test_no_runtime_loads_a_tool() -> None:
    """No module that runs with a backend or hook package imports a module of the command or of tests."""
    wrong = [each for each in imports() if each.imported in TOOLS and each.importer not in TOOLS]
    assert not wrong, show(wrong)


def test_no_plugin_is_named_in_the_core() -> None:
    others = "|".join(set(BELOW) - {"rpc_backends_core"})
    named = {
        f"{name}: {line.strip()}"
        for name, file in modules().items()
        if name.startswith("rpc_backends_core")
        for line in file.read_text().splitlines()
        if re.search(rf"\b({others})\b", line)
    }
    assert not named, "\n".join(sorted(named))


@pytest.mark.parametrize("package", sorted(BELOW))
def test_no_imports_form_a_cycle(package: str) -> None:
    """Neither imports at the top of modules nor later ones form a cycle."""
    uses: dict[str, set[str]] = {name: set() for name in modules() if name.split(".")[0] == package}
    for each in imports():
        if each.importer in uses and each.imported in uses and each.importer != each.imported:
            uses[each.importer].add(each.imported)
    left = dict(uses)
    while free := [name for name, used in left.items() if not used & left.keys()]:
        for name in free:
            del left[name]
    cycle = {name: sorted(used & left.keys()) for name, used in left.items()}
    assert not cycle, "\n".join(f"{name} imports {', '.join(used)}" for name, used in cycle.items())


def test_private_names_of_torch_are_in_two_modules() -> None:
    """The conformance suite and the bench may use private names, because programs use them too.

    The module `_testing`, from which FAULTY_TENSORPIPE comes, is one that programs import.
    """
    allowed = {"rpc_backends_core._bridge.torch_internals", "rpc_backends_core._patches"}
    wrong = {
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for name, file in modules().items()
        if name not in allowed
        and not name.startswith(("rpc_backends_testing", "rpc_backends_bench"))
        for line in file.read_text().splitlines()
        if PRIVATE_NAME_OF_TORCH.search(line) and not line.strip().startswith(("#", '"torch.'))
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_every_private_name_that_a_patch_uses_is_listed() -> None:
    listed = {name.path.rpartition(".")[2] for name in torch_internals.NAMES}
    source = modules()["rpc_backends_core._patches"].read_text()
    used = {
        name
        for node in ast.walk(ast.parse(source))
        for name in (getattr(node, "attr", None), getattr(node, "value", None))
        if isinstance(name, str) and re.fullmatch("_[A-Za-z]\\w+", name)
    }

    # Not torch's: a function of Python, and arguments of torch's options.
    assert used - {"_getframe", "_transports", "_channels"} <= listed


@pytest.mark.parametrize("name", ["rpc_backends_core.spi", "rpc_backends_core.spi.inspection"])
def test_every_public_name_exists_and_is_typed(name: str) -> None:
    """The stub for type checkers lists the same names as the module, and all of them exist."""
    module = importlib.import_module(name)
    stub = ast.parse(modules()[name].with_suffix(".pyi").read_text())
    (typed,) = [
        ast.literal_eval(node.value)
        for node in stub.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert sorted(module.__all__) == sorted(typed)
    for public in module.__all__:
        assert getattr(module, public) is not None


@pytest.mark.parametrize("name", ["rpc_backends_core.spi", "rpc_backends_core.spi.inspection"])
def test_the_reference_names_every_public_name(name: str) -> None:
    page = (ROOT / "docs/reference/spi.md").read_text()
    missing = [
        public for public in importlib.import_module(name).__all__ if f"`{public}`" not in page
    ]
    assert not missing


def test_the_spi_does_not_import_torch() -> None:
    code = (
        "import sys; from rpc_backends_core.spi import nearest; "
        "from rpc_backends_core.spi.inspection import declared, settings; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
