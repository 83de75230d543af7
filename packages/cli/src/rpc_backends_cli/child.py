"""The inside of a process that `children` starts: says what it does, and ends itself in time."""

from __future__ import annotations

import faulthandler
import json
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Protocol

#: What a child says, in its folder: a JSON object a line.
SAID = "said"


class Say(Protocol):
    """Tells the process that started this one something; keywords become a JSON object."""

    def __call__(self, **facts: object) -> None:
        """Write it at once."""


def work(module: str, folder: str, spec: str, limit: str) -> None:
    """Do the work of a child: ``main(spec, say)`` of ``module``, in at most ``limit`` seconds."""
    faulthandler.enable()
    end_in(float(limit))
    with Path(folder, SAID).open("a", buffering=1) as file:

        def say(**facts: object) -> None:
            file.write(json.dumps(facts) + "\n")

        try:
            import_module(module).main(json.loads(spec), say)
        except BaseException as error:
            say(
                error=f"{type(error).__name__}: {error}",
                traceback=traceback.format_exc(),
                when=time.time(),
            )
            raise


def end_in(seconds: float) -> None:
    """End this process in ``seconds`` from now, writing down where it is; the last call counts.

    A thread in C does it: it works while Python code holds the interpreter, and when whoever started
    this process is gone.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
