"""Loads UCX's libraries from the wheel libucx-cu12, before the extension that uses them is imported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_DEVICES = Path("/dev")
#: UCX reads these when its libraries are loaded. They turn off its threads and signal handlers.
_AT_LOAD = {"UCX_ERROR_SIGNALS": "", "UCX_VFS_ENABLE": "n", "UCX_WARN_UNUSED_ENV_VARS": "n"}
#: UCX changes libc when it is loaded: it replaces the first instructions of mmap() and other functions,
#: to notice that registered memory is freed. That takes 0.4 s. This variable prevents it.
_WITHOUT_REGISTRATION = {"UCX_MEM_EVENTS": "n"}
#: The devices of the transports that register memory.
_REGISTER_MEMORY = ("infiniband", "xpmem", "knem")

_loaded: list[Any] = []


def native() -> Any:
    """Return the extension module.

    :raises ImportError: UCX's libraries are missing or cannot be loaded.
    """
    if not _loaded:
        import libucx  # type: ignore[import-untyped]

        wanted = dict(_AT_LOAD)
        if not any((_DEVICES / name).exists() for name in _REGISTER_MEMORY):
            wanted |= _WITHOUT_REGISTRATION
        missing = {name: value for name, value in wanted.items() if name not in os.environ}
        os.environ.update(missing)
        try:
            _loaded.extend(libucx.load_library())
        except OSError as error:
            raise ImportError(f"UCX's libraries cannot be loaded: {error}") from error
        finally:
            for name in missing:
                del os.environ[name]
        from rpc_backend_ucx import _native

        # UCX's log lines become part of our errors. They are also printed if the user has set a level.
        _native.capture_log(also_print="UCX_LOG_LEVEL" in os.environ)
        _loaded.append(_native)
    return _loaded[-1]
