"""``python -m rpc_backends_core`` is ``rpc-backends``."""

from __future__ import annotations

from rpc_backends_core.cli import main

if __name__ == "__main__":
    main()
