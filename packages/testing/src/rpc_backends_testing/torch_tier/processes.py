"""Starts the processes of torch's tests quickly, from a fork server that has imported torch.

Torch spawns four processes for each test, and each imports torch: over an hour for all tests on two
cores.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from rpc_backends_testing.torch_tier.races import run_without_races

# Only installed modules can be preloaded, because Python 3.11's fork server does not inherit `sys.path`.
_PRELOAD = ["rpc_backends_testing.torch_tier.preload"]


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
        target=functools.partial(_run, target), **settings
    )
    return process


def _run(target: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    with _template_folder():
        run_without_races(target, *args, **kwargs)


@contextmanager
def _template_folder() -> Iterator[None]:
    """Give this process a folder of its own for the modules that RemoteModule writes.

    torch up to 2.9 makes that folder when it is imported, and adds it to `sys.path`. In a forked process
    that is the fork server's folder, and `sys.path` is that of the process that started the test.
    """
    from torch.distributed.nn.jit import instantiator

    if not hasattr(instantiator, "INSTANTIATED_TEMPLATE_DIR_PATH"):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        instantiator.INSTANTIATED_TEMPLATE_DIR_PATH = folder
        sys.path.append(folder)
        yield
