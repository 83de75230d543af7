"""What ``import torch`` provides and imports, in new interpreters that run side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from core.kit import Fresh, fresh

PLAIN = """
    import sys, torch
    assert "pluggy" not in sys.modules, "pluggy was imported"
    assert "importlib_metadata" not in sys.modules, "importlib_metadata was imported"
    from torch.distributed import rpc
    from torch.distributed.rpc import BackendType, init_rpc, register_backend
    assert BackendType is rpc.BackendType is rpc.backend_registry.BackendType
    import rpc_backends_core
    assert rpc_backends_core.BackendType is BackendType
    assert rpc_backends_core.is_installed()
    assert init_rpc is rpc.init_rpc and register_backend is rpc.register_backend
    assert BackendType["TENSORPIPE"].name == "TENSORPIPE"
"""
CORE_FIRST = """
    import sys
    import rpc_backends_core
    assert "torch" not in sys.modules
    assert set(rpc_backends_core.__all__) <= set(dir(rpc_backends_core))
    from rpc_backends_core import *
    from torch.distributed import rpc
    assert BackendType is rpc.BackendType
    assert is_installed()
    for name in rpc_backends_core.__all__:
        getattr(rpc_backends_core, name)
"""
SWITCHED_OFF = """
    import torch
    from torch.distributed import rpc
    assert type(rpc.BackendType).__module__ == "enum", type(rpc.BackendType)
    import rpc_backends_core
    assert not rpc_backends_core.is_installed()
    rpc_backends_core.install()
    assert rpc.BackendType is rpc_backends_core.BackendType
    assert "TENSORPIPE" in rpc.BackendType
"""
CASES = {
    "plain": (PLAIN, {}),
    "core first": (CORE_FIRST, {}),
    "switched off": (SWITCHED_OFF, {"RPC_BACKENDS_AUTOLOAD": "0"}),
}


@pytest.fixture(scope="module")
def interpreters() -> Iterator[dict[str, Fresh]]:
    """Start all interpreters; importing torch mostly waits for files."""
    with ExitStack() as children:
        yield {
            name: children.enter_context(fresh(code, env=env))
            for name, (code, env) in CASES.items()
        }


@pytest.mark.slow
def test_import_torch_installs_the_registry(interpreters: dict[str, Fresh]) -> None:
    assert interpreters["plain"].output() == ""


def test_importing_the_core_first_imports_torch_later(
    interpreters: dict[str, Fresh],
) -> None:
    assert interpreters["core first"].output() == ""


def test_autoload_0_keeps_torchs_enum_until_install(
    interpreters: dict[str, Fresh],
) -> None:
    assert interpreters["switched off"].output() == ""
