"""The rendezvous host that an init method names. The route to it gives the address to listen on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Rendezvous:
    """The host of the workers' store.

    :ivar host: its name or address; None if the init method has none.
    :ivar why: the setting that names the host, for messages.
    """

    host: str | None
    why: str


def rendezvous(init_method: str, environ: Mapping[str, str] = os.environ) -> Rendezvous:
    """Return the rendezvous host that ``init_method`` names."""
    scheme = init_method.partition(":")[0]
    if scheme == "env":
        host = environ.get("MASTER_ADDR", "").strip()
        if host:
            return Rendezvous(_bare(host), f"MASTER_ADDR={host}")
        return Rendezvous(None, "MASTER_ADDR is not set")
    host = _host_of(init_method)
    if host and scheme != "file":
        return Rendezvous(host, f"init_method={init_method}")
    return Rendezvous(None, f"init_method={init_method} names no host")


def _host_of(url: str) -> str:
    """Return the host of a URL in its original case: a scope (``fe80::1%Eth0``) may have capitals."""
    try:
        netloc = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return ""
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0]
    return netloc.partition(":")[0]


def _bare(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host
