"""The core's interface for packages: its names and version, and the arguments of an init handler."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from core.kit import BACKEND, Children, Site
from rpc_backends_core import spi
from rpc_backends_core._bridge.install_agent import agent_to_install
from rpc_backends_core._hooks import HookWarning
from rpc_backends_core._registry import Registry

ROOT = Path(__file__).parents[2]
MAJOR, MINOR = spi.SPI_VERSION

#: The names that each version of the interface added. Add new names under the version of the next
#: release; `docs/reference/stability.md` says how it is numbered.
ADDED = {
    (1, 0): """
        Agent Backend BackendConflictError BackendDeniedError BackendLoadError COMMITMENTS
        CONTRACT_VERSION Capability ConstructOptionsHandler Group GroupError GroupTimeoutError HookError
        InitBackendHandler LeavingAgent Member NEVER RankMappingMixin Record RefusedError ResolvedBackend
        RpcBackendsError SPI_VERSION Session SettingError SpiVersionError UnknownBackendError
        current_session get_all group_for hookimpl join_group nearest torch_internals wait_for
        worker_info
    """,
    (1, 1): """
        ArgumentError BackendContractError GroupTerm Interface JOIN_TIMEOUT LockError STORE_TIMEOUT
        StoreAccess StoreError at_exit check_arguments check_option_names device_maps interface_of
        interfaces is_loopback parse_boolean processes stored
    """,
}
UPGRADE_CORE = "pip install --upgrade rpc-backends-core"
#: The fields of `Backend` that version (1, 1) added.
FIELDS_ADDED = {"make_transport", "excluded_requirements", "lacks_authentication"}
#: Versions that this core refuses, with parts of the error.
REFUSED = {
    "newer by a major number": (
        (MAJOR + 1, 0),
        (f"it needs version {MAJOR + 1}.0 of", f"has version {MAJOR}.{MINOR}.", UPGRADE_CORE),
    ),
    "newer by a minor number": (
        (MAJOR, MINOR + 1),
        (f"it needs version {MAJOR}.{MINOR + 1} of", UPGRADE_CORE),
    ),
    "older by a major number": (
        (MAJOR - 1, 99),
        (
            f"it was written for version {MAJOR - 1}.99 of",
            f"has version {MAJOR}.{MINOR}.",
            "pip install --upgrade rpc-{kind}-pigeon",
        ),
    ),
    "no pair": ((MAJOR,), ("must be a pair of numbers", f"for example {spi.SPI_VERSION}")),
    "a text": ("1.0", ("spi_version is '1.0'", "must be a pair of numbers")),
    "no numbers": ((True, 0), ("must be a pair of numbers",)),
}
each_refused = pytest.mark.parametrize(
    ("version", "words"), list(REFUSED.values()), ids=list(REFUSED)
)


# --- the names ---------------------------------------------------------------------------------------


def names_until(version: tuple[int, int]) -> set[str]:
    """Return the names that a version of the interface has."""
    return {name for added, text in ADDED.items() if added <= version for name in text.split()}


def test_a_name_is_added_with_a_version() -> None:
    assert set(spi.__all__) == names_until(max(ADDED))
    assert max(ADDED) == spi.SPI_VERSION


def test_the_page_lists_the_names_of_the_newest_version() -> None:
    page = (ROOT / "docs/reference/spi.md").read_text()
    listed = page.partition("if you use\n")[2].partition(", and (1, 0) otherwise")[0]
    names, _, fields = listed.partition("or the fields")
    assert set(re.findall(r"`(\w+)`", names)) == set(ADDED[1, 1].split())
    assert set(re.findall(r"`(\w+)`", fields)) - {"Backend"} == FIELDS_ADDED
    assert {field.name for field in dataclasses.fields(spi.Backend)} >= FIELDS_ADDED
    assert f"{spi.SPI_VERSION} in this release" in page


PACKAGES = [
    *ROOT.glob("plugins/*/src/*/__init__.py"),
    *ROOT.glob("packages/inspect/src/*/__init__.py"),
]
KIT = ROOT / "packages/agents/src/rpc_backends_agents/engine/handlers.py"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_our_packages_declare_the_version_that_they_use(package: Path) -> None:
    source = "\n".join(path.read_text() for path in package.parent.rglob("*.py"))
    needed = (1, 1) if any(re.search(rf"\b{field}=", source) for field in FIELDS_ADDED) else (1, 0)
    imported = {
        alias.name
        for node in ast.walk(ast.parse(source.replace("from __future__ import annotations", "")))
        if isinstance(node, ast.ImportFrom) and node.module == "rpc_backends_core.spi"
        for alias in node.names
    }
    # The engine kit declares the version of the backends that are built on it.
    declares = KIT.read_text() if "engine_backend(" in source else source
    (declared,) = re.findall(r"\bspi_version ?= ?(\(.*?\))", declares)
    version = ast.literal_eval(declared)
    assert version >= needed
    assert imported - {"inspection"} <= names_until(version)


# --- backends ---------------------------------------------------------------------------------------


def declaring(version: object) -> str:
    """Return the source of a backend that declares a version of the interface."""
    return BACKEND.replace(
        "options_type=Options,", f"options_type=Options, spi_version={version!r},"
    )


@each_refused
def test_a_backend_for_another_core_is_refused(
    site: Site, registry: Registry, version: object, words: tuple[str, ...]
) -> None:
    site.add_backend("PIGEON", declaring(version))
    with pytest.raises(spi.BackendLoadError) as caught:
        registry.backend("PIGEON")
    assert isinstance(caught.value.__cause__, spi.SpiVersionError)
    for part in ("'PIGEON'", "rpc-backend-pigeon 1.0", *words):
        assert part.format(kind="backend") in str(caught.value)
    assert "--force-reinstall" not in str(caught.value)  # reinstalling would not help
    assert registry.find("PIGEON").state == "failed"


@pytest.mark.parametrize("version", [None, spi.SPI_VERSION, (MAJOR, 0)])
def test_a_backend_for_this_core_loads(
    site: Site, registry: Registry, version: tuple[int, int] | None
) -> None:
    site.add_backend("PIGEON", declaring(version))
    assert registry.backend("PIGEON").spi_version == version


def test_an_object_with_handlers_may_declare_a_version(site: Site, registry: Registry) -> None:
    source = f"""
        class BACKEND:
            spi_version = {(MAJOR + 1, 0)}
            construct_rpc_backend_options_handler = staticmethod(lambda *args: None)
            init_backend_handler = staticmethod(lambda **kwargs: None)
    """
    site.add_backend("PIGEON", source)
    with pytest.raises(spi.BackendLoadError, match=UPGRADE_CORE):
        registry.backend("PIGEON")


@pytest.mark.parametrize("error", ["SpiVersionError", "RpcBackendsError"])
def test_an_error_that_says_what_to_do_is_quoted(
    error: str, site: Site, registry: Registry
) -> None:
    """For example, rpc-backends-agents refuses a core, or a torch, when a backend imports it."""
    source = f"from rpc_backends_core import spi\nraise spi.{error}('Upgrade the loft')"
    site.add_backend("PIGEON", source)
    with pytest.raises(
        spi.BackendLoadError, match=r"pigeon 1\.0 cannot be used: Upgrade the loft$"
    ):
        registry.backend("PIGEON")


# --- hook packages ----------------------------------------------------------------------------------


@each_refused
def test_a_hook_package_for_another_core_is_skipped(
    site: Site, registry: Registry, version: object, words: tuple[str, ...]
) -> None:
    site.add_hooks("pigeon", hooks_declaring(version))
    with pytest.warns(HookWarning) as warned:
        assert agent_to_install("agent") == "agent"
    (warning,) = warned
    for part in ("rpc-hooks-pigeon 1.0", *words):
        assert part.format(kind="hooks") in str(warning.message)


@each_refused
def test_a_variable_of_a_skipped_hook_package_is_an_error(
    site: Site,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    version: object,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_PIGEON", "1")
    site.add_hooks("pigeon", hooks_declaring(version))
    with pytest.raises(spi.HookError) as caught:
        agent_to_install("agent")
    assert isinstance(caught.value.__cause__, spi.SpiVersionError)
    for part in ("RPC_BACKENDS_PIGEON is set", "rpc-hooks-pigeon 1.0", *words):
        assert part.format(kind="hooks") in str(caught.value)


@pytest.mark.parametrize("version", [None, spi.SPI_VERSION, (MAJOR, 0)])
def test_a_hook_package_for_this_core_is_used(
    site: Site, registry: Registry, version: tuple[int, int] | None
) -> None:
    site.add_hooks("pigeon", hooks_declaring(version))
    assert agent_to_install("agent") == "theirs"


def hooks_declaring(version: object) -> str:
    """Return the source of a hook package that declares a version of the interface."""
    return f"""
        spi_version = {version!r}

        @hookimpl
        def rpc_backends_agent(agent):
            return "theirs"
    """


# --- the group that an init handler is given --------------------------------------------------------

#: A backend whose init handler records its arguments and then raises.
KEEPING = """
    from torch.distributed import rpc
    from rpc_backends_core.spi import Backend

    CALLS = []

    class Stop(Exception):
        pass

    def construct(rpc_timeout, init_method):
        return rpc.RpcBackendOptions(rpc_timeout, init_method)

    def init(store, name, rank, world_size, rpc_backend_options{parameter}):
        CALLS.append(dict(locals()))
        raise Stop

    BACKEND = Backend(construct_rpc_backend_options_handler=construct, init_backend_handler=init)
