"""``python -m rpc_backends_cli`` is ``rpc-backends``."""

from __future__ import annotations

from rpc_backends_cli import main

if __name__ == "__main__":
    main()
