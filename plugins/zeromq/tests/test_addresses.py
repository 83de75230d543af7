"""The address on which a worker listens, on network namespaces with real routes."""

from __future__ import annotations

from typing import Any

import pytest

from rpc_backend_zeromq import addresses, ports
from rpc_backend_zeromq.addresses import Place, Wanted
from rpc_backend_zeromq.policy import Policy
from rpc_backend_zeromq.ports import Ports
from rpc_backend_zeromq.rendezvous import Rendezvous, rendezvous
from rpc_backends_agents.engine.errors import AddressError, ExposureError
from rpc_backends_agents.engine.secret import Secret

HERE = Rendezvous(None, "init_method=file:///x names no host")

#: A program for a host: print the places on which a worker would listen, or why it refuses.
CHOOSE = """
import json, sys
from dataclasses import asdict
from rpc_backend_zeromq import addresses, rendezvous, settings
from rpc_backends_core.spi import RpcBackendsError

here = settings.settings_of(None)
try:
    places = addresses.choose(here.wanted, rendezvous.rendezvous(sys.argv[1]), here.policy)
    print(json.dumps([asdict(place) for place in places]))
except RpcBackendsError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def choose(host: Any, init_method: str = "env://", **environ: str) -> Any:
    variables = {
        name if name == "MASTER_ADDR" else f"RPC_BACKENDS_ZEROMQ_{name}": value
        for name, value in environ.items()
    }
    return host.run(CHOOSE, init_method, env=variables)


# --- the rendezvous host -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init_method", "environ", "host"),
    [
        ("env://", {"MASTER_ADDR": "node0"}, "node0"),
        ("env://?rank=1", {"MASTER_ADDR": " 10.0.0.1 "}, "10.0.0.1"),
        ("env://", {"MASTER_ADDR": "[fd00::1]"}, "fd00::1"),
        ("env://", {}, None),
        ("tcp://node0:29500", {"MASTER_ADDR": "other"}, "node0"),
        ("tcp://10.0.0.1:29500?rank=0&world_size=2", {}, "10.0.0.1"),
        ("tcp://[fd00::1]:29500", {}, "fd00::1"),
        ("tcp://[fe80::1%Eth0]:29500", {}, "fe80::1%Eth0"),
        ("tcp://[broken:29500", {}, None),
        ("file:///shared/store", {"MASTER_ADDR": "node0"}, None),
        ("file://shared/store", {}, None),
        ("etcd://node0:2379/job", {}, "node0"),
        ("mine", {}, None),
    ],
)
def test_the_init_method_gives_the_rendezvous_host(
    init_method: str, environ: dict[str, str], host: str | None
) -> None:
    assert rendezvous(init_method, environ).host == host


# --- one host ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [None, "localhost", "127.0.0.1", "127.0.0.7"])
def test_a_local_rendezvous_means_the_loopback_interface(
    host: str | None, a_secret: Secret
) -> None:
    for policy in (Policy(), Policy(a_secret)):
        (place,) = addresses.choose(Wanted(), Rendezvous(host, "the test"), policy)

        assert (place.address, place.scope, place.is_loopback) == ("127.0.0.1", None, True)
        assert "the test" in place.why


def test_an_unresolvable_rendezvous_host_is_named_in_the_error() -> None:
    meeting = Rendezvous("no-such-host.invalid", "MASTER_ADDR=no-such-host.invalid")

    with pytest.raises(
        AddressError, match=r"'no-such-host.invalid' \(MASTER_ADDR=.*cannot be resolved"
    ):
        addresses.choose(Wanted(), meeting, Policy())


def test_the_error_for_a_foreign_address_lists_local_ones() -> None:
    wanted = Wanted(address="192.0.2.77", said_by="the option address='192.0.2.77'")

    with pytest.raises(AddressError, match=r"is not an address of this machine.*lo 127\.0\.0\.1"):
        addresses.choose(wanted, HERE, Policy())


@pytest.mark.parametrize("name", ["no-such-host.invalid", "x" * 300, "a..b"])
def test_an_unresolvable_name_is_refused(name: str) -> None:
    with pytest.raises(
        AddressError,
        match="the option address is neither an address nor a name that resolves to one",
    ):
        addresses.choose(Wanted(address=name, said_by="the option address"), HERE, Policy())


def test_a_name_of_this_machine_is_accepted() -> None:
    (place,) = addresses.choose(Wanted(address="localhost", said_by="asked"), HERE, Policy())

    assert place.is_loopback


def test_the_error_for_an_unknown_interface_suggests_another() -> None:
    with pytest.raises(AddressError, match=r"asked is not an interface.*Did you mean 'lo'\?"):
        addresses.choose(Wanted(interface="lo0", said_by="asked"), HERE, Policy())


def test_the_loopback_interface_can_be_requested_by_name() -> None:
    places = addresses.choose(Wanted(interface="lo", said_by="asked"), HERE, Policy())

    assert [place.address for place in places][:1] == ["127.0.0.1"]


# --- two hosts -----------------------------------------------------------------------------------


def test_the_address_is_on_the_route_to_the_rendezvous(two_hosts: Any, text: str) -> None:
    host0, host1 = two_hosts

    (four,) = choose(host1, f"tcp://{host0.four}:29500", SECRET=text)
    (six,) = choose(host1, f"tcp://[{host0.six}]:29500", SECRET=text)
    (by_variable,) = choose(host1, MASTER_ADDR=host0.four, SECRET=text)
    (own,) = choose(host0, f"tcp://{host0.four}:29500", SECRET=text)

    assert (four["address"], four["scope"]) == (host1.four, None)
    assert four["why"] == f"route to {host0.four}, init_method=tcp://{host0.four}:29500"
    assert (six["address"], six["scope"]) == (host1.six, None)
    assert by_variable["address"] == host1.four
    assert own["address"] == host0.four


def test_a_dual_stack_name_gives_both_families(two_hosts: Any, text: str) -> None:
    host0, host1 = two_hosts
    code = f"""
