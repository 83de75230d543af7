"""The command ``rpc-backends``: a module for each subcommand, imported when it is used.

Each gathers what there is to say as plain data first and shows it after that, as a table or as JSON, so
that the two never disagree.
"""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command with the arguments of this process."""
    from rpc_backends_cli.app import cli

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A package's description may hold what the terminal cannot show.
            stream.reconfigure(errors="replace")
    cli()
