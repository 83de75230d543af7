"""Runs the command: ``python -m rpc_backends_cli`` does the same as ``rpc-backends``."""

from __future__ import annotations

from rpc_backends_cli import main

if __name__ == "__main__":
    main()
