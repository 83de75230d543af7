"""The UCX section of ``rpc-backends doctor``: a worker's transports, and why faster ones are missing."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path

from rpc_backend_ucx import names, processes, shared_memory
from rpc_backend_ucx.library import native
from rpc_backend_ucx.options import BACKEND, UCXRpcBackendOptions
from rpc_backend_ucx.settings import TRUST, Settings, settings_of
from rpc_backends_agents.engine import certificate_check, variables
from rpc_backends_cli import Finding, Section
from rpc_backends_core.spi import RpcBackendsError, interfaces, is_loopback

_INFINIBAND = Path("/dev/infiniband")
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
#: The variables that choose network devices; the first one that is set counts.
_DEVICES = (UCXRpcBackendOptions.net_devices.variable, "UCX_NET_DEVICES")
_RDMA = ("rc", "dc", "ud", "ib", "srd")
_TIMEOUT = 5.0


def check(environ: Mapping[str, str] = os.environ) -> Section:
    """Return the findings for a worker started in ``environ``."""
    findings = []
    try:
        there = native().resources([("TLS", "all")])
        findings.append(Finding("ok", "libucx", str(native().version())))
    except (ImportError, RuntimeError) as error:
        return Section(
            "ucx", _TITLE, [Finding("problem", "libucx", f"UCX cannot be used: {error}")]
        )
    for name, close in variables.unknown(BACKEND, UCXRpcBackendOptions.variables(), environ):
        hint = f"; did you mean {close}?" if close else ""
        findings.append(
            Finding("warning", name, f"UCX does not use this variable{hint}", {"nearest": close})
        )
    findings += [_transports(there), *_missing(there)]
    try:
        here = settings_of(None, environ)
    except RpcBackendsError as error:
        findings.append(Finding("problem", "settings", str(error)))
    else:
        findings += [
            *_cma(there, here),
            *_proof(here),
            _network(here),
            *_addresses(here, environ),
            _between(here),
            _TENSORS_ON_GPUS,
        ]
    return Section("ucx", _TITLE, findings)


_TITLE = "UCX settings of a worker started here"
#: The same on every machine, whether or not UCX has transports for GPUs.
_TENSORS_ON_GPUS = Finding(
    "note",
    "tensors on GPUs",
    "are copied through host memory. UCX moves those of the types that the option device_memory names",
)


def _transports(there: list[str]) -> Finding:
    devices: dict[str, list[str]] = {}
    for listed in there:
        transport, _, device = listed.partition("/")
        devices.setdefault(transport, []).append(device)
    shown = [
        transport if of_transport == ["memory"] else f"{transport} ({', '.join(of_transport)})"
        for transport, of_transport in devices.items()
    ]
    text = f"UCX has {', '.join(shown)}. The settings below say which of them workers use"
    return Finding("ok", "transports here", text, {"transports": devices})


def _missing(there: list[str]) -> list[Finding]:
    """Return a finding for each faster transport that is missing."""
    has = {transport.partition("/")[0] for transport in there}
    findings = []
    if not any(transport.startswith(_RDMA) for transport in has):
        why = (
            "UCX finds none in /dev/infiniband; the wheel libucx-cu12 may be built without RDMA"
            if _INFINIBAND.exists()
            else "there is no /dev/infiniband"
        )
        text = f"none: {why}. Hosts of a trusted network use TCP"
        findings.append(Finding("note", "RDMA", text))
    else:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if soft != resource.RLIM_INFINITY:
            findings.append(
                Finding(
                    "warning",
                    "locked memory",
                    f"RDMA locks memory, and `ulimit -l` allows {soft >> 10} KiB; make it unlimited",
                )
            )
    room = shared_memory.room()
    if room.free < 2 * shared_memory.PER_WORKER:
        findings.append(Finding("problem", room.folder, shared_memory.too_small(room)))
    return findings


def _cma(there: list[str], here: Settings) -> list[Finding]:
    scheme = here.more.get("RNDV_SCHEME") or os.environ["UCX_RNDV_SCHEME"]
    if scheme == "am" or any(transport.startswith("cma/") for transport in there):
        return []
    text = (
        "large tensors within this host are copied twice, because workers may not read each "
        f"other's memory: {_why_no_cma()}"
    )
    return [Finding("warning", "cma", text)]


def _why_no_cma() -> str:
    try:
        scope = int(_PTRACE_SCOPE.read_text())
    except (OSError, ValueError):
        return "the kernel or the container forbids process_vm_readv (docker: --cap-add SYS_PTRACE)"
    return f"kernel.yama.ptrace_scope is {scope}; 0 or 1 permits it"


def _proof(here: Settings) -> list[Finding]:
    if here.certificates is None:
        return [_secret(here)]
    return certificate_check.check(here.certificates, native())


def _secret(here: Settings) -> Finding:
    if here.secret is not None:
        text = f"from {here.secret.source}, fingerprint {here.secret.fingerprint}"
        data = {"source": here.secret.source, "fingerprint": here.secret.fingerprint}
        return Finding("ok", "secret", text, data)
    nowhere = {"source": None, "fingerprint": None}
    text = (
        "none: every process that can read the group's store can join the group. Make a secret with "
        "`rpc-backends secret --out FILE` and give that file to every worker "
        f"({UCXRpcBackendOptions.secret_file.variable}=FILE, or the option secret_file)"
    )
    return Finding("warning" if here.trusted_network else "note", "secret", text, nowhere)


def _network(here: Settings) -> Finding:
    if here.trusted_network:
        text = "declared as trusted: messages are neither encrypted nor protected against changes"
        return Finding("warning", "network", text, {"trusted": True})
    text = (
        f"not trusted, so workers use shared memory ({', '.join(names.PRIVATE)}), within one host only. "
        f"{TRUST}."
    )
    return Finding("note", "network", text, {"trusted": False})


def _addresses(here: Settings, environ: Mapping[str, str]) -> list[Finding]:
    """Return the addresses on which a worker listens with TCP, and the reason; nothing without TCP."""
    why = next(
        (f"{name}={text}" for name in _DEVICES if (text := variables.text(name, environ))),
        f"{UCXRpcBackendOptions.net_devices.variable} is not set, so UCX uses all devices",
    )
    try:
        used = native().resources(here.config(watches_processes=processes.can_watch()))
    except RuntimeError:
        return []  # the finding about two workers has the reason
    names_of_devices = [
        interface.partition("/")[2] for interface in used if interface.startswith("tcp/")
    ]
    first: dict[str, str] = {}  # UCX prefers IPv4, and so does the order of the interfaces
    for interface in interfaces():
        first.setdefault(interface.name, interface.address)
    addresses = {name: first[name] for name in names_of_devices if name in first}
    if not addresses:
        return []
    shown = ", ".join(f"{address} ({name})" for name, address in addresses.items())
    data = {"addresses": addresses, "why": why}
    if all(is_loopback(address) for address in addresses.values()):
        text = f"{shown}: workers on other hosts cannot reach it; {why}"
        return [Finding("warning", "address", text, data)]
    text = f"{shown}; each peer uses one that it can reach; {why}"
    return [Finding("ok", "address", text, data)]


def _between(here: Settings) -> Finding:
    """Return which transports two workers of this process would use for each other."""
    about = "two workers here"
    try:
        transports = transports_between_two(here)
    except RuntimeError as error:
        return Finding("problem", about, f"they cannot communicate: {error}")
    if not transports:
        return Finding("problem", about, "they cannot communicate: no answer")
    return Finding(
        "ok", about, f"communicate over {transports}", {"transports": transports.split()}
    )


def transports_between_two(here: Settings) -> str:
    """Return the transports between two workers with these settings; empty if they do not communicate.

    :raises RuntimeError: UCX cannot start or connect them.
    """
    config = here.config(watches_processes=processes.can_watch())
    proofs = (b"\0" * 32, b"\1" * 32)
    two = []
    try:
        for worker in (0, 1):
            transport = native().Transport(
                config=config,
                handshake_timeout=_TIMEOUT,
                rendezvous=0,
                **here.native,
            )
            two.append(transport)
            transport.start(worker, bytes(32))
        for worker, peer in ((0, 1), (1, 0)):
            two[worker].learn(peer, two[peer].address(), proofs[worker], proofs[peer])
        two[0].send(1, [b""], False)
        for _ in range(int(_TIMEOUT / 0.05)):
            for transport in two:
                event = transport.receive(0.05)
                if event is not None and event[0] == "message":
                    return str(two[0].metrics().get("ucx.transports.1", ""))
        return ""
    finally:
        for transport in two:
            transport.close(0)
