"""Shorter tracebacks of a failed start: without the frames of the core and of pluggy.

Of an error that a package raises on purpose, the frames of packages and of torch's RPC are hidden, too.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import TracebackType

import pluggy

from rpc_backends_core._errors import RpcBackendsError

_HIDDEN = tuple(str(Path(file).parent) + "/" for file in (__file__, pluggy.__file__))
#: Modules between the program and an error that is raised on purpose, whose text says all.
_BETWEEN = ("rpc_backends_", "rpc_backend_", "torch.distributed.rpc")


def shorten(error: BaseException) -> None:
    """Remove such frames from the traceback of an error and of its causes."""
    seen: set[int] = set()
    chained: BaseException | None = error
    while chained is not None and id(chained) not in seen:
        seen.add(id(chained))
        chained.__traceback__ = _without_hidden(chained)
        chained = chained.__cause__ or (
            None if chained.__suppress_context__ else chained.__context__
        )


def _without_hidden(error: BaseException) -> TracebackType | None:
    shown = []
    is_meant = isinstance(error, RpcBackendsError)
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        is_hidden = frame.f_code.co_filename.startswith(_HIDDEN) or (
            is_meant and str(frame.f_globals.get("__name__")).startswith(_BETWEEN)
        )
        # The frame that raised an unexpected error is where a reader looks first.
        is_last = traceback.tb_next is None and not is_meant
        if is_last or not is_hidden:
            shown.append(traceback)
        traceback = traceback.tb_next
    for entry, following in pairwise([*shown, None]):
        assert entry is not None
        entry.tb_next = following
    return shown[0] if shown else None
