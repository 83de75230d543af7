"""The ZEROMQ section of `rpc-backends doctor`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rpc_backend_zeromq.check import check
from rpc_backends_cli import Finding
from support.command import run_python

PREFIX = "RPC_BACKENDS_ZEROMQ_"


def findings_in(environ: dict[str, str]) -> dict[str, Finding]:
    return {finding.about: finding for finding in check(environ).findings}


def test_the_defaults_are_one_host_and_no_problem() -> None:
    findings = findings_in({})

    assert findings["OpenSSL"].level == "ok"
    assert findings["OpenSSL"].text == f"{findings['OpenSSL'].data['version']}, for TLS 1.3"
    assert findings["secret"].level == "note"
    assert "so workers communicate within one host only" in findings["secret"].text
    assert "`rpc-backends secret --out FILE`" in findings["secret"].text
    assert (
        findings["encryption"].text
        == "on for TCP; Unix sockets are private to this user and not encrypted"
    )
    assert (
        findings["address"].text == "127.0.0.1 (lo), any port; the reason: MASTER_ADDR is not set"
    )
    assert findings["Unix sockets"].level == "ok"
    assert set(findings) == {"OpenSSL", "secret", "encryption", "address", "Unix sockets"}


def test_fips_without_a_provider_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    code = """
from rpc_backend_zeromq.check import check
(openssl,) = [finding for finding in check().findings if finding.about == "OpenSSL"]
print(f"{openssl.level}: {openssl.text}")
"""
    environ = {**os.environ, "OPENSSL_MODULES": str(tmp_path), f"{PREFIX}FIPS": "1"}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    ).stdout

    assert output.startswith("problem: OpenSSL cannot be used: fips is on")
    assert str(tmp_path) in output
    assert "set OPENSSL_MODULES" in output


def test_the_source_of_the_secret_is_shown(secret_file: Path, text: str) -> None:
    findings = findings_in({f"{PREFIX}SECRET_FILE": str(secret_file)})

    assert findings["secret"].level == "ok"
    assert f"{PREFIX}SECRET_FILE ({secret_file})" in findings["secret"].text
    assert findings["secret"].data["fingerprint"] in findings["secret"].text
    assert text[15:30] not in repr(check({f"{PREFIX}SECRET": text}))


def test_an_unusable_secret_is_a_problem_with_a_remedy(secret_file: Path) -> None:
    secret_file.chmod(0o644)

    findings = findings_in({f"{PREFIX}SECRET_FILE": str(secret_file)})

    assert findings["settings"].level == "problem"
    assert f"chmod 600 {secret_file}" in findings["settings"].text


def test_an_unknown_variable_is_a_warning_with_a_suggestion() -> None:
    finding = findings_in({f"{PREFIX}ADRESS": "10.0.0.5"})[f"{PREFIX}ADRESS"]

    assert finding.level == "warning"
    assert f"did you mean {PREFIX}ADDRESS?" in finding.text


def test_an_unknown_interface_is_a_problem() -> None:
    finding = findings_in({f"{PREFIX}INTERFACE": "eth77"})["address"]

    assert finding.level == "problem"
    assert "RPC_BACKENDS_ZEROMQ_INTERFACE=eth77 is not an interface" in finding.text


def test_unsafe_settings_are_warnings() -> None:
    findings = findings_in(
        {f"{PREFIX}TRUSTED_NETWORK": "1", f"{PREFIX}ENCRYPTION": "0", f"{PREFIX}UNIX_SOCKETS": "0"}
    )

    assert findings["secret"].level == findings["encryption"].level == "warning"
    assert "anyone who can reach a worker can run code in it" in findings["secret"].text
    assert findings["Unix sockets"].level == "note"


def test_the_address_is_shown_with_interface_and_reason(two_hosts: Any, secret_file: Path) -> None:
    host0, host1 = two_hosts
    code = """
import json
import os
from dataclasses import asdict
from rpc_backend_zeromq.check import check
print(json.dumps([asdict(finding) for finding in check().findings if finding.about == "address"]))
"""
    variables = {"MASTER_ADDR": host0.four}

    (allowed,) = host1.run(
        code,
        env={**variables, f"{PREFIX}SECRET_FILE": str(secret_file), f"{PREFIX}PORTS": "5000-5010"},
    )
    (refused,) = host1.run(code, env=variables)

    assert allowed["level"] == "ok"
    assert allowed["text"] == (
        f"{host1.four} ({host1.interface}), port 5000-5010; "
        f"the reason: route to {host0.four}, MASTER_ADDR={host0.four}"
    )
    assert allowed["data"]["interface"] == host1.interface
    assert refused["level"] == "problem"
    assert "a worker would refuse to start" in refused["text"]
    assert "rpc-backends secret" in refused["text"]


def test_a_rendezvous_name_with_a_loopback_address_is_a_warning(
    secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian gives a machine's own name the address 127.0.1.1, which other machines cannot reach."""
    real = socket.getaddrinfo

    def as_on_debian(host: Any, *arguments: Any, **options: Any) -> Any:
        return real("127.0.1.1" if host == "node0" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", as_on_debian)
    secret = {f"{PREFIX}SECRET_FILE": str(secret_file)}

    finding = findings_in({"MASTER_ADDR": "node0", **secret})["address"]

    assert finding.level == "warning"
    assert "Here node0 is a loopback address" in finding.text
    for host in ("localhost", "127.0.0.1"):
        assert findings_in({"MASTER_ADDR": host, **secret})["address"].level == "ok"


@pytest.mark.slow
def test_doctor_shows_the_findings_under_zeromq(secret_file: Path, text: str) -> None:
    done = run_python(
        *("-m", "rpc_backends_cli", "doctor", "TENSORPIPE", "--no-calls", "--json"),
        env={**os.environ, "RPC_BACKENDS_ZEROMQ_SECRET_FILE": str(secret_file)},
    )

    findings = {
        finding["about"]: finding for finding in json.loads(done.stdout)["sections"]["zeromq"]
    }
    assert findings["secret"]["level"] == "ok"
    assert findings["OpenSSL"]["level"] == "ok"
    assert text not in done.stdout
