"""An accelerator of the tests' own, ``late``, whose streams run behind; see ``late_device.cpp``.

It has two devices. It is compiled once, and kept in ``build/native`` under a hash of its source.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import torch

from support.native import KEPT

NAME = "late"
COUNT = 2
_SOURCE = Path(__file__).with_suffix(".cpp")


def library() -> Path:
    """Return the compiled library; compile it if it is missing."""
    text = f"{torch.__version__} {sysconfig.get_platform()} {_SOURCE.read_text()}"
    kept = KEPT / f"late_device-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with Path(KEPT, "late_device.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process compiles it, the others wait
            if not kept.exists():
                _compile(kept)
    return kept


def _compile(kept: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    abi = int(torch.compiled_with_cxx11_abi())
    with tempfile.TemporaryDirectory(dir=KEPT) as made:
        new = Path(made, "new.so")
        subprocess.run(
            [
                *(os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared"),
                *(f"-D_GLIBCXX_USE_CXX11_ABI={abi}", str(_SOURCE), "-o", str(new)),
                *(f"-I{folder}" for folder in include_paths()),
                *(f"-L{folder}" for folder in library_paths()),
                *("-ltorch_cpu", "-lc10"),
            ],
            check=True,
        )
        new.rename(kept)


def load() -> None:
    """Make the accelerator available in this process; a second call does nothing."""
    if hasattr(torch, NAME):
        return
    torch.ops.load_library(str(library()))
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())


def set_delay(seconds: float) -> None:
    """Set how long each operation waits before it runs on its stream."""
    torch.ops.late_device.set_delay(seconds)


def allow(operations: int) -> None:
    """Let this many more operations run, on all streams together; later ones wait. -1: all run."""
    torch.ops.late_device.allow(operations)


def operations() -> int:
    """Return how many operations have run."""
    count: int = torch.ops.late_device.operations()
    return count


def _module() -> ModuleType:
    """Return the module that torch finds as ``torch.late``."""
    calls = torch.ops.late_device
    module = ModuleType(f"torch.{NAME}")
    module.__dict__.update(
        {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "init": lambda: None,
            "device_count": lambda: COUNT,
            "current_device": calls.current_device,
            "set_device": calls.set_device,
            "synchronize": lambda device=0: calls.synchronize(torch.device(NAME, device).index),
            "_is_in_bad_fork": lambda: False,
            "manual_seed_all": lambda seed: None,
        }
    )
    return module
