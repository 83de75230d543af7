"""Worker processes for tests that need several, forked from a template with torch imported."""

from __future__ import annotations

from rpc_backends_cli.processes.protocol import Done, Failure, Me
from rpc_backends_cli.processes.template import Template
from rpc_backends_cli.processes.workers import Step, Worker, WorkerError, Workers

__all__ = ["Done", "Failure", "Me", "Step", "Template", "Worker", "WorkerError", "Workers"]
