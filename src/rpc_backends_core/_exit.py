"""Functions that end what a worker uses when its process exits.

:mod:`atexit` runs last what was registered first. A program may register ``rpc.shutdown`` before it calls
``init_rpc``; if an agent registered its end only then, it would end first. So the core registers these
functions when torch is imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from rpc_backends_core._process_state import STATE


def at_exit(function: Callable[[], object]) -> Callable[[], None]:
    """Call a function when the process exits, after those that the program has registered with `atexit`.

    That is so for a program that has imported torch first. The function that was given last is called
    first. The last exception is printed; none prevents the other calls.

    :returns: a function that takes this back. It may be called again, without effect.
    """
    if not STATE.runs_exit_functions:  # importing torch has done it, unless RPC_BACKENDS_AUTOLOAD=0
        STATE.run_at_exit()

    def call() -> None:
        function()

    def take_back() -> None:
        with contextlib.suppress(ValueError):
            STATE.exit_functions.remove(call)

    STATE.exit_functions.append(call)
    return take_back
