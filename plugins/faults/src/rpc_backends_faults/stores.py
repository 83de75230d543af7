"""Makes the stores of this process slow or silent while a fault of the kind `store` lasts."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from rpc_backends_faults import _native

#: The methods of a store that send a request.
_REQUESTS = (
    "set",
    "get",
    "add",
    "check",
    "compare_set",
    "wait",
    "delete_key",
    "num_keys",
    "append",
    "multi_get",
    "multi_set",
    "queue_push",
    "queue_pop",
    "queue_len",
    "list_keys",
)
_made: set[str] = set()


def make_slow() -> None:
    """Let requests to stores wait while a fault lasts. A second call does nothing.

    This concerns all stores of this process, and requests from Python, not those of torch's C++ code.
    """
    from torch.distributed import Store

    for name in _REQUESTS:
        if name not in _made and name in vars(Store):
            _made.add(name)
            setattr(Store, name, _waiting(getattr(Store, name)))


def _waiting(request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    def wait(*args: Any, **kwargs: Any) -> Any:
        seconds = _native.store_delay()
        if seconds:
            time.sleep(seconds)
        return request(*args, **kwargs)

    return wait
