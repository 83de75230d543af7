"""The audit log: what was refused, as JSON lines."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from rpc_backends_agents import add_audit_entry
from rpc_backends_guard.policy import PolicyError

#: The longest text of a peer that the log repeats.
_LONGEST = 512


class Audit:
    """Appends lines to a file that many workers may share.

    :param path: None for no log.
    :raises PolicyError: the file cannot be opened.
    """

    def __init__(self, path: Path | None, worker: str) -> None:
        self._worker = worker
        self._descriptor = -1
        if path is not None:
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(path, flags, 0o600)
            except OSError as error:
                raise PolicyError(
                    f"the guard's audit log {path} cannot be written: {error.strerror}. Set `audit` in "
                    "the policy to a file that this worker can write."
                ) from error

    def duplicate(self) -> int:
        """Return another descriptor of the file, for C++; -1 without a log."""
        return os.dup(self._descriptor) if self._descriptor >= 0 else -1

    def write(self, event: str, peer: str | None, kind: str, name: str, **more: Any) -> None:
        """Append a line, and show it to a reader in this process."""
        record = {
            "event": event,
            "worker": self._worker,
            "peer": peer,
            "kind": kind,
            "name": name[:_LONGEST],
            "time_ms": int(time.time() * 1000),
            **more,
        }
        text = json.dumps(record)
        add_audit_entry(text)
        if self._descriptor >= 0:
            os.write(self._descriptor, (text + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
