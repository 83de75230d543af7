"""The places where a test can insert code between a program and a sound backend."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.rpc import api, internal

from rpc_backend_tensorpipe.handlers import BACKEND
from rpc_backends_core import Backend

#: The functions that torch's API calls to send, each with the index of its argument for the timeout.
SENDERS = {
    "_invoke_rpc_builtin": 2,
    "_invoke_rpc_torchscript": 4,
    "_invoke_rpc_python_udf": 3,
    "_invoke_remote_builtin": 2,
    "_invoke_remote_torchscript": 2,
    "_invoke_remote_python_udf": 3,
}

Send = Callable[..., Any]


def construct(rpc_timeout: float, init_method: str, **options: Any) -> Any:
    """Construct TENSORPIPE's options; by default it uses only TCP.

    Shared memory costs each pair of workers 32 MB of page faults, which take most of the time of a test.
    """
    return BACKEND.construct_rpc_backend_options_handler(
        rpc_timeout, init_method, **{"_transports": ["uv"], "_channels": ["basic"], **options}
    )


def tensorpipe(sabotage: Callable[[], None], **changes: Any) -> Backend:
    """Return TENSORPIPE over TCP. It calls ``sabotage`` before each start of RPC in a process."""

    def init_backend(
        store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: Any
    ) -> Any:
        sabotage()
        return BACKEND.init_backend_handler(store, name, rank, world_size, rpc_backend_options)

    handlers = {
        "construct_rpc_backend_options_handler": construct,
        "init_backend_handler": init_backend,
    }
    return dataclasses.replace(BACKEND, **{**handlers, **changes})


def once(sabotage: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls ``sabotage`` only the first time in a process."""
    done: list[bool] = []

    def first() -> None:
        if not done:
            done.append(True)
            sabotage()

    return first


def around_sending(
    put_between: Callable[[str, Send, tuple[Any, ...], dict[str, Any]], Any],
    only: str = "_invoke",
) -> None:
    """Replace each function ``send`` by a call of ``put_between(name, send, args, kwargs)``.

    :param only: replace only functions whose names begin with this.
    """
    for name in SENDERS:
        if name.startswith(only):
            setattr(api, name, _between(name, getattr(api, name), put_between))


def _between(name: str, send: Send, put_between: Callable[..., Any]) -> Send:
    return lambda *args, **kwargs: put_between(name, send, args, kwargs)


def around_running(put_between: Callable[[Callable[[Any], Any], Any], Any]) -> None:
    """Call ``put_between(run, request)`` wherever a worker runs a Python function for another worker."""
    run = internal._run_function
    internal._run_function = lambda request: put_between(run, request)


_thread = threading.local()


def tell_who_runs() -> None:
    """Record for :func:`is_running` which threads run a function for another worker."""

    def run(run: Any, request: Any) -> Any:
        before = is_running()
        _thread.running = True
        try:
            return run(request)
        finally:
            _thread.running = before

    around_running(run)


def is_running() -> bool:
    """Return whether this thread runs a function for another worker."""
    return getattr(_thread, "running", False)


def on_tensors(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Apply ``change`` to every tensor that is packed into a message."""
    pickler = internal._internal_rpc_pickler
    reduce = pickler._tensor_reducer
    pickler._dispatch_table[torch.Tensor] = lambda tensor: reduce(change(tensor))