import socket
real = socket.getaddrinfo
def both(host, *arguments, **more):
    if host != "node0":
        return real(host, *arguments, **more)
    return real({host0.six!r}, *arguments, **more) + real({host0.four!r}, *arguments, **more)
socket.getaddrinfo = both
{CHOOSE}"""

    places = host1.run(code, "tcp://node0:29500", env={"RPC_BACKENDS_ZEROMQ_SECRET": text})

    assert [place["address"] for place in places] == [host1.six, host1.four]


def test_a_link_local_rendezvous_gives_address_and_interface(two_hosts: Any, text: str) -> None:
    host0, host1 = two_hosts
    link_local = host0.run(
        """
import json
from rpc_backends_core.spi import interfaces
print(json.dumps([i.address for i in interfaces() if i.address.startswith("fe80")][0]))
"""
    )

    (place,) = choose(host1, f"tcp://[{link_local}%{host1.interface}]:29500", SECRET=text)

    assert place["address"].startswith("fe80::")
    assert place["scope"] == host1.interface


def test_without_a_route_the_error_lists_local_addresses(two_hosts: Any, text: str) -> None:
    _, host1 = two_hosts

    kind, error = choose(host1, "tcp://192.0.2.1:29500", SECRET=text)

    assert kind == "AddressError"
    assert "no route to the rendezvous host '192.0.2.1'" in error
    assert f"{host1.interface} {host1.four}" in error


def test_an_interface_gives_its_addresses_without_link_local_ones(
    two_hosts: Any, text: str
) -> None:
    _, host1 = two_hosts

    places = choose(host1, "file:///x", SECRET=text, INTERFACE=host1.interface)

    assert [place["address"] for place in places] == [host1.four, host1.six]


def test_a_requested_address_overrides_the_route(two_hosts: Any, text: str) -> None:
    host0, host1 = two_hosts

    (place,) = choose(host1, f"tcp://[{host0.six}]:29500", SECRET=text, ADDRESS=host1.four)

    assert place["address"] == host1.four
    assert place["why"] == f"RPC_BACKENDS_ZEROMQ_ADDRESS={host1.four}"


# --- addresses that other hosts can reach --------------------------------------------------------


def test_a_reachable_address_is_refused_without_a_secret(two_hosts: Any) -> None:
    host0, host1 = two_hosts

    for environ in ({}, {"ADDRESS": host1.four}, {"INTERFACE": host1.interface}):
        kind, error = choose(host1, f"tcp://{host0.four}:29500", **environ)

        assert kind == "ExposureError"
        assert f"would listen on {host1.four}" in error
        assert "without a secret ZEROMQ runs on the loopback interface only" in error
        assert "`rpc-backends secret --out FILE`" in error
        assert "RPC_BACKENDS_ZEROMQ_SECRET_FILE=FILE" in error
        assert "RPC_BACKENDS_ZEROMQ_TRUSTED_NETWORK=1, or the option trusted_network=True" in error


def test_a_reachable_address_is_refused_without_encryption(two_hosts: Any, text: str) -> None:
    host0, host1 = two_hosts

    kind, error = choose(host1, f"tcp://{host0.four}:29500", SECRET=text, ENCRYPTION="0")

    assert kind == "ExposureError"
    assert "without encryption ZEROMQ runs on the loopback interface only" in error
    assert "RPC_BACKENDS_ZEROMQ_ENCRYPTION=1" in error
    assert "TRUSTED_NETWORK=1" in error


def test_a_trusted_network_allows_a_reachable_address(two_hosts: Any) -> None:
    host0, host1 = two_hosts

    for environ in ({}, {"ENCRYPTION": "0"}):
        (place,) = choose(host1, f"tcp://{host0.four}:29500", TRUSTED_NETWORK="1", **environ)
        assert place["address"] == host1.four


def test_without_a_secret_the_rendezvous_host_uses_loopback(
    two_hosts: Any,
) -> None:
    """The rendezvous host may be given by its own address: all workers run on that host."""
    host0, _ = two_hosts

    for host in (host0.four, f"[{host0.six}]"):
        (place,) = choose(host0, f"tcp://{host}:29500")

        assert place["address"] == "127.0.0.1"
        assert place["why"].startswith("without a secret, and init_method=")


def test_without_a_secret_all_addresses_must_be_loopback(a_secret: Secret) -> None:
    places = [Place("127.0.0.1", None, "x"), Place("10.0.0.5", None, "asked")]
    policy = Policy()
    assert policy.lack == "without a secret"
    assert Policy(a_secret).lack is None
    assert Policy(a_secret, encryption=False).lack == "without encryption"
    assert Policy(None, encryption=False, trusted_network=True).lack is None
    with pytest.raises(ExposureError, match=r"10\.0\.0\.5 \(asked\)"):
        addresses.permitted(places, Wanted(interface="x", said_by="asked"), HERE, policy)


# --- ports ---------------------------------------------------------------------------------------


def test_ports_are_a_number_or_a_range() -> None:
    assert ports.parse("5000") == Ports(5000, 5000)
    assert list(ports.parse(" 5000 - 5002 ") or ()) == [5000, 5001, 5002]
    assert [str(Ports(5000, last)) for last in (5000, 5001)] == ["5000", "5000-5001"]


@pytest.mark.parametrize(
    "text", ["", "-", "0", "5000-", "-5000", "5-4", "65536", "1-2-3", "\u0665"]
)
def test_invalid_ports_parse_as_none(text: str) -> None:
    assert ports.parse(text) is None
