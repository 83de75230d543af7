"""`rpc-backends doctor` on a host whose workers have certificates."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

import rpc_backend_ucx.check
import rpc_backend_zeromq.check
from rpc_backends_agents.engine import worker_certificates
from rpc_backends_cli import Finding
from support.certificates import files, issue
from support.command import run_python

CHECKS = {"ZEROMQ": rpc_backend_zeromq.check.check, "UCX": rpc_backend_ucx.check.check}
both = pytest.mark.parametrize("backend", list(CHECKS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an authority, and certificates for two workers."""
    made = tmp_path / "certificates"
    worker_certificates.make(made, ["trainer0", "trainer1"], 1)
    return made


def variables(backend: str, options: Mapping[str, str]) -> dict[str, str]:
    return {f"RPC_BACKENDS_{backend}_{option.upper()}": path for option, path in options.items()}


def of_certificates(backend: str, options: Mapping[str, str]) -> list[Finding]:
    """Return what the engine's part of doctor finds out about certificates."""
    section = CHECKS[backend](variables(backend, options))
    return [finding for finding in section.findings if finding.about == "certificate"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("ZEROMQ", "{name}"),
        ("UCX", "trainer1"),
        pytest.param("ZEROMQ", "trainer1", marks=pytest.mark.thorough),
        pytest.param("UCX", "{name}", marks=pytest.mark.thorough),
    ],
)
def test_calls_work_with_certificates(folder: Path, backend: str, name: str) -> None:
    done = run_python(
        *("-m", "rpc_backends_cli", "doctor", backend, "--json"),
        env={**os.environ, **variables(backend, files(folder, name))},
    )

    sections = json.loads(done.stdout)["sections"]
    (calls,) = sections["calls"]
    assert [finding["level"] for finding in sections[backend.lower()]].count("problem") == 0
    assert calls["level"] == "ok", calls
    used = "trainer0" if name == "{name}" else name
    assert f"both workers with {folder}/{used}.pem, so names were not checked" in calls["text"]


@both
def test_each_certificate_of_the_host_is_looked_at(folder: Path, backend: str) -> None:
    findings = of_certificates(backend, files(folder))

    for finding, name in zip(findings, ("trainer0", "trainer1"), strict=True):
        assert finding.level == "ok"
        assert finding.data["identity"] == finding.data["name"] == name
        assert f"it is for the worker {name!r}" in finding.text


@both
def test_a_certificate_that_peers_would_refuse_is_a_problem(
    tmp_path: Path, folder: Path, backend: str
) -> None:
    another_authority = tmp_path / "other"
    worker_certificates.make(another_authority, ["trainer0"], 1)
    foreign, *_ = of_certificates(backend, files(another_authority, "trainer0", trusted=folder))
    issue(folder, "trainer0", seconds=-1)
    expired, valid = of_certificates(backend, files(folder))
    os.chmod(folder / "trainer1.key", 0o644)  # noqa: PTH101
    _, open_to_others = of_certificates(backend, files(folder))

    assert [finding.level for finding in (foreign, expired, valid, open_to_others)] == [
        *("problem", "problem"),
        *("ok", "problem"),
    ]
    assert "is not accepted" in foreign.text
    assert "has expired on" in expired.text
    assert "other users can access the key" in open_to_others.text


@both
def test_a_file_for_another_name_is_a_warning(folder: Path, backend: str) -> None:
    for ending in (".pem", ".key"):
        (folder / f"trainer0{ending}").rename(folder / f"boss{ending}")

    boss, _ = of_certificates(backend, files(folder))

    assert boss.level == "warning"
    assert "it is for the worker 'trainer0', and the file is that of 'boss'" in boss.text


@both
def test_no_certificate_on_this_host_is_a_problem(tmp_path: Path, backend: str) -> None:
    (finding,) = of_certificates(backend, files(tmp_path))

    assert finding.level == "problem"
    assert "no file here fits" in finding.text
