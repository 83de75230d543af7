"""How long this machine takes to look up the name of a worker's address.

torch's TCP store does that for each connection that it accepts, in the thread that serves all workers,
and uses the answer in its log alone. Seen in torch 2.13.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from rpc_backends_cli.report import Finding, Section

#: As many connections as a group may make at once: some name servers answer only the first of many.
LOOKUPS = 32
#: Seconds above which a lookup is worth mending: a group of 32 then waits for three of them.
SLOW = 0.1
#: Seconds after which nobody waits for the answer here.
LIMIT = 3.0


def check(
    address: str, look_up: Callable[[str], object] | None = None, limit: float = LIMIT
) -> Section:
    """Return how long it takes to look up ``address``, in the form in which torch's store does.

    :param look_up: the machine's own by default.
    :param limit: seconds for all lookups.
    """
    form = address if ":" in address else f"::ffff:{address}"
    times = _times(lambda: (look_up or _look_up)(form), limit)
    longest, made = max(times), len(times)
    data = {"address": form, "lookups": made, "longest": longest}
    if longest <= SLOW:
        text = f"{form}: {longest * 1e3:.1f} ms at most, of {made} lookups in a row"
        return _section(Finding("ok", "name server", text, data))
    more = "more than " if longest >= limit else ""
    text = (
        f"lookup {made} of the name of {form} took {more}{longest:.1f} s. torch's TCP store looks up the "
        "address of every worker that connects, one after the other, so groups start slowly. On the "
        f"host of the store, add a line for each worker to /etc/hosts, as `{form} worker-host`; or start "
        "rank 0 with RES_OPTIONS=attempts:0 if it needs no name server otherwise."
    )
    return _section(Finding("warning", "name server", text, data))


def _section(finding: Finding) -> Section:
    return Section("names", "Names of addresses", [finding])


def _times(look_up: Callable[[], object], limit: float) -> list[float]:
    """Return the seconds of lookups, up to the first slow one; ``limit`` for one that does not end."""
    times: list[float] = []
    begun = [time.monotonic()]

    def look_up_all() -> None:
        for _ in range(LOOKUPS):
            begun[0] = time.monotonic()
            look_up()
            times.append(time.monotonic() - begun[0])
            if times[-1] > SLOW:
                break

    # A lookup cannot be interrupted: a thread that nobody waits for is left with it.
    thread = threading.Thread(target=look_up_all, daemon=True)
    thread.start()
    thread.join(limit)
    going_on = thread.is_alive()  # asked first: it may end now
    return [*times, max(limit, time.monotonic() - begun[0])] if going_on else times


def _look_up(address: str) -> None:
    with contextlib.suppress(socket.gaierror):  # no answer is one, too
        socket.getnameinfo((address, 0), socket.NI_NUMERICSERV)
