"""Starts the processes of torch's tests quickly, from a fork server that has imported torch.

Torch spawns four processes for each test, and each imports torch: over an hour for all tests on two
cores.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from rpc_backends_testing.torch_tier.races import run_without_races

# Only installed modules can be preloaded, because Python 3.11's fork server does not inherit `sys.path`.
# None of them registers a backend.
_PRELOAD = ["torch.testing._internal.distributed.rpc_utils"]


@functools.cache
def context() -> BaseContext:
    """Return how to start processes here: by the fork server, or by spawn if there is CUDA.

    The fork server asks for CUDA devices when it imports torch's test modules, and CUDA cannot be
    used in a process forked after that.
    """
    if torch.cuda.is_available():
        return multiprocessing.get_context("spawn")
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(_PRELOAD)
    return forkserver


def start(test: Any) -> None:
    """Stand in for `MultiProcessTestCase._spawn_processes` on the case `test`."""
    test._start_processes(_process)


def _process(*, target: Callable[..., None], **settings: Any) -> BaseProcess:
    process: BaseProcess = context().Process(  # type: ignore[attr-defined]
        target=functools.partial(run_without_races, target), **settings
    )
    return process
