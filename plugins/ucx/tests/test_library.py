"""What loading UCX does to the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_COMPARE = """
import ctypes
from rpc_backend_ucx.library import native

libc = ctypes.CDLL(None)

def code():
    return [
        ctypes.string_at(ctypes.cast(libc[name], ctypes.c_void_p).value, 32)
        for name in ("mmap", "munmap", "brk", "madvise")
    ]

before = code()
native()
assert code() == before, "UCX has changed libc"
"""


@pytest.mark.skipif(
    any(Path("/dev", name).exists() for name in ("infiniband", "xpmem", "knem")),
    reason="this machine has a device for which UCX must notice that memory is freed",
)
def test_loading_ucx_does_not_change_libc() -> None:
    """This holds without a device that registers memory. The change would also take 0.4 s."""
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
