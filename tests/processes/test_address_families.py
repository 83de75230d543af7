"""Groups on two hosts that have IPv4, IPv6 or both, on UCX and TENSORPIPE; ZEROMQ has its own tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from support import steps
from support.networks import Host, enter, hosts
from support.workers import Workers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["IPv4", "IPv6", "both"])
def meeting_point(request: pytest.FixtureRequest) -> Iterator[tuple[list[Host], str]]:
    """Yield two hosts with these addresses, and the first one's address as a part of a URL."""
    with hosts(2) as made:
        for host in made:
            if request.param != "both":
                flush(host, "-6" if request.param == "IPv4" else "-4")
        yield made, made[0].four if request.param == "IPv4" else f"[{made[0].six}]"


def flush(host: Host, family: str) -> None:
    """Remove a host's addresses of one family."""
    command = ["ip", "-n", host.name, family, "addr", "flush", "dev", "eth0"]
    subprocess.run(command, check=True)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("UCX", {"trusted_network": True, "transports": ["tcp"]}),
        ("TENSORPIPE", {}),
    ],
)
def test_workers_on_two_hosts_call_each_other(
    meeting_point: tuple[list[Host], str], backend: str, options: dict[str, Any]
) -> None:
    two_hosts, address = meeting_point
    with Workers(2, env={"TP_SOCKET_IFNAME": "eth0"}) as workers:
        for worker, host in zip(workers, two_hosts, strict=True):
            worker.call(enter, host)
        workers.run(steps.join, f"tcp://{address}:29500", backend=backend, **options)
        names = {"worker0": "worker0", "worker1": "worker1"}
        assert workers.run(steps.call_all) == [names, names]
        workers.run(steps.leave)
