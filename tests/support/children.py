"""Processes that end with the test that starts them, and the name of the test's own process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process; at the end of the block, kill it if it still runs, and close its pipes.

    :param options: the other arguments of :class:`subprocess.Popen`.
    """
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.kill()
        with process:  # waits for its end, and closes the pipes
            pass


@contextmanager
def process_name(name: bytes) -> Iterator[None]:
    """Give this process another name inside the block."""
    file = Path(f"/proc/{os.getpid()}/comm")
    before = file.read_bytes()
    file.write_bytes(name)
    try:
        yield
    finally:
        file.write_bytes(before)
