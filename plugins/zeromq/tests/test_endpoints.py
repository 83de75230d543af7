"""Which endpoint of a peer a worker chooses, and the error if it can reach none."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rpc_backend_zeromq import endpoints
from rpc_backend_zeromq.endpoints import Surroundings
from rpc_backend_zeromq.errors import AddressError
from rpc_backend_zeromq.host import Host, this_host
from rpc_backend_zeromq.policy import Policy
from rpc_backend_zeromq.publication import Publication, UnixSocket
from rpc_backend_zeromq.secret import Secret
from rpc_backend_zeromq.unix_sockets import Node

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


def test_this_host_is_the_same_for_all_its_processes_and_no_other() -> None:
    assert this_host() == HERE
    assert HERE.kernel
    assert HERE.network


def test_workers_of_one_host_use_the_unix_socket(unix_socket: UnixSocket) -> None:
    assert endpoints.choose(replace(PEER, unix=unix_socket), ME) == f"ipc://{unix_socket.path}"


def test_they_use_tcp_where_unix_sockets_are_off(unix_socket: UnixSocket) -> None:
    me = replace(ME, unix_sockets=False)

    assert endpoints.choose(replace(PEER, unix=unix_socket), me) == "tcp://127.0.0.1:5000"


def test_a_path_that_leads_to_another_socket_here_is_not_used(unix_socket: UnixSocket) -> None:
    """Two containers have the same host name and path, but separate file systems."""
    theirs = replace(unix_socket, node=Node(unix_socket.node.device, unix_socket.node.inode + 1))

    assert endpoints.choose(replace(PEER, unix=theirs), ME) == "tcp://127.0.0.1:5000"


def test_a_path_that_leads_nowhere_here_is_not_used(unix_socket: UnixSocket) -> None:
    Path(unix_socket.path).unlink()

    assert endpoints.choose(replace(PEER, unix=unix_socket), ME) == "tcp://127.0.0.1:5000"


def test_on_another_machine_the_same_path_is_not_even_looked_at(unix_socket: UnixSocket) -> None:
    peer = replace(PEER, unix=unix_socket, host=ELSEWHERE)

    with pytest.raises(AddressError):
        endpoints.choose(peer, ME)


def test_containers_that_share_the_folder_use_the_unix_socket_across_networks(
    unix_socket: UnixSocket,
) -> None:
    peer = replace(PEER, unix=unix_socket, host=OTHER_CONTAINER)

    assert endpoints.choose(peer, ME) == f"ipc://{unix_socket.path}"


@pytest.mark.parametrize("host", [ELSEWHERE, OTHER_CONTAINER])
def test_the_loopback_interface_of_another_host_or_container_is_not_taken_for_this_one_s(
    host: Host,
) -> None:
    with pytest.raises(AddressError) as caught:
        endpoints.choose(replace(PEER, host=host), ME)

    text = str(caught.value)
    assert text.startswith("worker 'me' cannot reach worker 'w1' (rank 1): it listens on 127.0.0.1")
    assert "(MASTER_ADDR is not set), the loopback interface of another host or container" in text
    assert "Without a secret ZEROMQ runs on a single host only" in text
    assert "rpc-backends secret" in text


def test_with_a_secret_the_remedy_is_an_address(a_secret: Secret) -> None:
    me = replace(ME, policy=Policy(a_secret))

    with pytest.raises(AddressError, match=r"Set the option address or interface of worker 'w1'"):
        endpoints.choose(replace(PEER, host=ELSEWHERE), me)


#: What a worker on a host does with a peer that listens on the addresses given to it.
CHOOSE = """
import json, sys
from rpc_backend_zeromq import endpoints
from rpc_backend_zeromq.host import Host, this_host
from rpc_backend_zeromq.policy import Policy
from rpc_backend_zeromq.publication import Publication
from rpc_backends_core.spi import RpcBackendsError

scopes, *tcp = sys.argv[1:]
me = endpoints.Surroundings("me", this_host(), tuple(scopes.split()), True, Policy())
peer = Publication("g", 1, "w1", 1, Host("k", "n"), tuple(tcp), None, None, "0" * 32, 1, "the test")
try:
    print(json.dumps(endpoints.choose(peer, me)))
except RpcBackendsError as error:
    print(json.dumps(str(error)))
"""


def test_of_several_addresses_the_first_with_a_route_is_used(two_hosts: Any) -> None:
    one, two = two_hosts
    there = [f"tcp://{one.four}:2", f"tcp://[{one.six}]:3"]

    assert two.run(CHOOSE, "", "tcp://127.0.0.1:1", "tcp://192.0.2.1:1", *there) == there[0]
    assert two.run(CHOOSE, "", "tcp://192.0.2.1:1", *reversed(there)) == there[1]


def test_an_address_without_a_route_is_told_with_where_it_is_from(two_hosts: Any) -> None:
    why = two_hosts[1].run(CHOOSE, "", "tcp://192.0.2.1:2", "tcp://[fd99::1]:3")

    assert "it listens on 192.0.2.1 (the test), and there is no route to that address; " in why
    assert "it listens on fd99::1 (the test), and there is no route to that address. Set " in why


def test_a_link_local_address_is_reached_by_the_interface_of_this_worker_s_own(
    two_hosts: Any,
) -> None:
    _, two = two_hosts

    found = two.run(CHOOSE, f"nothing {two.interface}", "tcp://[fe80::1]:5000")

    assert found == f"tcp://[fe80::1%{two.interface}]:5000"


def test_a_link_local_address_needs_an_interface() -> None:
    peer = replace(PEER, host=ELSEWHERE, tcp=("tcp://[fe80::1]:5000",))

    with pytest.raises(AddressError, match="the interface that reaches it is unknown"):
        endpoints.choose(peer, ME)


def test_a_worker_that_listens_nowhere_cannot_be_reached() -> None:
    with pytest.raises(AddressError, match="it does not listen on any address"):
        endpoints.choose(replace(PEER, tcp=()), ME)
