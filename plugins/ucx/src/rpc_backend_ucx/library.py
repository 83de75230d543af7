"""Loads UCX's libraries from the wheel libucx-cu12, before the extension that uses them is imported."""

from __future__ import annotations

import os
from typing import Any

#: UCX reads these when its libraries are loaded. They turn off its threads and signal handlers.
_AT_LOAD = {"UCX_ERROR_SIGNALS": "", "UCX_VFS_ENABLE": "n", "UCX_WARN_UNUSED_ENV_VARS": "n"}

_loaded: list[Any] = []


def native() -> Any:
    """Return the extension module.

    :raises ImportError: UCX's libraries are missing or cannot be loaded.
    """
    if not _loaded:
        import libucx  # type: ignore[import-untyped]

        missing = {name: value for name, value in _AT_LOAD.items() if name not in os.environ}
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
