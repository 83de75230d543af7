"""The ZEROMQ section of ``rpc-backends doctor``: which settings a worker would use here, and why."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

from rpc_backend_zeromq import addresses, identity, policy, settings, unix_sockets
from rpc_backend_zeromq.options import BACKEND, ZeroMQRpcBackendOptions
from rpc_backend_zeromq.rendezvous import rendezvous
from rpc_backend_zeromq.settings import Settings
from rpc_backends_agents.engine import certificate_check, variables
from rpc_backends_agents.engine.errors import AddressError, ExposureError
from rpc_backends_cli import Finding, Section
from rpc_backends_core.spi import RpcBackendsError

_INIT_METHOD = "env://"


def check(environ: Mapping[str, str] = os.environ) -> Section:
    """Return the findings for a worker started in ``environ`` with ``init_method="env://"``."""
    findings = _variables(environ)
    try:
        here = settings.settings_of(None, environ)
    except RpcBackendsError as error:
        findings += [_library(fips=False), Finding("problem", "settings", str(error))]
    else:
        findings += [
            _library(fips=here.fips),
            *_proof(here),
            _encryption(here),
            *_addresses(here, environ),
            _unix(here, environ),
        ]
    return Section("zeromq", "ZEROMQ settings of a worker started here", findings)


def _library(*, fips: bool) -> Finding:
    try:
        version = _openssl_version(fips=fips)
    except (ImportError, RuntimeError) as error:
        return Finding("problem", "OpenSSL", f"OpenSSL cannot be used: {error}")
    protocol = "TLS 1.3 with FIPS" if fips else "TLS 1.3"
    return Finding("ok", "OpenSSL", f"{version}, for {protocol}", {"version": version})


def _openssl_version(*, fips: bool) -> str:
    """Create and close a transport that encrypts; return the version of OpenSSL in the package."""
    from rpc_backend_zeromq._native import Transport

    public, private = identity.session_keys(fips=fips)
    transport = Transport(
        public_key=public,
        secret_key=private,
        fips=fips,
        handshake_timeout=1,
        **ZeroMQRpcBackendOptions().native({}),
    )
    version = transport.metrics()["zeromq.openssl"]
    transport.close(0)
    return version


def _variables(environ: Mapping[str, str]) -> list[Finding]:
    findings = []
    for name, close in variables.unknown(BACKEND, ZeroMQRpcBackendOptions.variables(), environ):
        hint = f"; did you mean {close}?" if close else ""
        findings.append(
            Finding("warning", name, f"ZEROMQ does not use this variable{hint}", {"nearest": close})
        )
    return findings


def _proof(here: Settings) -> list[Finding]:
    if here.policy.certificates is None:
        return [_secret(here)]
    from rpc_backend_zeromq import _native

    return certificate_check.check(here.policy.certificates, _native, fips=here.fips)


def _secret(here: Settings) -> Finding:
    secret = here.policy.secret
    if secret is not None:
        data: dict[str, object] = {"source": secret.source, "fingerprint": secret.fingerprint}
        text = f"from {secret.source}, fingerprint {secret.fingerprint}"
        return Finding("ok", "secret", text, data)
    nowhere = {"source": None, "fingerprint": None}
    if here.policy.trusted_network:
        text = f"none, so anyone who can reach a worker can run code in it. {policy.GIVE_A_SECRET}."
        return Finding("warning", "secret", text, nowhere)
    text = f"none, so workers communicate within one host only. {policy.GIVE_A_SECRET}."
    return Finding("note", "secret", text, nowhere)


def _encryption(here: Settings) -> Finding:
    if here.policy.encryption:
        text = (
            "on"
            if here.unix_sockets is False or here.policy.certificates is not None
            else "on for TCP; Unix sockets are private to this user and not encrypted"
        )
        return Finding("ok", "encryption", text, {"on": True})
    text = "off: anyone who can reach a worker can run code in it"
    return Finding("warning", "encryption", text, {"on": False})


def _addresses(here: Settings, environ: Mapping[str, str]) -> list[Finding]:
    meeting = rendezvous(_INIT_METHOD, environ)
    try:
        places = addresses.choose(here.wanted, meeting, here.policy)
    except ExposureError as error:
        return [Finding("problem", "address", f"a worker would refuse to start: {error}")]
    except AddressError as error:
        return [Finding("problem", "address", str(error))]
    findings = []
    for place in places:
        interface = addresses.interface_name(place)
        where = f"{place.scoped} ({interface or 'interface not known'})"
        data = {"address": place.scoped, "interface": interface, "why": place.why}
        data["ports"] = None if here.ports is None else str(here.ports)
        ports = "any port" if here.ports is None else f"port {here.ports}"
        text = f"{where}, {ports}; the reason: {place.why}"
        if place.is_loopback and here.policy.lack is None and _is_name(meeting.host):
            # Debian gives a machine's own name the address 127.0.1.1.
            text += (
                f". Here {meeting.host} is a loopback address, so workers on other hosts cannot reach "
                "this worker. Give all workers the host's address, or set "
                f"{ZeroMQRpcBackendOptions.interface.variable}"
            )
            findings.append(Finding("warning", "address", text, data))
        else:
            findings.append(Finding("ok", "address", text, data))
    return findings


def _is_name(host: str | None) -> bool:
    """Return whether ``host`` is a name that can stand for another address on other hosts."""
    if host is None or host == "localhost":
        return False
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return True
    return False


def _unix(here: Settings, environ: Mapping[str, str]) -> Finding:
    if here.unix_sockets is False:
        return Finding("note", "Unix sockets", "off: workers on this host use TCP too")
    try:
        folder = unix_sockets.SocketFolder(environ)
    except AddressError as error:
        return Finding("problem" if here.unix_sockets else "note", "Unix sockets", str(error))
    where = Path(folder.socket).parent.parent
    folder.remove()
    return Finding("ok", "Unix sockets", f"in {where}", {"folder": str(where)})
