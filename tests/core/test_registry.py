"""Which backend a name finds, and what a registration in the process changes."""

from __future__ import annotations

from typing import Any

import pytest

from core.kit import Site, calls
from rpc_backends_core._errors import BackendConflictError, UnknownBackendError
from rpc_backends_core._registry import Registry


def construct(rpc_timeout: float, init_method: str, **options: Any) -> Any:
    del rpc_timeout, init_method, options


def init(store: Any, name: Any, rank: Any, world_size: Any, rpc_backend_options: Any) -> Any:
    del store, name, rank, world_size, rpc_backend_options


PAIR = (construct, init)


def registry_of(site: Site) -> Registry:
    return Registry(scan=site.scan)


def states(registry: Registry, name: str) -> list[tuple[str, str]]:
    return [(record.source, record.state) for record in registry.records() if record.name == name]


# --- order of lookup -------------------------------------------------------------------------------


def test_a_plugin_shadows_torchs_own_backend(site: Site) -> None:
    site.add_backend("TENSORPIPE")
    registry = registry_of(site)
    registry.register("TENSORPIPE", PAIR, owner="torch", torch_own=True)
    assert registry.find("TENSORPIPE").source == "plugin"
    assert states(registry, "TENSORPIPE") == [("plugin", "found"), ("torch", "shadowed")]


def test_a_registration_shadows_a_plugin_found_later(site: Site) -> None:
    registry = registry_of(site)
    registry.register("PIGEON", PAIR, owner="program")
    module = site.add_backend("PIGEON")
    registry.refresh()
    assert registry.backend("PIGEON").value == PAIR
    assert states(registry, "PIGEON") == [("process", "registered"), ("plugin", "shadowed")]
    assert calls(module) == []


def test_an_exact_name_wins_over_another_case(site: Site) -> None:
    site.add_backend("PIGEON")
    registry = registry_of(site)
    registry.register("Pigeon", PAIR, owner="program")
    assert registry.find("PIGEON").source == "plugin"
    assert registry.find("Pigeon").source == "process"
    assert registry.find("pigeon").source == "process"


@pytest.mark.parametrize("name", ["PIGEON", "pigeon", "PiGeOn"])
def test_lookup_ignores_case(site: Site, name: str) -> None:
    site.add_backend("PIGEON")
    registry = registry_of(site)
    assert registry.find(name).name == "PIGEON"
    assert registry.knows(name)


@pytest.mark.parametrize("name", [5, None, b"PIGEON", ("PIGEON",)])
def test_only_strings_are_names(site: Site, name: Any) -> None:
    site.add_backend("PIGEON")
    registry = registry_of(site)
    assert registry.knows(name) is False
    with pytest.raises((KeyError, TypeError)):
        registry.find(name)


def test_a_conflict_does_not_fall_back_to_torchs_own(site: Site) -> None:
    site.add("dist-a", backends={"TENSORPIPE": "a:X"})
    site.add("dist-b", backends={"TENSORPIPE": "b:X"})
    registry = registry_of(site)
    registry.register("TENSORPIPE", PAIR, owner="torch", torch_own=True)
    with pytest.raises(BackendConflictError):
        registry.backend("TENSORPIPE")


def test_a_registration_resolves_a_conflict_of_packages(site: Site) -> None:
    site.add("dist-a", backends={"PIGEON": "a:X"})
    site.add("dist-b", backends={"PIGEON": "b:X"})
    registry = registry_of(site)
    registry.register("PIGEON", PAIR, owner="program")
    assert registry.backend("PIGEON").value == PAIR


# --- unknown names ---------------------------------------------------------------------------------


def test_an_unknown_name_is_an_error_with_suggestions(site: Site) -> None:
    site.add_backend("PIGEON")
    site.add_backend("CARRIER")
    with pytest.raises(UnknownBackendError) as caught:
        registry_of(site).find("PIGOEN")
    for part in (
        "'PIGOEN'",
        "Did you mean 'PIGEON'?",
        "CARRIER, PIGEON",
        "refresh()",
        "rpc-backends doctor",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["PIGOEN", "zermoq", "UXC", "gloo", ""])
def test_no_error_tells_to_install_a_package_of_a_stranger(site: Site, name: str) -> None:
    site.add_backend("PIGEON")
    with pytest.raises(UnknownBackendError) as caught:
        registry_of(site).find(name)
    assert "pip install" not in str(caught.value)
    assert "rpc-backend-" not in str(caught.value).replace("rpc-backend-zeromq", "").replace(
        "rpc-backend-ucx", ""
    )


@pytest.mark.parametrize(
    ("name", "package"), [("zeromq", "rpc-backend-zeromq"), ("UCX", "rpc-backend-ucx")]
)
def test_a_missing_backend_of_this_project_names_its_package(
    site: Site, name: str, package: str
) -> None:
    with pytest.raises(UnknownBackendError, match=f"pip install {package}"):
        registry_of(site).find(name)


