"""Processes of our own that run functions, one step after the other, and are ended in all cases.

What may crash or hang runs in one (`rpc-backends doctor`), and so do tests that need several. A worker is
forked from a template that has torch imported, or has an interpreter of its own. None outlives the
process that started it, nor does what a worker has started.
"""

from __future__ import annotations

from rpc_backends_cli.processes.protocol import Done, Ended, Failure, Me, News, Reference
from rpc_backends_cli.processes.signals import exit_on_signals
from rpc_backends_cli.processes.template import Template, environ
from rpc_backends_cli.processes.workers import Step, Worker, WorkerError, Workers

__all__ = [
    "Done",
    "Ended",
    "Failure",
    "Me",
    "News",
    "Reference",
    "Step",
    "Template",
    "Worker",
    "WorkerError",
    "Workers",
    "environ",
    "exit_on_signals",
]
