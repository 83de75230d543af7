"""What all tests of this repository share, whichever distribution they are of."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take back SIGINT, which a shell makes its background jobs ignore; tests send it to children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
