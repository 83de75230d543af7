"""Fixtures of the core's tests. In this folder, every warning is an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.kit import Children, Site
from rpc_backends_core import _hooks
from rpc_backends_core._group import waiting
from rpc_backends_core._process_state import STATE
from rpc_backends_core._registry import Registry


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("error"))


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset this project's variables, so that the shell's settings do not reach the tests."""
    for name in list(os.environ):
        if name.startswith("RPC_BACKENDS_"):
            monkeypatch.delenv(name)


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waits for a store check it every tenth of a second instead of every second."""
    monkeypatch.setattr(waiting, "_SLICE", 0.1)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Make an empty folder on ``sys.path`` to install packages into."""
    made = Site(tmp_path / "site")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(made.folder))
    yield made
    made.forget_modules()


@pytest.fixture
def registry(site: Site, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Give this process a registry that sees only the packages in `site`."""
    made = Registry(scan=site.scan)
    made.on_loaded = lambda record: _hooks.notify(made, record)
    monkeypatch.setattr(STATE, "registry", made)
    monkeypatch.setattr(STATE, "hooks", None)
    return made


@pytest.fixture
def with_torchs(registry: Registry) -> Registry:
    """Register torch's own TENSORPIPE in the registry of :func:`registry`."""
    from torch.distributed.rpc import backend_registry

    handlers: Any = (
        backend_registry._tensorpipe_construct_rpc_backend_options_handler,
        backend_registry._tensorpipe_init_backend_handler,
    )
    registry.register("TENSORPIPE", handlers, owner="torch", torch_own=True, look=False)
    return registry


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    """Return processes that have imported torch and not installed the bridge."""
    made = Children()
    yield made
    made.close()


@pytest.fixture
def broken_backend(site: Site) -> Callable[[str, str], None]:
    """Return a function that installs a backend whose module runs a statement that raises."""

    def add(name: str, statement: str) -> None:
        site.add_backend(name, f"import sys\n{statement}\n")

    return add
