"""`rpc-backends secret`: it makes a secret that only its owner can read."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rpc_backend_zeromq import secret
from rpc_backend_zeromq.secret_command import command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def test_it_prints_a_secret_and_nothing_else() -> None:
    one, two = run(), run()

    assert secret.parse(one.stdout, "stdout") != secret.parse(two.stdout, "stdout")
    assert one.stdout.count("\n") == 1
    assert one.stderr == ""


def test_it_writes_a_file_that_is_its_owner_s_alone_and_does_not_show_it(tmp_path: Path) -> None:
    path = tmp_path / "rpc.secret"
    before = os.umask(0)
    try:
        done = run("--out", str(path))
    finally:
        os.umask(before)

    found = secret.read(str(path), "the file")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().strip() not in done.output
    assert f"RPC_BACKENDS_ZEROMQ_SECRET_FILE={path}" in done.stdout
    assert found.fingerprint in done.stdout


def test_json_has_the_secret_or_the_file(tmp_path: Path) -> None:
    shown = json.loads(run("--json").stdout)
    written = json.loads(run("--json", "--out", str(tmp_path / "s")).stdout)

    made = secret.parse(shown["secret"], "json")
    assert shown == {
        "secret": shown["secret"],
        "fingerprint": made.fingerprint,
        "variable": "RPC_BACKENDS_ZEROMQ_SECRET",
    }
    assert written == {
        "file": str(tmp_path / "s"),
        "fingerprint": secret.read(str(tmp_path / "s"), "file").fingerprint,
        "variable": "RPC_BACKENDS_ZEROMQ_SECRET_FILE",
    }


def test_nothing_is_overwritten_and_no_link_is_followed(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    there.write_text("precious")
    link.symlink_to(tmp_path / "elsewhere")

    for path in (there, link):
        done = run("--out", str(path))
        assert done.exit_code == 1
        assert f"{path} already exists" in done.stderr
    assert there.read_text() == "precious"
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "no" / "secret"))

    assert done.exit_code == 1
    assert "cannot be written: " in done.stderr
    assert "Traceback" not in done.output


def test_help_says_what_the_secret_is_for_and_shows_how_it_is_given_to_workers() -> None:
    text = run("--help").stdout

    assert "Anyone who has the secret can run code on every worker" in " ".join(text.split())
    assert "RPC_BACKENDS_ZEROMQ_SECRET_FILE=~/rpc.secret python train.py" in text
    assert "rpc-backends secret --out" in text


@pytest.mark.parametrize("arguments", [("secret",), ("--help",)])
def test_it_is_a_command_of_rpc_backends_that_imports_neither_torch_nor_zmq(
    arguments: tuple[str, ...],
) -> None:
    code = """
import sys
from rpc_backends_cli.app import cli
cli(sys.argv[1:], standalone_mode=False)
print(sorted({"torch", "zmq"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "secret" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
