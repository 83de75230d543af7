"""The arguments of init handlers: one check for all backends."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.distributed import rpc

from rpc_backends_core.spi import ArgumentError

BACKENDS = ("TENSORPIPE", "FAULTY_TENSORPIPE", "ZEROMQ", "UCX")


@pytest.mark.parametrize("backend", BACKENDS)
def test_options_of_another_backend_are_refused_without_a_note(backend: str) -> None:
    options = rpc.RpcBackendOptions()
    with pytest.raises(
        ArgumentError, match=f"^{backend} got rpc_backend_options of type "
    ) as raised:
        rpc.backend_registry.init_backend(
            rpc.BackendType[backend],
            store=dist.HashStore(),
            name="worker0",
            rank=0,
            world_size=1,
            rpc_backend_options=options,
        )
    assert "Options" in str(raised.value)
    assert not getattr(raised.value, "__notes__", None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_store_is_refused_without_a_note(backend: str) -> None:
    member = rpc.BackendType[backend]
    options = rpc.backend_registry.construct_rpc_backend_options(member)
    with pytest.raises(
        ArgumentError, match=f"^{backend} got the store 'none' of type str"
    ) as raised:
        rpc.backend_registry.init_backend(
            member,
            store="none",
            name="worker0",
            rank=0,
            world_size=1,
            rpc_backend_options=options,
        )
    assert not getattr(raised.value, "__notes__", None)
