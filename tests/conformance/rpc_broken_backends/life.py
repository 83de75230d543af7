"""Backends that break the chapter `life`."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from pathlib import Path
from typing import Any

import torch
from torch.distributed import rpc

from rpc_backend_tensorpipe.handlers import BACKEND
from rpc_backends_core import Capability
from rpc_broken_backends import Broken
from rpc_broken_backends.seams import (
    Send,
    around_sending,
    is_running,
    once,
    tell_who_runs,
    tensorpipe,
)

_kept: list[Any] = []
_count = itertools.count()


def leak_a_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def leak_a_socket() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    _kept.append(listener)


def leave_a_file_in_shared_memory() -> None:
    Path(f"/dev/shm/rpc-broken-{os.getpid()}-{next(_count)}").write_bytes(b"left behind")


def hang_when_a_peer_dies() -> None:
    def send(_name: str, send: Send, args: Any, kwargs: Any) -> Any:
        inner = send(*args, **kwargs)
        if is_running():
            return inner
        outer: Any = torch.futures.Future()

        def pass_on(done: Any) -> None:
            try:
                value = done.value()
            except Exception as error:
                lost = ("eof", "connection", "pipe", "closed", "reset", "refused", "ECONN")
                if not any(word in str(error) for word in lost):
                    outer.set_exception(error)
                return
            outer.set_result(value)

        inner.add_done_callback(pass_on)
        return outer

    tell_who_runs()
    around_sending(send, only="_invoke_rpc")


def no_dynamic_groups(
    store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: Any
) -> Any:
    if not world_size:
        raise ValueError("not implemented yet")
    return BACKEND.init_backend_handler(store, name, rank, world_size, rpc_backend_options)


def wrong_ranks(
    store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: Any
) -> Any:
    agent = BACKEND.init_backend_handler(store, name, rank, world_size, rpc_backend_options)
    members = agent.get_worker_infos

    def get_worker_infos() -> list[rpc.WorkerInfo]:
        names = sorted((info.name for info in members()), reverse=True)
        return [rpc.WorkerInfo(name, place) for place, name in enumerate(names)]

    agent.get_worker_infos = get_worker_infos
    return agent


BROKEN = {
    "LEAKS_A_THREAD": Broken(tensorpipe(leak_a_thread), "life", ("life.", "thread")),
    "LEAKS_A_SOCKET": Broken(tensorpipe(leak_a_socket), "life", ("life.", "socket")),
    "LEAVES_A_FILE_IN_SHARED_MEMORY": Broken(
        tensorpipe(leave_a_file_in_shared_memory), "life", ("life.", "rpc-broken")
    ),
    "HANGS_WHEN_A_PEER_DIES": Broken(
        tensorpipe(once(hang_when_a_peer_dies)), "life", ("life.", "")
    ),
    "GIVES_WRONG_RANKS": Broken(
        tensorpipe(lambda: None, init_backend_handler=wrong_ranks),
        "life",
        ("life.static_group", "get_worker_infos"),
    ),
    "CLAIMS_DYNAMIC_GROUPS": Broken(
        tensorpipe(lambda: None, init_backend_handler=no_dynamic_groups),
        "life",
        ("life.", "not implemented yet"),
    ),
    "CLAIMS_CLEAN_SHUTDOWN": Broken(
        tensorpipe(lambda: None, capabilities=BACKEND.capabilities | {Capability.CLEAN_SHUTDOWN}),
        "life",
        ("life.", ""),
    ),
}