"""

START = """
import torch.distributed as dist
from torch.distributed import rpc
from rpc_backends_core import _patches as patches, spi
patches.install()
options = rpc.backend_registry.construct_rpc_backend_options("PIGEON", init_method="file://{folder}/s")
import sample_backend_pigeon as pigeon
store = dist.HashStore()
try:
    {call}
except pigeon.Stop:
    (given,) = pigeon.CALLS
group = given.get("group")
assert spi.current_session() is None
"""
INIT_RPC = 'rpc.init_rpc("w", "PIGEON", 0, 1, options)'
OWN_STORE = 'rpc._init_rpc_backend("PIGEON", store, "w", 0, 1, options)'


def started(site: Site, parameter: str, call: str = INIT_RPC) -> str:
    """Return code that starts a backend whose init handler has one more parameter."""
    site.add_backend("PIGEON", KEEPING.format(parameter=parameter))
    return START.format(folder=site.folder, call=call)


def test_a_parameter_group_gets_the_group(site: Site, children: Children) -> None:
    code = started(site, ", group=None") + (
        "assert isinstance(group, spi.Group)\n"
        "assert [member.name for member in group.members] == ['w']\n"
        "assert group.world_size == 1\n"
    )
    children.run(code, site=site)


@pytest.mark.parametrize("parameter", ["", ", **more"])
def test_a_handler_without_the_parameter_gets_none(
    site: Site, children: Children, parameter: str
) -> None:
    code = started(site, parameter) + (
        "assert given.pop('more', {}) == {}\n"
        "assert list(given) == ['store', 'name', 'rank', 'world_size', 'rpc_backend_options']\n"
    )
    children.run(code, site=site)


def test_a_callers_own_store_has_no_group(site: Site, children: Children) -> None:
    code = started(site, ", group='unset'", OWN_STORE) + (
        "assert group is None\nassert given['store'] is store\n"
    )
    children.run(code, site=site)


def test_a_parameter_group_must_have_a_default(site: Site, registry: Registry) -> None:
    """A program that calls ``init_backend`` with torch's signature passes no group."""
    site.add_backend("PIGEON", KEEPING.format(parameter=", group"))
    with pytest.raises(spi.BackendLoadError, match="missing a required argument: 'group'"):
        registry.backend("PIGEON")
