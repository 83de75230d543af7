"""How long this machine takes for a reverse lookup of a worker's address.

torch's TCP store does one lookup for each connection that it accepts, in the thread that serves all
workers, and uses the result only in its log. (Seen in torch 2.13.)
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from rpc_backends_cli.report import Finding, Section

#: The number of connections a group may make at once; some name servers answer only the first few.
LOOKUPS = 32
#: A lookup slower than this many seconds is worth fixing: 32 workers then wait for three seconds.
SLOW = 0.1
#: Seconds after which this check gives up.
LIMIT = 3.0


def check(
    address: str, look_up: Callable[[str], object] | None = None, limit: float = LIMIT
) -> Section:
    """Return how long looking up ``address`` takes, in the form that torch's store uses.

    :param look_up: the lookup function; the system's by default.
    :param limit: seconds for all lookups.
    """
    form = address if ":" in address else f"::ffff:{address}"
    times = _times(lambda: (look_up or _look_up)(form), limit)
    longest, made = max(times), len(times)
    data = {"address": form, "lookups": made, "longest": longest}
    if longest <= SLOW:
        text = f"{form}: {longest * 1e3:.1f} ms at most in {made} lookups"
        return _section(Finding("ok", "name server", text, data))
    more = "more than " if longest >= limit else ""
    text = (
        f"reverse lookup {made} of {form} took {more}{longest:.1f} s. torch's TCP store looks up the "
        "address of every worker that connects, one after the other, so groups start slowly. On "
        f"the host of the store, add a line such as `{form} worker-host` to /etc/hosts for each "
        "worker. If rank 0 needs no name server otherwise, you can start it with "
        "RES_OPTIONS=attempts:0 instead."
    )
    return _section(Finding("warning", "name server", text, data))


def _section(finding: Finding) -> Section:
    return Section("names", "Name lookup", [finding])


def _times(look_up: Callable[[], object], limit: float) -> list[float]:
    """Return the duration of each lookup up to the first slow one; ``limit`` for one that hangs."""
    times: list[float] = []
    begun = [time.monotonic()]

    def look_up_all() -> None:
        for _ in range(LOOKUPS):
            begun[0] = time.monotonic()
            look_up()
            times.append(time.monotonic() - begun[0])
            if times[-1] > SLOW:
                break

    # A lookup cannot be interrupted, so it runs in a daemon thread that may be abandoned.
    thread = threading.Thread(target=look_up_all, daemon=True)
    thread.start()
    thread.join(limit)
    going_on = thread.is_alive()  # check before reading the results: it may end any time
    return [*times, max(limit, time.monotonic() - begun[0])] if going_on else times


def _look_up(address: str) -> None:
    with contextlib.suppress(socket.gaierror):  # "not found" is an answer too
        socket.getnameinfo((address, 0), socket.NI_NUMERICSERV)
