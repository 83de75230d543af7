"""What the commands share: JSON is alone in stdout."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from rpc_backends_cli import print_json, stdout_for_json


@pytest.mark.parametrize(("as_json", "in_stdout"), [(True, ""), (False, "loud\nlouder\n")])
def test_what_packages_print_leaves_stdout_to_the_json(
    capfd: pytest.CaptureFixture[str], as_json: bool, in_stdout: str
) -> None:
    with stdout_for_json(as_json):
        print("loud", flush=True)
        os.write(1, b"louder\n")
    print_json({"ok": True})

    captured = capfd.readouterr()
    assert captured.out.startswith(in_stdout)
    assert json.loads(captured.out.removeprefix(in_stdout)) == {"ok": True}
    assert captured.err == ("loud\nlouder\n" if as_json else "")


def test_stdout_is_restored_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="mine"), stdout_for_json():
        raise OSError("mine")
    print_json([])
    assert capfd.readouterr().out == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("faults", "explore", "--json", "--kinds", "nope", "python"), "'nope' is not a kind"),
        (("faults", "explore", "--kinds", "nope", "--json", "python"), "'nope' is not a kind"),
        (("faults", "explore", "--json"), "Missing argument 'PROGRAM...'."),
        (("show", "--json"), "Missing argument 'NAME'."),
    ],
)
def test_a_usage_error_is_json_too(command: Any, arguments: tuple[str, ...], text: str) -> None:
    ended = command(*arguments)

    assert ended.status == 2
    assert text in ended.json["error"]
    assert text in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "env"),
    [(("list", "--json"), {"RPC_BACKENDS_DENY": "TENSORPIP"}), (("show", "PIGEN", "--json"), {})],
)
def test_an_error_is_json_too(
    command: Any, arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    ended = command(*arguments, env=env)

    assert ended.status == 1
    assert ended.stderr == f"Error: {ended.json['error']}\n"
    assert list(ended.json) == ["error"]
