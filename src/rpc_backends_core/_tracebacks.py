"""Shorter tracebacks of a failed start: without the frames of the core and of pluggy."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import TracebackType

import pluggy

from rpc_backends_core._errors import RpcBackendsError

_HIDDEN = tuple(str(Path(file).parent) + "/" for file in (__file__, pluggy.__file__))


def shorten(error: BaseException) -> None:
    """Remove the core's and pluggy's frames from the traceback of an error and of its causes."""
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
    traceback = error.__traceback__
    while traceback is not None:
        is_hidden = traceback.tb_frame.f_code.co_filename.startswith(_HIDDEN)
        # The frame that raised an unexpected error is where a reader looks first.
        is_last = traceback.tb_next is None and not isinstance(error, RpcBackendsError)
        if is_last or not is_hidden:
            shown.append(traceback)
        traceback = traceback.tb_next
    for entry, following in pairwise([*shown, None]):
        assert entry is not None
        entry.tb_next = following
    return shown[0] if shown else None
