"""Backends that break the chapter `calls`."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import torch
from torch.distributed.rpc.internal import RemoteException

from rpc_broken_backends import Broken
from rpc_broken_backends.seams import (
    Send,
    around_running,
    around_sending,
    is_running,
    once,
    tell_who_runs,
    tensorpipe,
)


def drop_every_hundredth() -> None:
    count = itertools.count(1)

    def send(_name: str, send: Send, args: Any, kwargs: Any) -> Any:
        if next(count) % 100 == 0:
            return torch.futures.Future()  # no answer will ever complete it
        return send(*args, **kwargs)

    around_sending(send, only="_invoke_rpc")


def send_every_hundredth_twice() -> None:
    count = itertools.count(1)

    def send(_name: str, send: Send, args: Any, kwargs: Any) -> Any:
        if next(count) % 100 == 0:
            send(*args, **kwargs)
        return send(*args, **kwargs)

    around_sending(send, only="_invoke_rpc")


def let_one_function_call() -> None:
    """Let only one running function of a worker make calls: the others wait until it has returned."""
    calling = threading.Lock()
    mine = threading.local()

    def send(_name: str, send: Send, args: Any, kwargs: Any) -> Any:
        if is_running() and not getattr(mine, "calling", False):
            calling.acquire()
            mine.calling = True
        return send(*args, **kwargs)

    def run(run: Any, request: Any) -> Any:
        try:
            return run(request)
        finally:
            if getattr(mine, "calling", False):
                mine.calling = False
                calling.release()

    tell_who_runs()
    around_sending(send, only="_invoke")
    around_running(run)


def swallow_exceptions() -> None:
    def run(run: Any, request: Any) -> Any:
        result = run(request)
        return None if isinstance(result, RemoteException) else result

    around_running(run)


def forget_the_type_of_exceptions() -> None:
    def run(run: Any, request: Any) -> Any:
        result = run(request)
        if isinstance(result, RemoteException):
            return RemoteException("something went wrong", RuntimeError)
        return result

    around_running(run)


BROKEN = {
    "DROPS_EVERY_HUNDREDTH_MESSAGE": Broken(
        tensorpipe(once(drop_every_hundredth)), "calls", ("calls.", "time")
    ),
    "SENDS_EVERY_HUNDREDTH_MESSAGE_TWICE": Broken(
        tensorpipe(once(send_every_hundredth_twice)),
        "calls",
        ("calls.run_once", "numbers of runs"),
        spreads=True,  # the hundredth message of another test may be one that must not come twice
    ),
    "DEADLOCKS_ON_NESTED_CALLS": Broken(
        tensorpipe(once(let_one_function_call)), "calls", ("calls.nested", "time")
    ),
    "SWALLOWS_EXCEPTIONS": Broken(
        tensorpipe(once(swallow_exceptions)), "calls", ("calls.", "no error")
    ),
    "FORGETS_THE_TYPE_OF_EXCEPTIONS": Broken(
        tensorpipe(once(forget_the_type_of_exceptions)), "calls", ("calls.", "ValueError")
    ),
}
