"""Refresh: what was installed, removed or mended since is seen, and what is in use stays."""

from __future__ import annotations

import pytest

from core.kit import Site
from rpc_backends_core._errors import BackendConflictError, BackendDeniedError, BackendLoadError
from rpc_backends_core._registry import Registry


def test_without_refresh_nothing_is_looked_at_again(site: Site) -> None:
    registry = Registry(scan=site.scan)
    assert registry.names() == []
    site.add_backend("PIGEON")
    assert registry.names() == []


def test_a_package_installed_since_is_seen(site: Site) -> None:
    registry = Registry(scan=site.scan)
    assert registry.names() == []
    site.add_backend("PIGEON")
    registry.refresh()
    registry.backend("PIGEON")


def test_a_package_removed_since_is_gone(site: Site) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    registry.backend("PIGEON")
    site.remove("rpc-backend-pigeon")
    registry.refresh()
    assert registry.names() == []


def test_a_loaded_backend_stays_the_object_it_was(site: Site) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    before = registry.backend("PIGEON")
    registry.refresh()
    assert registry.find("PIGEON").state == "loaded"
    assert registry.backend("PIGEON") is before


def test_another_version_of_a_loaded_backend_is_a_new_record(site: Site) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    registry.backend("PIGEON")
    site.remove("rpc-backend-pigeon")
    site.add_backend("PIGEON", version="2.0")
    registry.refresh()
    record = registry.find("PIGEON")
    assert (record.version, record.state) == ("2.0", "found")


def test_what_had_failed_is_tried_anew(site: Site) -> None:
    site.add_backend("PIGEON", "raise OSError('boom')")
    registry = Registry(scan=site.scan)
    with pytest.raises(BackendLoadError):
        registry.backend("PIGEON")
    site.remove("rpc-backend-pigeon")
    site.add_backend("PIGEON")  # the same version, mended
    registry.refresh()
    registry.backend("PIGEON")


def test_what_the_process_registered_is_untouched(site: Site) -> None:
    registry = Registry(scan=site.scan)
    record = registry.register("MINE", (print, print), owner="program")
    registry.refresh()
    assert registry.find("MINE") is record


@pytest.mark.parametrize("second", ["aaa", "zzz"])
def test_a_second_package_that_claims_a_loaded_name_is_a_conflict(site: Site, second: str) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    registry.backend("PIGEON")
    site.add(second, backends={"PIGEON": "other:X"})
    registry.refresh()
    with pytest.raises(BackendConflictError, match="rpc-backend-pigeon"):
        registry.backend("PIGEON")


def test_a_loaded_backend_that_is_denied_since_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    registry.backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DENY", "PIGEON")
    registry.refresh()
    with pytest.raises(BackendDeniedError):
        registry.backend("PIGEON")
    assert registry.names() == []


def test_a_loaded_backend_whose_package_another_one_replaced_is_told_under_the_new_one(
    site: Site,
) -> None:
    module = site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    registry.backend("PIGEON")
    site.remove("rpc-backend-pigeon")
    site.add("fork-of-pigeon", "1.0", backends={"PIGEON": f"{module}:BACKEND"})
    registry.refresh()
    assert registry.find("PIGEON").distribution == "fork-of-pigeon"


def test_a_refresh_that_fails_leaves_what_is_loaded_as_it_was(
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
