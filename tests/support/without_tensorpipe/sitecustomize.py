"""Makes torch look as if it was built with ``USE_TENSORPIPE=0``, if this folder is in ``PYTHONPATH``.

Python imports a module of this name when it starts, in every child process too. This one removes the
names that such a torch lacks, while ``torch.distributed.rpc`` is being imported. Without TensorPipe,
torch's C++ does not bind two names, and leaves the module of FAULTY_TENSORPIPE empty.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any

RPC = "torch.distributed.rpc"
NAMES = ("_TensorPipeRpcBackendOptionsBase", "TensorPipeAgent")


class _Loader(importlib.abc.Loader):
    """Loads ``torch.distributed.rpc`` with two functions of torch's C++ changed."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        c: Any = sys.modules["torch._C"]
        init = c._rpc_init

        def rpc_init() -> Any:
            result = init()
            for name in NAMES:
                delattr(c._distributed_rpc, name)
            return result

        def faulty_agent_init() -> bool:
            empty = types.ModuleType("torch._C._distributed_rpc_testing")
            c._distributed_rpc_testing = sys.modules[empty.__name__] = empty
            return True

        c._rpc_init, c._faulty_agent_init = rpc_init, faulty_agent_init
        self._loader.exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``torch.distributed.rpc`` as the other finders do, and changes its loader."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if fullname != RPC:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
