"""`rpc-backends secret` makes a secret that only its owner can read, or certificates for workers."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rpc_backend_zeromq._native import Certificates
from rpc_backends_agents.engine import secret
from rpc_backends_agents.engine.secret_command import command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def test_it_prints_only_a_new_secret() -> None:
    first, second = run(), run()

    assert secret.parse(first.stdout, "stdout") != secret.parse(second.stdout, "stdout")
    assert first.stdout.count("\n") == 1
    assert first.stderr == ""


def test_out_writes_a_private_file_without_printing_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "rpc.secret"
    before = os.umask(0)
    try:
        done = run("--out", str(path))
    finally:
        os.umask(before)

    written = secret.read(str(path), "the file")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().strip() not in done.output
    assert f"RPC_BACKENDS_ZEROMQ_SECRET_FILE={path}" in done.stdout
    assert written.fingerprint in done.stdout


def test_json_contains_the_secret_or_its_file(tmp_path: Path) -> None:
    shown = json.loads(run("--json").stdout)
    written = json.loads(run("--json", "--out", str(tmp_path / "s")).stdout)

    made = secret.parse(shown["secret"], "json")
    assert shown == {
        "secret": shown["secret"],
        "fingerprint": made.fingerprint,
        "variables": {
            "ZEROMQ": "RPC_BACKENDS_ZEROMQ_SECRET",
            "UCX": "RPC_BACKENDS_UCX_SECRET",
        },
    }
    assert written == {
        "file": str(tmp_path / "s"),
        "fingerprint": secret.read(str(tmp_path / "s"), "file").fingerprint,
        "variables": {
            "ZEROMQ": "RPC_BACKENDS_ZEROMQ_SECRET_FILE",
            "UCX": "RPC_BACKENDS_UCX_SECRET_FILE",
        },
    }


def test_out_overwrites_no_file_and_follows_no_link(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    there.write_text("precious")
    link.symlink_to(tmp_path / "elsewhere")

    for path in (there, link):
        done = run("--out", str(path))
        assert done.exit_code == 1
        assert f"{path} already exists" in done.stderr
    assert there.read_text() == "precious"
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_folder_is_an_error_without_traceback(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "no" / "secret"))

    assert done.exit_code == 1
    assert "cannot be written: " in done.stderr
    assert "Traceback" not in done.output


def test_help_explains_the_secret_and_shows_its_use() -> None:
    text = run("--help").stdout

    assert "Anyone who has the secret can run code on every worker" in " ".join(text.split())
    assert "RPC_BACKENDS_ZEROMQ_SECRET_FILE=~/rpc.secret python train.py" in text
    assert "rpc-backends secret --out" in text


@pytest.mark.parametrize("arguments", [("secret",), ("--help",)])
def test_the_command_imports_neither_torch_nor_the_transport(
    arguments: tuple[str, ...],
) -> None:
    code = """
import sys
from rpc_backends_cli.app import cli
cli(sys.argv[1:], standalone_mode=False)
print(sorted({"torch", "rpc_backend_zeromq._native"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "secret" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


# --- certificates ------------------------------------------------------------------------------------


def certificates(folder: Path, name: str) -> Certificates:
    parts = [
        (folder / file).read_bytes() for file in (f"{name}.pem", f"{name}.key", "authority.pem")
    ]
    return Certificates(*parts)


def test_worker_makes_an_authority_and_certificates_for_names(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    done = run("--worker", "trainer0", "--worker", "trainer1", "--out", str(folder))

    assert done.exit_code == 0, done.output
    first, second = (certificates(folder, name) for name in ("trainer0", "trainer1"))
    identity, serial, key = second.check(first.chain, first.sign(b"data"), b"data")
    assert (identity, serial, key) == ("trainer0", first.serial, first.key)
    year = 365 * 24 * 3600
    assert abs(first.expires - time.time() - year) < 3600
    assert f"RPC_BACKENDS_ZEROMQ_CERTIFICATE='{folder}/{{name}}.pem'" in done.stdout
    assert "Keep authority.key to yourself" in done.stdout


def test_only_the_owner_can_read_the_keys(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    before = os.umask(0)
    try:
        run("--worker", "a", "--out", str(folder))
    finally:
        os.umask(before)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"a.pem": 0o644, "a.key": 0o600, "authority.pem": 0o644, "authority.key": 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_second_run_adds_workers_and_renews_certificates(tmp_path: Path) -> None:
    run("--worker", "a", "--out", str(tmp_path))
    before = certificates(tmp_path, "a")
    done = run("--worker", "a", "--worker", "b", "--days", "7", "--out", str(tmp_path))

    assert done.exit_code == 0, done.output
    assert "authority" not in done.stdout.splitlines()[0]
    after = certificates(tmp_path, "a")
    assert before.serial != after.serial
    assert after.expires < before.expires
    assert before.check(after.chain, after.sign(b""), b"")[0] == "a"


def test_json_names_the_variables_of_certificates(tmp_path: Path) -> None:
    shown = json.loads(run("--json", "--worker", "a", "--out", str(tmp_path)).stdout)

    assert shown["workers"] == ["a"]
    assert shown["variables"]["RPC_BACKENDS_ZEROMQ_CERTIFICATE_AUTHORITY"] == str(
        tmp_path / "authority.pem"
    )


@pytest.mark.parametrize("name", ["", "../a", "a b", "authority", "ä", "a" * 129])
def test_names_that_no_worker_can_have_are_refused(tmp_path: Path, name: str) -> None:
    done = run("--worker", name, "--out", str(tmp_path))

    assert done.exit_code != 0
    assert "is no name for a worker" in done.output
    assert list(tmp_path.iterdir()) == []


def test_worker_needs_a_folder() -> None:
    assert "--worker needs --out DIR" in run("--worker", "a").output


@pytest.mark.parametrize("damage", ["missing", "other", "invalid"])
def test_an_authority_that_cannot_be_used_is_an_error(tmp_path: Path, damage: str) -> None:
    run("--worker", "a", "--out", str(tmp_path))
    authority = tmp_path / "authority.pem"
    if damage == "missing":
        authority.unlink()
    elif damage == "invalid":
        authority.write_text("nothing")
    else:
        run("--worker", "a", "--out", str(tmp_path / "other"))
        (tmp_path / "other/authority.pem").replace(authority)

    done = run("--worker", "b", "--out", str(tmp_path))

    assert "authority" in done.output
    assert "Choose another folder" in done.output
    assert not (tmp_path / "b.pem").exists()
