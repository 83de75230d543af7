"""Discovery finds what installed packages declare, even if a package is broken."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from importlib_metadata import EntryPoint

from core.kit import Site, calls
from rpc_backends_core import _discovery as discovery
from rpc_backends_core._errors import (
    BackendConflictError,
    BackendLoadError,
    UnknownBackendError,
)
from rpc_backends_core._record import Record
from rpc_backends_core._registry import Registry


def entry(name: str, value: str = "module:BACKEND", group: str = "rpc.backends") -> EntryPoint:
    return EntryPoint(name=name, value=value, group=group)


def records(site: Site) -> list[Record]:
    return Registry(scan=site.scan).records()


def found_as(site: Site, name: str) -> Record:
    (record,) = [record for record in records(site) if record.name == name]
    return record


# --- entry points ----------------------------------------------------------------------------------


def test_select_takes_only_the_two_groups() -> None:
    selected = discovery.select(
        [
            entry("A"),
            entry("B", group="rpc.backends.hooks"),
            entry("C", group="torch.backends"),
            entry("D", group="rpc.backends.other"),
            entry("E", group="RPC.backends"),
        ]
    )
    assert [backend.name for backend in selected.backends] == ["A"]
    assert [hook.name for hook in selected.hooks] == ["B"]


def test_select_sorts_the_entry_points() -> None:
    entries = [entry("B"), entry("A", "two:X"), entry("A", "one:X"), entry("a")]
    orders = {
        tuple((backend.name, backend.value) for backend in discovery.select(each).backends)
        for each in itertools.permutations(entries)
    }
    assert orders == {
        (("A", "one:X"), ("A", "two:X"), ("B", "module:BACKEND"), ("a", "module:BACKEND"))
    }


def test_select_counts_equal_entry_points_once() -> None:
    assert len(discovery.select([entry("A"), entry("A")]).backends) == 1


# --- distributions on a path -----------------------------------------------------------------------


def test_a_record_shows_its_distribution_and_version(site: Site) -> None:
    site.add("rpc-backend-pigeon", "2.5", backends={"PIGEON": "pigeon.main:BACKEND"})
    assert found_as(site, "PIGEON") == Record(
        "PIGEON", "plugin", "rpc-backend-pigeon", "2.5", "pigeon.main:BACKEND", "found"
    )


def test_discovery_imports_no_plugin(site: Site) -> None:
    module = site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    assert registry.names() == ["PIGEON"]
    assert registry.knows("pigeon")
    registry.records()
    assert module not in sys.modules


def everything_installed(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> discovery.Scan:
    """Scan as in production, with `folders` first on ``sys.path``."""
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])
    return discovery.scan()


def test_the_first_copy_of_a_distribution_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second copy spells the name differently; both spellings are the same distribution.
    copies = [Site(tmp_path / "first"), Site(tmp_path / "second")]
    copies[0].add("rpc-backend-pigeon", "2.0", backends={"PIGEON": "pigeon:BACKEND"})
    copies[1].add("RPC_Backend.Pigeon", "1.0", backends={"PIGEON": "pigeon:BACKEND"})
    scan = everything_installed(monkeypatch, *(copy.folder for copy in copies))
    (backend,) = [backend for backend in scan.backends if backend.name == "PIGEON"]
    assert (backend.distribution, backend.version) == ("rpc-backend-pigeon", "2.0")


def test_results_do_not_depend_on_path_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Site(tmp_path / "one"), Site(tmp_path / "two")
    first.add("dist-b", backends={"B": "b:X", "SAME": "b:S"}, hooks={"h": "b"})
    second.add("dist-a", backends={"A": "a:X", "SAME": "a:S"}, hooks={"h": "a"})
    folders = [first.folder, second.folder]
    with monkeypatch.context() as patch:
        forwards = everything_installed(patch, *folders)
    with monkeypatch.context() as patch:
        backwards = everything_installed(patch, *reversed(folders))
    assert forwards == backwards
    assert [f.distribution for f in forwards.backends if f.name == "SAME"] == ["dist-a", "dist-b"]


@pytest.mark.parametrize(
    "metadata",
    [None, b"\n", b"Metadata-Version: 2.1\n", b"\xff\xfe\x00not text at all"],
    ids=["missing", "empty", "without a name", "not text"],
)
def test_broken_metadata_hides_no_backend(site: Site, metadata: bytes | None) -> None:
    site.add_backend("PIGEON")
    site.add(
        "rpc-backend-odd",
        backends={"ODD": "sample_backend_pigeon:BACKEND"},
        metadata=metadata,
    )
    registry = Registry(scan=site.scan)
    assert registry.names() == ["ODD", "PIGEON"]
    assert registry.backend("ODD") is registry.backend("PIGEON")


def test_errors_invent_no_name_for_broken_metadata(site: Site) -> None:
    site.add("rpc-backend-odd", backends={"ODD": "no_such_module:X"}, metadata=b"\n")
    with pytest.raises(BackendLoadError) as caught:
        Registry(scan=site.scan).backend("ODD")
    assert "None" not in str(caught.value)


# --- unreadable entry points, and misspelt groups ---------------------------------------------------


@pytest.mark.parametrize("content", [b"[rpc.backends]\nODD\n", b"[rpc.backends]\nODD\xff = x:y\n"])
def test_unreadable_entry_points_hide_no_other_backend(site: Site, content: bytes) -> None:
    site.add_backend("PIGEON")
    (site.add("rpc-backend-odd") / "entry_points.txt").write_bytes(content)
    registry = Registry(scan=discovery.scan)
    assert "PIGEON" in registry.names()
    with pytest.raises(UnknownBackendError) as caught:
        registry.find("ODD")
    for part in ("the entry points of rpc-backend-odd 1.0 cannot be read", "pip uninstall"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("group", "meant"),
    [
        ("rpc.backend", discovery.BACKENDS_GROUP),
        ("rpc_backends", discovery.BACKENDS_GROUP),
        ("rpc-backends", discovery.BACKENDS_GROUP),
        ("RPC.Backends", discovery.BACKENDS_GROUP),
        ("rcp.backends", discovery.BACKENDS_GROUP),
        ("rpc.backends.hook", discovery.HOOKS_GROUP),
        ("rpc.backend.hooks", discovery.HOOKS_GROUP),
        ("rpc.backends.command", discovery.COMMANDS_GROUP),
        ("rpc.backends.check", discovery.CHECKS_GROUP),
    ],
)
def test_a_misspelt_entry_point_group_gets_a_suggestion(group: str, meant: str) -> None:
    entry_point = entry("PIGEON", group=group)
    ((suggestion, record),) = discovery.misspelt_groups([entry_point])
    assert (suggestion, record.name) == (meant, "PIGEON")
    assert f"{group!r}, which nothing reads; did you mean {meant!r}?" in (
        discovery.misspelt_group_text(suggestion, record)
    )


@pytest.mark.parametrize(
    "group",
    ["rpc.backends", "torch.backends", "xarray.backends", "keyring.backends", "console_scripts"],
)
def test_a_group_of_others_is_not_misspelt(group: str) -> None:
    assert discovery.misspelt_groups([entry("PIGEON", group=group)]) == []


def test_an_unknown_backend_in_a_misspelt_group_is_explained(site: Site) -> None:
    info = site.add("rpc-backend-pigeon")
    (info / "entry_points.txt").write_text("[rpc.backend]\nPIGEON = pigeon:BACKEND\n")
    registry = Registry(scan=site.scan)
    with pytest.raises(UnknownBackendError, match=r"rpc-backend-pigeon 1\.0 declares 'PIGEON'"):
        registry.find("pigeon")
    site.remove("rpc-backend-pigeon")
    registry.refresh()
    with pytest.raises(UnknownBackendError, match=r"no RPC backend 'pigeon'\. Installed"):
        registry.find("pigeon")


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["my-backend", "2fast", "with space", "a.b", "_PRIVATE", "__len__"]
)
def test_an_invalid_name_is_recorded_and_hides_no_other(site: Site, name: str) -> None:
    module = site.add_backend("PIGEON")
    site.add("rpc-backend-odd", "3.1", backends={name: f"{module}:BACKEND"})
    odd = found_as(site, name)
    assert (odd.state, odd.distribution) == ("invalid", "rpc-backend-odd")
    assert repr(name) in str(odd.error)
    assert "rpc-backend-odd 3.1" in str(odd.error)
    registry = Registry(scan=site.scan)
    assert registry.names() == ["PIGEON"]
    assert calls(module) == []


def test_looking_up_an_invalid_name_gives_the_reason(site: Site) -> None:
    site.add("rpc-backend-odd", backends={"my-backend": "odd:X"})
    with pytest.raises(KeyError, match="must be a Python identifier"):
        Registry(scan=site.scan).find("my-backend")


# --- conflicts -------------------------------------------------------------------------------------


def test_a_conflict_names_both_packages_and_a_remedy(site: Site) -> None:
    site.add("dist-a", "1.1", backends={"PIGEON": "a:X"})
    site.add("dist-b", "2.2", backends={"PIGEON": "b:X"})
    with pytest.raises(BackendConflictError) as caught:
        Registry(scan=site.scan).find("PIGEON")
    for part in (
        "'PIGEON'",
        "dist-a 1.1 (a:X)",
        "dist-b 2.2 (b:X)",
        "pip uninstall dist-a or dist-b",
    ):
        assert part in str(caught.value)


def test_packages_with_equal_values_conflict_too(site: Site) -> None:
    site.add("dist-a", backends={"PIGEON": "same:X"})
    site.add("dist-b", backends={"PIGEON": "same:X"})
    assert [record.state for record in records(site)] == ["conflict", "conflict"]


def test_a_conflict_has_a_record_for_every_claimant(site: Site) -> None:
    for distribution in ("dist-a", "dist-b", "dist-c"):
        site.add(distribution, backends={"PIGEON": "x:X"})
    claimants = records(site)
    assert {record.state for record in claimants} == {"conflict"}
    assert sorted(str(record.distribution) for record in claimants) == [
        "dist-a",
        "dist-b",
        "dist-c",
    ]


def test_names_that_differ_only_in_case_conflict(site: Site) -> None:
    site.add("dist-a", backends={"PIGEON": "a:X"})
    site.add("dist-b", backends={"Pigeon": "b:X"})
    for name in ("PIGEON", "Pigeon", "pigeon"):
        with pytest.raises(BackendConflictError, match=r"dist-a.*dist-b"):
            Registry(scan=site.scan).find(name)
    assert {record.name for record in records(site)} == {"PIGEON", "Pigeon"}


def test_one_package_with_two_values_conflicts_with_itself(
    site: Site,
) -> None:
    site.add("dist-a", backends=[("PIGEON", "a:ONE"), ("PIGEON", "a:TWO")])
    with pytest.raises(BackendConflictError, match=r"a:ONE.*a:TWO") as caught:
        Registry(scan=site.scan).find("PIGEON")
    # There is only one package: the advice to uninstall all but one would not help.
    assert "more than one installed package" not in str(caught.value)


def test_one_package_may_declare_a_backend_twice(site: Site) -> None:
    module = site.add_backend("PIGEON")
    site.remove("rpc-backend-pigeon")
    site.add("dist-a", backends=[("PIGEON", f"{module}:BACKEND")] * 2)
    assert Registry(scan=site.scan).backend("PIGEON").description == ""


def test_a_conflict_leaves_other_names_usable(site: Site) -> None:
    site.add_backend("OTHER")
    site.add("dist-a", backends={"PIGEON": "a:X"})
    site.add("dist-b", backends={"PIGEON": "b:X"})
    registry = Registry(scan=site.scan)
    assert registry.names() == ["OTHER"]
    assert registry.knows("PIGEON") is False
    registry.backend("OTHER")
