"""The ``torch.backends`` entry point: runs at the end of every ``import torch``.

Whatever the state of the environment, it must not raise, block or scan, and must take under 1 ms.
"""

from __future__ import annotations

import os

from rpc_backends_core._process_state import STATE

_ON = frozenset({"", "1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})


def install() -> None:
    """Install the registry in ``torch.distributed.rpc`` unless ``RPC_BACKENDS_AUTOLOAD=0``.

    Never raises; `rpc-backends doctor` shows any error.
    """
    switch = os.environ.get("RPC_BACKENDS_AUTOLOAD", "").strip().lower()
    STATE.autoload_error = None
    if switch in _OFF:
        return
    if switch not in _ON:
        from rpc_backends_core._errors import SettingError

        STATE.autoload_error = SettingError(
            f"RPC_BACKENDS_AUTOLOAD={switch!r} is neither true nor false, so the default 1 "
            "applies. Set it to 1 or 0."
        )
    # An exception here would break `import torch` for every program, so all errors are stored.
    try:
        from rpc_backends_core import _patches

        _patches.install()
        STATE.run_at_exit()
    except Exception as error:
        STATE.autoload_error = error


def failure() -> Exception | None:
    """Return the error of the last :func:`install`, or None."""
    return STATE.autoload_error
