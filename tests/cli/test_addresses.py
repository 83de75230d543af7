"""`addresses.choose` predicts which address torch's agent listens on."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from rpc_backends_cli.addresses import Interface, Machine, check, choose, interfaces, machine

LO = Interface("lo", "127.0.0.1")
ETH = Interface("eth0", "192.0.2.2")
ETH6 = Interface("eth0", "2001:db8::2")


def _machine(resolved: list[str], bindable: list[str] | None = None) -> Machine:
    return Machine([LO, ETH, ETH6], "here", resolved, resolved if bindable is None else bindable)


def _found(here: Machine, **environ: str) -> tuple[str, str]:
    (finding,) = check(here, environ).findings
    return finding.level, finding.text


def test_a_set_interface_gives_its_first_address() -> None:
    chosen = choose(_machine(["127.0.1.1"]), {"TP_SOCKET_IFNAME": "eth0"})

    assert (chosen.address, chosen.interface, chosen.failure) == ("192.0.2.2", "eth0", None)


def test_a_missing_interface_is_a_problem_that_lists_others() -> None:
    level, text = _found(_machine(["192.0.2.2"]), TP_SOCKET_IFNAME="eth7")

    assert level == "problem"
    assert text.startswith("127.0.0.1 (lo), by TP_SOCKET_IFNAME=eth7")
    assert "eth0 (192.0.2.2)" in text


def test_the_hostnames_first_bindable_address_is_used() -> None:
    here = _machine(["198.51.100.7", "2001:db8::2"], ["2001:db8::2"])

    chosen = choose(here, {})

    assert (chosen.address, chosen.interface) == ("2001:db8::2", "eth0")


def test_a_hostname_with_a_foreign_address_is_a_warning() -> None:
    level, text = _found(_machine(["198.51.100.7"], []))

    assert level == "warning"
    assert "198.51.100.7, which is not the address of any interface" in text
    assert "Set TP_SOCKET_IFNAME" in text


def test_an_unresolvable_hostname_is_a_warning() -> None:
    level, text = _found(_machine([]))

    assert level == "warning"
    assert text.startswith("127.0.0.1 (lo)")


def test_loopback_is_fine_on_one_machine() -> None:
    level, text = _found(_machine(["127.0.1.1"]))

    assert level == "note"
    assert text.startswith("127.0.1.1 (lo), by hostname 'here'")


@pytest.mark.parametrize(
    "environ",
    [{"MASTER_ADDR": "203.0.113.9"}, {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}],
)
def test_loopback_is_a_warning_with_several_machines(
    environ: dict[str, str],
) -> None:
    level, text = _found(_machine(["127.0.1.1"]), **environ)

    assert level == "warning"
    assert next(iter(environ)) in text


def test_loopback_is_fine_if_the_master_is_local() -> None:
    level, _ = _found(_machine(["127.0.0.1"]), MASTER_ADDR="192.0.2.2")

    assert level == "note"


def test_the_found_addresses_can_be_bound() -> None:
    addresses = interfaces()

    assert {address.name for address in addresses} <= {name for _, name in socket.if_nameindex()}
    for address in addresses:
        if ":" not in address.address:
            with socket.socket() as trial:
                trial.bind((address.address, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable",
    [None, "lo", *(pytest.param(x, marks=pytest.mark.thorough) for x in ("", "no-such-if"))],
)
def test_torchs_agent_listens_on_the_predicted_address(command: Any, variable: str | None) -> None:
    code = """
        import torch.distributed as dist
        from torch.distributed import rpc
        options = rpc.TensorPipeRpcBackendOptions(_transports=["uv"], _channels=["basic"])
        store = dist.HashStore()
        agent = rpc.TensorPipeAgent(store, "alone", 0, 1, options, {}, [])
        rpc.api._set_and_start_rpc_agent(agent)
        print(store.get("addrs/alone").decode())
        agent.shutdown()
    """
    environ = {} if variable is None else {"TP_SOCKET_IFNAME": variable}

    ended = command.python("-c", "if True:" + code, env=environ)

    assert ended.stdout.startswith(f"uv://{choose(machine(), environ).address}:"), ended.stderr
