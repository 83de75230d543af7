"""Makes TENSORPIPE use only TCP in this process and its forks, unless a program names transports.

With shared memory, each worker of TensorPipe has a thread that polls without a pause, and takes a core
from all other tests. The conformance suite and torch's suites run with shared memory.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.distributed import rpc


def install() -> None:
    """Change the default transports in torch's options; without TensorPipe this does nothing."""
    options: Any = getattr(rpc, "TensorPipeRpcBackendOptions", None)
    if options is None:
        return
    init = options.__init__

    @functools.wraps(init)
    def with_tcp(
        self: Any, *args: Any, _transports: list[str] | None = None, **others: Any
    ) -> None:
        init(self, *args, _transports=["uv"] if _transports is None else _transports, **others)

    options.__init__ = with_tcp
