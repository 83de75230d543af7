"""`rpc-backends list` shows all backends and imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def _states(ended: Any) -> list[tuple[str, str, str]]:
    return [(row["name"], row["state"], row["distribution"]) for row in ended.json["backends"]]


def test_plugins_are_listed_before_the_backends_they_shadow(command: Any) -> None:
    ended = command("list", "--json")

    assert ended.status == 0
    assert _states(ended) == [
        ("FAULTY_TENSORPIPE", "found", "rpc-backend-faulty-tensorpipe"),
        ("TENSORPIPE", "found", "rpc-backend-tensorpipe"),
        ("TENSORPIPE", "shadowed", "torch"),
        ("UCX", "found", "rpc-backend-ucx"),
        ("ZEROMQ", "found", "rpc-backend-zeromq"),
    ]
    assert ended.json["notes"] == []


@pytest.mark.slow
def test_the_table_and_the_json_agree(command: Any) -> None:
    table, rows = command("list").stdout, command("list", "--json").json["backends"]

    assert "\x1b" not in table
    assert max(map(len, table.splitlines())) <= 80
    assert not any(line.endswith(" ") for line in table.splitlines())
    for row in rows:
        assert any(
            line.split()[:2] == [row["name"], row["state"]] and row["origin"] in line
            for line in table.splitlines()
        )


def test_no_plugin_is_imported(command: Any) -> None:
    command.install("rpc-backend-loud", {"LOUD": "B"}, "raise SystemExit('imported')")

    ended = command("list", "--json")

    assert ("LOUD", "found", "rpc-backend-loud") in _states(ended)
    assert "about rpc-backend-loud" in ended.stdout  # this summary comes from the metadata


@pytest.mark.slow
def test_unusable_backends_are_shown_with_the_reason(
    command: Any, backend_source: Callable[[str], str]
) -> None:
    command.install("pigeon-one", {"PIGEON": "BACKEND"}, backend_source("pass"))
    command.install("pigeon-two", {"PIGEON": "BACKEND"}, backend_source("pass"))
    command.install("rpc-dash", {"MY-BACKEND": "BACKEND"}, backend_source("pass"))
    env = {"RPC_BACKENDS_DENY": "FAULTY_TENSORPIPE"}

    ended, table = command("list", "--json", env=env), command("list", env=env).stdout

    assert ended.status == 0
    assert {
        ("PIGEON", "conflict", "pigeon-one"),
        ("PIGEON", "conflict", "pigeon-two"),
        ("MY-BACKEND", "invalid", "rpc-dash"),
        ("FAULTY_TENSORPIPE", "denied", "rpc-backend-faulty-tensorpipe"),
    } <= set(_states(ended))
    errors = {row["error"] for row in ended.json["backends"] if row["error"]}
    assert len(errors) == 3
    for error in errors:
        assert " ".join(table.split()).count(" ".join(error.split())) == 1


def test_a_note_says_that_the_bridge_is_off(command: Any) -> None:
    ended = command("list", "--json", env={"RPC_BACKENDS_AUTOLOAD": "0"})

    (note,) = ended.json["notes"]
    assert "RPC_BACKENDS_AUTOLOAD=0" in note


def test_a_note_names_the_override(command: Any) -> None:
    ended = command("list", "--json", env={"RPC_BACKENDS_OVERRIDE": "FAULTY_TENSORPIPE"})

    (note,) = ended.json["notes"]
    assert "RPC_BACKENDS_OVERRIDE=FAULTY_TENSORPIPE" in note


def test_without_torch_plugins_are_still_listed(command: Any) -> None:
    torch = command.packages / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise ImportError('libtorch.so is not there')")

    ended = command.anew("list", "--json")

    assert ended.status == 0
    names = [row["name"] for row in ended.json["backends"]]
    assert names == ["FAULTY_TENSORPIPE", "TENSORPIPE", "UCX", "ZEROMQ"]
    assert "libtorch.so is not there" in ended.json["notes"][0]


@pytest.mark.slow
def test_output_of_other_packages_is_not_in_the_json(command: Any) -> None:
    """Torch imports packages of the group torch.backends, which may print."""
    loud = "import os\ndef load():\n    print('loud')\n    os.write(1, b'louder')\n"
    command.install("torch-loud", {"loud": "load"}, loud, group="torch.backends")

    ended = command.anew("list", "--json")

    assert ended.status == 0
    assert ended.json["backends"]
    assert "louder" in ended.stderr


@pytest.mark.slow
def test_a_package_with_empty_metadata_is_listed(command: Any) -> None:
    command.install("rpc-backend-pigeon", {"PIGEON": "B"}, "")
    (metadata,) = command.packages.glob("*.dist-info/METADATA")
    metadata.write_text("")

    ended = command("list", "--json")

    (row,) = (backend for backend in ended.json["backends"] if backend["name"] == "PIGEON")
    assert (row["distribution"], row["version"]) == ("rpc_backend_pigeon", "1.0")
