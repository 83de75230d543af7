"""The UCX section of `rpc-backends doctor`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rpc_backend_ucx.check import check, transports_between_two
from rpc_backend_ucx.settings import settings_of
from rpc_backends_cli import Finding

P = "RPC_BACKENDS_UCX_"


def findings_of(environ: dict[str, str]) -> dict[str, Finding]:
    return {finding.about: finding for finding in check(environ).findings}


def test_by_default_workers_use_shared_memory() -> None:
    findings = findings_of({})

    assert "posix" in findings["transports here"].data["transports"]
    assert findings["two workers here"].level == "ok"
    assert "posix/memory" in findings["two workers here"].data["transports"]
    assert "within one host only" in findings["network"].text
    assert findings["secret"].level == "note"
    assert "through host memory" in findings["tensors on GPUs"].text


def test_the_reason_for_no_rdma_is_shown() -> None:
    finding = findings_of({}).get("RDMA")

    if not Path("/dev/infiniband").exists():
        assert finding is not None
        assert "there is no /dev/infiniband" in finding.text


def test_tcp_alone_is_shown_where_the_network_is_trusted() -> None:
    findings = findings_of({f"{P}TRUSTED_NETWORK": "1", f"{P}TRANSPORTS": "tcp"})

    assert findings["network"].level == findings["secret"].level == "warning"
    (transport,) = findings["two workers here"].data["transports"]
    assert transport.startswith("tcp/")
    assert f"{P}NET_DEVICES is not set" in findings["address"].text


def test_an_address_that_only_this_host_reaches_is_a_warning() -> None:
    finding = findings_of({f"{P}TRUSTED_NETWORK": "1", f"{P}NET_DEVICES": "lo"})["address"]

    assert finding.level == "warning"
    assert finding.text == (
        f"127.0.0.1 (lo): workers on other hosts cannot reach it; {P}NET_DEVICES=lo"
    )
    assert "address" not in findings_of({})  # shared memory only


def test_settings_that_would_fail_a_start_are_problems() -> None:
    assert "UCX neither encrypts" in findings_of({f"{P}TRANSPORTS": "tcp"})["settings"].text
    assert findings_of({f"{P}TRANSPORTS": "tpc"})["settings"].level == "problem"
    assert (
        f"did you mean {P}TRANSPORTS?"
        in findings_of({f"{P}TRANSPORT": "tcp"})[f"{P}TRANSPORT"].text
    )


def test_two_workers_get_every_native_option() -> None:
    settings = settings_of(None, {})
    one_more = dataclasses.replace(settings, native={**settings.native, "made_up": 1})

    with pytest.raises(TypeError, match="made_up"):
        transports_between_two(one_more)
