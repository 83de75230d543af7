"""The packages that several tests install: a backend that works, and its relatives."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from support.environments import Environment
from support.packages import write_package

# Our distributions, by the names they are installed under.
CORE = "rpc-backends-core"
TENSORPIPE = "rpc-backend-tensorpipe"
FAULTY_TENSORPIPE = "rpc-backend-faulty-tensorpipe"
# What `pip install rpc-backends` gives, beside the core.
COMMAND = (TENSORPIPE, FAULTY_TENSORPIPE, "rpc-backends")
# What needs C++.
NEED_AGENTS = ("rpc-backends-agents", "rpc-backend-zeromq", "rpc-backends-faults")

GROUP = "rpc.backends"
HOOKS_GROUP = "rpc.backends.hooks"
TORCH_GROUP = "torch.backends"


class MakeEnvironment(Protocol):
    """Make an environment with the core and wheels: paths, or names of our distributions."""

    def __call__(self, *packages: Path | str) -> Environment:
        """Install the core, then `packages`."""
        ...


# A complete backend: torch's own agent under another name, with an options type of its own.
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

# The same the way it was written before there were entry points: two functions.
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
    """Write a package whose one module is `source` and declares it as the backend `name`."""
    module = distribution.replace("-", "_")
    return write_package(
        folder,
        distribution,
        version,
        modules={f"{module}.py": source},
        entry_points={GROUP: {name: f"{module}:{attribute}"}},
    )


def old_style_package(folder: Path, *, name: str = "CARRIER") -> Path:
    """Write a package that registers the way torch's own documentation of today makes authors do.

    Its ``torch.backends`` entry point calls torch's ``register_backend`` and rebinds the name in
    ``torch.distributed.rpc``. Whether ours had run by then is left in the package for tests to see.
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
    """Write a package whose one module is `source` and is itself the object with the hooks."""
    module = distribution.replace("-", "_")
    return write_package(
        folder,
        distribution,
        version,
        modules={f"{module}.py": source},
        entry_points={HOOKS_GROUP: {module: module}},
    )
