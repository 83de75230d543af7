"""Which endpoint of a peer a worker chooses, and the error if none is reachable."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rpc_backend_zeromq import endpoints
from rpc_backend_zeromq.endpoints import Surroundings
from rpc_backend_zeromq.policy import Policy
from rpc_backend_zeromq.publication import Publication, UnixSocket
from rpc_backend_zeromq.unix_sockets import Node
from rpc_backends_agents.engine.errors import AddressError
from rpc_backends_agents.engine.host import Host, Process, this_host
from rpc_backends_agents.engine.secret import Secret

HERE = this_host()
ELSEWHERE = Host("another kernel", "4:1")
OTHER_CONTAINER = replace(HERE, network="4:1")
ME = Surroundings("me", HERE, (), unix_sockets=True, policy=Policy())
PEER = Publication(
    group="g",
    worker_id=1,
    name="w1",
    rank=1,
    host=HERE,
    tcp=("tcp://127.0.0.1:5000",),
    unix=None,
    public_key=None,
    session="0" * 32,
    max_message_bytes=1,
    process=Process(0, 0, ""),
    place="MASTER_ADDR is not set",
)


@pytest.fixture
def unix_socket() -> Iterator[UnixSocket]:
    path = Path(f"/tmp/rpcz-endpoint-{os.getpid()}")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        node = Node.of_socket(str(path))
        assert node is not None
        try:
            yield UnixSocket(str(path), node)
        finally:
            path.unlink(missing_ok=True)


#: A program for a host: print its `Host`.
SHOW_HOST = """
import json
from dataclasses import asdict
from rpc_backends_agents.engine.host import this_host

print(json.dumps(asdict(this_host())))
"""


def test_processes_in_one_network_have_the_same_host() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW_HOST], capture_output=True, text=True, check=True
    )

    assert Host(**json.loads(done.stdout)) == HERE
    assert HERE.kernel
    assert HERE.network


def test_processes_in_different_networks_have_different_hosts(two_hosts: Any) -> None:
    host0, host1 = (Host(**host.run(SHOW_HOST)) for host in two_hosts)

    assert HERE.kernel == host0.kernel == host1.kernel
    assert len({HERE.network, host0.network, host1.network}) == 3


def test_workers_on_one_host_use_the_unix_socket(unix_socket: UnixSocket) -> None:
    assert endpoints.choose(replace(PEER, unix=unix_socket), ME) == f"ipc://{unix_socket.path}"


def test_workers_use_tcp_if_unix_sockets_are_off(unix_socket: UnixSocket) -> None:
    me = replace(ME, unix_sockets=False)

    assert endpoints.choose(replace(PEER, unix=unix_socket), me) == "tcp://127.0.0.1:5000"


def test_another_socket_at_the_same_path_is_not_used(unix_socket: UnixSocket) -> None:
    """Two containers have the same host name and path, but separate file systems."""
    another = replace(unix_socket, node=Node(unix_socket.node.device, unix_socket.node.inode + 1))

    assert endpoints.choose(replace(PEER, unix=another), ME) == "tcp://127.0.0.1:5000"


def test_a_missing_socket_file_is_not_used(unix_socket: UnixSocket) -> None:
    Path(unix_socket.path).unlink()

    assert endpoints.choose(replace(PEER, unix=unix_socket), ME) == "tcp://127.0.0.1:5000"


def test_the_unix_socket_of_another_machine_is_not_used(unix_socket: UnixSocket) -> None:
    peer = replace(PEER, unix=unix_socket, host=ELSEWHERE)

    with pytest.raises(AddressError):
        endpoints.choose(peer, ME)


def test_containers_with_a_shared_folder_use_unix_sockets(
    unix_socket: UnixSocket,
) -> None:
    peer = replace(PEER, unix=unix_socket, host=OTHER_CONTAINER)

    assert endpoints.choose(peer, ME) == f"ipc://{unix_socket.path}"


@pytest.mark.parametrize("host", [ELSEWHERE, OTHER_CONTAINER])
def test_a_loopback_address_elsewhere_is_an_error(
    host: Host,
) -> None:
    with pytest.raises(AddressError) as caught:
        endpoints.choose(replace(PEER, host=host), ME)

    text = str(caught.value)
    assert text.startswith("worker 'me' cannot reach worker 'w1' (rank 1): it listens on 127.0.0.1")
    assert "(MASTER_ADDR is not set), the loopback interface of another host or container" in text
    assert "Without a secret ZEROMQ runs on a single host only" in text
    assert "rpc-backends secret" in text


def test_with_a_secret_the_error_suggests_an_address(a_secret: Secret) -> None:
    me = replace(ME, policy=Policy(a_secret))

    with pytest.raises(AddressError, match=r"Set the option address or interface of worker 'w1'"):
        endpoints.choose(replace(PEER, host=ELSEWHERE), me)


#: A program for a host: choose among the addresses on which a peer listens.
CHOOSE = """
import json, sys
from rpc_backend_zeromq import endpoints
from rpc_backends_agents.engine.host import Host, this_host, this_process
from rpc_backend_zeromq.policy import Policy
from rpc_backend_zeromq.publication import Publication
from rpc_backends_core.spi import RpcBackendsError

scopes, *tcp = sys.argv[1:]
me = endpoints.Surroundings("me", this_host(), tuple(scopes.split()), True, Policy())
peer = Publication(
    group="g", worker_id=1, name="w1", rank=1, host=Host("k", "n"), tcp=tuple(tcp), unix=None,
    public_key=None, session="0" * 32, max_message_bytes=1, process=this_process(),
    place="the test",
)
try:
    print(json.dumps(endpoints.choose(peer, me)))
except RpcBackendsError as error:
    print(json.dumps(str(error)))
"""


def test_the_first_address_with_a_route_is_used(two_hosts: Any) -> None:
    host0, host1 = two_hosts
    there = [f"tcp://{host0.four}:2", f"tcp://[{host0.six}]:3"]

    assert host1.run(CHOOSE, "", "tcp://127.0.0.1:1", "tcp://192.0.2.1:1", *there) == there[0]
    assert host1.run(CHOOSE, "", "tcp://192.0.2.1:1", *reversed(there)) == there[1]


def test_the_error_names_unroutable_addresses_and_their_source(two_hosts: Any) -> None:
    error = two_hosts[1].run(CHOOSE, "", "tcp://192.0.2.1:2", "tcp://[fd99::1]:3")

    assert "it listens on 192.0.2.1 (the test), and there is no route to that address; " in error
    assert "it listens on fd99::1 (the test), and there is no route to that address. Set " in error


def test_link_local_addresses_get_this_workers_own_interface(
    two_hosts: Any,
) -> None:
    _, host1 = two_hosts

    chosen = host1.run(CHOOSE, f"nothing {host1.interface}", "tcp://[fe80::1]:5000")

    assert chosen == f"tcp://[fe80::1%{host1.interface}]:5000"


def test_a_link_local_address_needs_an_interface() -> None:
    peer = replace(PEER, host=ELSEWHERE, tcp=("tcp://[fe80::1]:5000",))

    with pytest.raises(AddressError, match="the interface that reaches it is unknown"):
        endpoints.choose(peer, ME)


def test_a_worker_that_listens_nowhere_cannot_be_reached() -> None:
    with pytest.raises(AddressError, match="it does not listen on any address"):
        endpoints.choose(replace(PEER, tcp=()), ME)
