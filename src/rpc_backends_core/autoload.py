"""The ``torch.backends`` entry point: runs at the end of every ``import torch``.

It must not raise, block, scan or be felt (bar: 1 ms), whatever state the environment is in.
"""

from __future__ import annotations

import os

from rpc_backends_core._process_state import STATE

_ON = frozenset({"", "1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})


def install() -> None:
    """Put the registry into ``torch.distributed.rpc`` unless ``RPC_BACKENDS_AUTOLOAD=0``.

    Never raises: a failure is kept and shown by ``rpc-backends doctor``.
    """
    switch = os.environ.get("RPC_BACKENDS_AUTOLOAD", "").strip().lower()
    STATE.autoload_error = None
    if switch in _OFF:
        return
    if switch not in _ON:
        from rpc_backends_core._errors import SettingError

        STATE.autoload_error = SettingError(
            f"RPC_BACKENDS_AUTOLOAD={switch!r} is neither a yes nor a no, and was taken for a yes. "
            "Set it to 1 or 0."
        )
    # An exception here would break `import torch` for everybody: any cause is kept as data.
    try:
        from rpc_backends_core import _patches

        _patches.install()
    except Exception as error:
        STATE.autoload_error = error


def failure() -> Exception | None:
    """Return what was wrong the last time :func:`install` ran, if anything was."""
    return STATE.autoload_error
