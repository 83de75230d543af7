"""What the fork server of torch's tests imports before it forks; the server imports this module.

Each process of a test then needs less processor time: it imports nothing that is imported here, and its
garbage collector leaves alone, and so does not copy, the memory that it shares with the server.
"""

import contextlib
import gc
import importlib

from rpc_backends_processes import PRELOAD

#: None of them registers a backend.
_MODULES = (
    "torch.testing._internal.distributed.rpc_utils",
    "rpc_backends_testing.torch_tier.generation",
    *PRELOAD,
)
#: What a backend or a hook imports when it starts, if it is installed.
_IF_INSTALLED = (
    "rpc_backend_tensorpipe.handlers",
    "rpc_backends_agents.interception",
    "rpc_backends_agents.start",
)

# The fork server only imports: it calls no function.
for _module in _MODULES:
    importlib.import_module(_module)
for _module in _IF_INSTALLED:
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)
gc.freeze()