def test_a_misspelt_backend_of_this_project_names_its_package(site: Site) -> None:
    text = (
        r"Did you mean 'ZEROMQ'\? It is in the package rpc-backend-zeromq, which is not installed\."
    )
    with pytest.raises(UnknownBackendError, match=text):
        registry_of(site).find("ZERMOQ")


def test_unknown_backend_error_has_the_bases_torch_raises(
    site: Site,
) -> None:
    with pytest.raises(UnknownBackendError) as caught:
        registry_of(site).find("NOTHING")
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, AttributeError)
    assert str(caught.value).startswith("no RPC backend 'NOTHING'. Installed and registered: none.")


# --- registering -----------------------------------------------------------------------------------


def test_a_registration_records_its_module(site: Site) -> None:
    record = registry_of(site).register("MINE", PAIR, owner="my.module")
    assert (record.source, record.distribution, record.state) == (
        "process",
        "my.module",
        "registered",
    )


@pytest.mark.parametrize("of", ["process", "plugin", "torch"])
def test_a_taken_name_is_refused_with_torchs_text(site: Site, of: str) -> None:
    registry = registry_of(site)
    if of == "plugin":
        site.add_backend("TAKEN")
    else:
        registry.register("TAKEN", PAIR, owner="somebody", torch_own=of == "torch")
    with pytest.raises(RuntimeError, match=r"^RPC backend TAKEN: already registered$"):
        registry.register("TAKEN", PAIR, owner="me")


def test_torchs_own_may_be_registered_last(site: Site) -> None:
    site.add_backend("ONE")
    registry = registry_of(site)
    registry.register("TWO", PAIR, owner="program")
    for name in ("ONE", "TWO"):
        registry.register(name, PAIR, owner="torch", torch_own=True)
    assert [registry.find(name).source for name in ("ONE", "TWO")] == ["plugin", "process"]


@pytest.mark.parametrize("name", [5, None, ("A", "B")])
def test_registering_another_type_than_a_string_is_refused(site: Site, name: Any) -> None:
    registry = registry_of(site)
    with pytest.raises((TypeError, ValueError)):
        registry.register(name, PAIR, owner="program")
    assert registry.names() == []
    assert registry.knows("ANY") is False


def test_uncallable_handlers_fail_only_when_requested(site: Site) -> None:
    site.add_backend("PIGEON")
    registry = registry_of(site)
    # Torch accepts any handlers and fails when it calls them.
    registry.register("ODD", (None, None), owner="program")
    assert registry.names() == ["ODD", "PIGEON"]
    registry.backend("PIGEON")
    with pytest.raises(TypeError, match="must be callable"):
        registry.backend("ODD")


def test_unregistering_restores_the_shadowed_backend(site: Site) -> None:
    registry = registry_of(site)
    registry.register("PIGEON", PAIR, owner="program")
    site.add_backend("PIGEON")
    registry.refresh()
    registry.unregister("PIGEON")
    assert registry.find("PIGEON").source == "plugin"


def test_an_unregistered_name_can_be_registered_again(site: Site) -> None:
    registry = registry_of(site)
    registry.register("MINE", (print, print), owner="program")
    registry.unregister("MINE")
    assert registry.knows("MINE") is False
    registry.register("MINE", PAIR, owner="program")
    assert registry.backend("MINE").value == PAIR


@pytest.mark.parametrize(
    ("name", "where"), [("PIGEON", "installed"), ("OWN", "torch's own"), ("NOTHING", "unknown")]
)
def test_only_registrations_of_the_process_can_be_unregistered(
    site: Site, name: str, where: str
) -> None:
    site.add_backend("PIGEON")
    registry = registry_of(site)
    registry.register("OWN", PAIR, owner="torch", torch_own=True)
    with pytest.raises(UnknownBackendError, match="cannot be unregistered") as caught:
        registry.unregister(name)
    assert where in str(caught.value)
    assert registry.knows(name) is (name != "NOTHING")


# --- order of names --------------------------------------------------------------------------------


def test_names_keep_their_order(site: Site) -> None:
    site.add_backend("M")
    registry = registry_of(site)
    registry.register("Z", PAIR, owner="program")
    assert registry.names() == ["Z", "M"]
    site.add_backend("A")
    registry.register("B", PAIR, owner="program")
    registry.refresh()
    assert registry.names() == ["Z", "M", "B", "A"]


def test_a_name_registered_again_keeps_its_place(site: Site) -> None:
    registry = registry_of(site)
    for name in ("X", "Y", "Z"):
        registry.register(name, PAIR, owner="program")
    registry.unregister("Y")
    assert registry.names() == ["X", "Z"]
    registry.register("Y", PAIR, owner="program")
    assert registry.names() == ["X", "Y", "Z"]
