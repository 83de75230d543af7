"""Sample packages that several tests install: a working backend, variants of it, and hook packages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import pytest

from support.environments import Environment
from support.packages import write_package

# Names of this project's distributions.
CORE = "rpc-backends-core"
TENSORPIPE = "rpc-backend-tensorpipe"
FAULTY_TENSORPIPE = "rpc-backend-faulty-tensorpipe"
# What `pip install rpc-backends` installs beside the core.
COMMAND = (TENSORPIPE, FAULTY_TENSORPIPE, "rpc-backends-cli", "rpc-backends")
# Distributions that need C++.
NEED_AGENTS = (
    "rpc-backends-agents",
    "rpc-backend-ucx",
    "rpc-backend-zeromq",
    "rpc-backends-faults",
    "rpc-backends-inspect",
    "rpc-backends-guard",
    "rpc-backends-opentelemetry",
)

GROUP = "rpc.backends"
HOOKS_GROUP = "rpc.backends.hooks"
TORCH_GROUP = "torch.backends"


class MakeEnvironment(Protocol):
    """Make an environment with the core and wheels, given as paths or as names of our distributions."""

    def __call__(self, *packages: Path | str) -> Environment:
        """Install the core, then `packages`."""
        ...


# A complete backend: torch's own agent under another name, with its own options type.
WORKING_BACKEND = """
    import torch.distributed.rpc as rpc
    from rpc_backends_core import Backend

    class Options(rpc.TensorPipeRpcBackendOptions):
        pass

    def construct(rpc_timeout, init_method, **kwargs):
        return Options(rpc_timeout=rpc_timeout, init_method=init_method)

    def init(store, name, rank, world_size, rpc_backend_options):
        agent = rpc.TensorPipeAgent(store, name, rank, world_size, rpc_backend_options, {}, [])
        rpc.api._init_rpc_states(agent)
        return agent

    BACKEND = Backend(
        construct_rpc_backend_options_handler=construct,
        init_backend_handler=init,
        options_type=Options,
        description="carries messages by pigeon",
    )
"""

# A backend as it was written before entry points existed: two functions.
BARE_PAIR = """
    import torch.distributed.rpc as rpc

    def construct(rpc_timeout, init_method, **kwargs):
        return rpc.TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method)

    def init(store, name, rank, world_size, rpc_backend_options):
        agent = rpc.TensorPipeAgent(store, name, rank, world_size, rpc_backend_options, {}, [])
        rpc.api._init_rpc_states(agent)
        return agent

    BACKEND = (construct, init)
"""

SLOW_BACKEND = "import time\ntime.sleep(30)\n"


def backend_package(
    folder: Path,
    source: str = WORKING_BACKEND,
    *,
    name: str = "PIGEON",
    distribution: str = "rpc-backend-pigeon",
    version: str = "1.0",
    attribute: str = "BACKEND",
) -> Path:
    """Write a package whose only module is `source`, with an entry point for the backend `name`."""
    module = distribution.replace("-", "_")
    return write_package(
        folder,
        distribution,
        version,
        modules={f"{module}.py": source},
        entry_points={GROUP: {name: f"{module}:{attribute}"}},
    )


def old_style_package(folder: Path, *, name: str = "CARRIER") -> Path:
    """Write a package that registers its backend as torch's documentation describes.

    Its ``torch.backends`` entry point calls torch's ``register_backend`` and rebinds ``BackendType`` in
    ``torch.distributed.rpc``. The module records whether the core's entry point ran before.
    """
    source = f"""
        import sys

        import torch.distributed.rpc as rpc
        from torch.distributed.rpc import backend_registry

        ours_came_first = None

        def construct(rpc_timeout, init_method, **kwargs):
            return rpc.TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method)

        def init(store, name, rank, world_size, rpc_backend_options):
            agent = rpc.TensorPipeAgent(
                store, name, rank, world_size, rpc_backend_options, {{}}, [])
            rpc.api._init_rpc_states(agent)
            return agent

        def register():
            global ours_came_first
            ours_came_first = "rpc_backends_core" in sys.modules
            backend_registry.register_backend({name!r}, construct, init)
            import torch.distributed.rpc
            torch.distributed.rpc.BackendType = backend_registry.BackendType
        """
    return write_package(
        folder,
        "torch-carrier",
        modules={"torch_carrier.py": source},
        entry_points={TORCH_GROUP: {"carrier": "torch_carrier:register"}},
    )


def hooks_package(
    folder: Path, source: str, *, distribution: str = "rpc-tracing", version: str = "1.0"
) -> Path:
    """Write a package whose only module is `source`, which is itself the object with the hooks."""
    module = distribution.replace("-", "_")
    return write_package(
        folder,
        distribution,
        version,
        modules={f"{module}.py": source},
        entry_points={HOOKS_GROUP: {module: module}},
    )


def first_and_thorough(values: Iterable[Any]) -> list[Any]:
    """Return the values as parameters of a test, of which `make test` uses only the first."""
    first, *others = values
    return [first, *(pytest.param(value, marks=pytest.mark.thorough) for value in others)]
