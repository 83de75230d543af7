"""Refresh sees packages that were installed, removed or fixed, and keeps loaded backends."""

from __future__ import annotations

import pytest

from core.kit import Site
from rpc_backends_core._errors import BackendConflictError, BackendDeniedError, BackendLoadError
from rpc_backends_core._registry import Registry


def test_without_refresh_nothing_is_scanned_again(site: Site) -> None:
    registry = Registry(scan=site.scan)
    assert registry.names() == []
    site.add_backend("PIGEON")
    assert registry.names() == []


def test_a_new_package_is_found(site: Site) -> None:
    registry = Registry(scan=site.scan)
    assert registry.names() == []
    site.add_backend("PIGEON")
    registry.refresh()
    registry.backend("PIGEON")


def test_a_removed_package_is_gone(site: Site) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    registry.backend("PIGEON")
    site.remove("rpc-backend-pigeon")
    registry.refresh()
    assert registry.names() == []


def test_a_loaded_backend_stays_the_same_object(site: Site) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    before = registry.backend("PIGEON")
    registry.refresh()
    assert registry.find("PIGEON").state == "loaded"
    assert registry.backend("PIGEON") is before


def test_a_new_version_gets_a_new_record(site: Site) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    registry.backend("PIGEON")
    site.remove("rpc-backend-pigeon")
    site.add_backend("PIGEON", version="2.0")
    registry.refresh()
    record = registry.find("PIGEON")
    assert (record.version, record.state) == ("2.0", "found")


def test_a_failed_backend_is_tried_again(site: Site) -> None:
    site.add_backend("PIGEON", "raise OSError('boom')")
    registry = Registry(scan=site.scan)
    with pytest.raises(BackendLoadError):
        registry.backend("PIGEON")
    site.remove("rpc-backend-pigeon")
    site.add_backend("PIGEON")  # the same version, fixed
    registry.refresh()
    registry.backend("PIGEON")


def test_registrations_of_the_process_are_kept(site: Site) -> None:
    registry = Registry(scan=site.scan)
    record = registry.register("MINE", (print, print), owner="program")
    registry.refresh()
    assert registry.find("MINE") is record


@pytest.mark.parametrize("second", ["aaa", "zzz"])
def test_a_second_package_with_a_loaded_name_conflicts(site: Site, second: str) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    registry.backend("PIGEON")
    site.add(second, backends={"PIGEON": "other:X"})
    registry.refresh()
    with pytest.raises(BackendConflictError, match="rpc-backend-pigeon"):
        registry.backend("PIGEON")


def test_a_loaded_backend_can_be_denied(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    registry.backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DENY", "PIGEON")
    registry.refresh()
    with pytest.raises(BackendDeniedError):
        registry.backend("PIGEON")
    assert registry.names() == []


def test_a_loaded_backend_is_recorded_under_its_new_package(
    site: Site,
) -> None:
    module = site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    registry.backend("PIGEON")
    site.remove("rpc-backend-pigeon")
    site.add("fork-of-pigeon", "1.0", backends={"PIGEON": f"{module}:BACKEND"})
    registry.refresh()
    assert registry.find("PIGEON").distribution == "fork-of-pigeon"


def test_a_failed_refresh_keeps_loaded_backends(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    before = registry.load("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DENY", "TYPO")
    with pytest.raises(ValueError, match="TYPO"):
        registry.refresh()
    monkeypatch.delenv("RPC_BACKENDS_DENY")
    registry.refresh()
    assert registry.find("PIGEON") is before
