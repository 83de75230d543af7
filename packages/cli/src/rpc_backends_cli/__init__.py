"""The command ``rpc-backends``: a module for each subcommand, imported when it is used.

Each subcommand first gathers plain data, then prints it as a table or as JSON, so the two always
agree. The names in ``__all__`` are for packages that add subcommands or checks for doctor. Modules
are imported on first use.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpc_backends_cli.loading import require_loadable as require_loadable
    from rpc_backends_cli.output import Failure as Failure
    from rpc_backends_cli.output import console as console
    from rpc_backends_cli.output import debug_option as debug_option
    from rpc_backends_cli.output import grid as grid
    from rpc_backends_cli.output import json_option as json_option
    from rpc_backends_cli.output import print_json as print_json
    from rpc_backends_cli.output import stdout_for_json as stdout_for_json
    from rpc_backends_cli.output import timeout_option as timeout_option
    from rpc_backends_cli.report import Finding as Finding
    from rpc_backends_cli.report import Section as Section

_MODULES = {
    "Failure": "output",
    "Finding": "report",
    "Section": "report",
    "console": "output",
    "debug_option": "output",
    "grid": "output",
    "json_option": "output",
    "print_json": "output",
    "require_loadable": "loading",
    "stdout_for_json": "output",
    "timeout_option": "output",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    """Import ``name`` from the module that defines it (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def main() -> None:
    """Run the command with the arguments of this process."""
    from rpc_backends_cli.app import cli

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A package's description may contain characters that the terminal cannot show.
            stream.reconfigure(errors="replace")
    cli()
