"""Functions that end what a worker uses, when its process exits."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit
import torch
atexit.register(print, "the program's")
from rpc_backends_core.spi import at_exit
at_exit(lambda: print("first"))
at_exit(lambda: 1 / 0)
take_back = at_exit(lambda: print("taken back"))
at_exit(lambda: print("last"))
take_back()
take_back()
"""


def test_functions_run_after_the_programs_own_the_last_one_first() -> None:
    """An exception prevents no other function."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["the program's", "last", "first"], done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert done.returncode == 0
