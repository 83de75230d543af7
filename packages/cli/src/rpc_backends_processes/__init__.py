"""Worker processes that run functions step by step and always end with their parent.

`rpc-backends doctor` runs code in a worker that may crash or hang, and tests run several workers. A
worker is forked from a template process that has imported torch, or is a new Python interpreter. No
worker, and no process that a worker starts, outlives the process that started the workers.
"""

from __future__ import annotations

from rpc_backends_processes.ports import free_port
from rpc_backends_processes.protocol import Done, Ended, Failure, News, Reference, WorkerContext
from rpc_backends_processes.signals import exit_on_signals
from rpc_backends_processes.template import PRELOAD, Template, environ, launcher_environ
from rpc_backends_processes.workers import Step, Worker, WorkerError, Workers

__all__ = [
    "PRELOAD",
    "Done",
    "Ended",
    "Failure",
    "News",
    "Reference",
    "Step",
    "Template",
    "Worker",
    "WorkerContext",
    "WorkerError",
    "Workers",
    "environ",
    "exit_on_signals",
    "free_port",
    "launcher_environ",
]
