"""`rpc-backends show NAME`: everything about one backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def test_a_backend_is_shown_with_options_and_origin(command: Any) -> None:
    page = command("show", "tensorpipe", "--json").json

    assert page["name"] == "TENSORPIPE"
    assert page["state"] == "loaded"
    assert (page["distribution"], page["entry_point"]) == (
        "rpc-backend-tensorpipe",
        "rpc_backend_tensorpipe:BACKEND",
    )
    assert page["file"].endswith("rpc_backend_tensorpipe/__init__.py")
    assert page["goes_before"][0].startswith("torch ")
    assert "static-groups" in page["capabilities"]
    options = {option["name"]: option for option in page["options"]}
    assert options["rpc_timeout"]["default"] == "60.0"
    assert options["num_worker_threads"] == {
        "name": "num_worker_threads",
        "type": "int",
        "default": "16",
        "meaning": "number of threads that execute requests",
        "declared_by": "handler",
        "values": None,
        "variable": None,
    }


def test_options_of_an_engine_have_limits_variable_and_real_default(command: Any) -> None:
    text, page = command("show", "UCX").stdout, command("show", "UCX", "--json").json

    options = {option["name"]: option for option in page["options"]}
    keys = ("default", "values", "variable")
    assert [options["poll_time"][key] for key in keys] == [
        "0.0001",
        "seconds, from 0 to 10",
        "RPC_BACKENDS_UCX_POLL_TIME",
    ]
    assert [options["transports"][key] for key in keys[:2]] == [
        "self,posix,cma",
        "names with commas between them",
    ]
    assert [options["max_message_bytes"][key] for key in keys] == [
        "16 GiB",
        "bytes, from 1 to 2**61",
        None,
    ]
    words = " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    for option in options.values():
        variable = f" variable {option['variable']}" if option["variable"] else ""
        assert f" {option['name']} {option['default']} {option['values']}{variable} " in words


def test_the_page_has_what_the_json_has(command: Any) -> None:
    text, page = command("show", "TENSORPIPE").stdout, command("show", "TENSORPIPE", "--json").json

    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    for option in page["options"]:
        assert any(
            line.split()[:2] == [option["name"], option["default"]] for line in text.splitlines()
        )
    words = " ".join(text.split())  # long lines are wrapped
    for name, meaning in page["capabilities"].items():
        assert f" {name} {meaning} " in words


@pytest.mark.slow
def test_options_come_from_the_options_type_if_needed(command: Any) -> None:
    command.install(
        "rpc-backend-pigeon",
        {"PIGEON": "BACKEND"},
        """
        import torch.distributed.rpc as rpc
        from rpc_backends_core import Backend

        class Options(rpc.RpcBackendOptions):
            def __init__(self, *, birds: int = 3, loft: str, **base):
                super().__init__(**base)

            @classmethod
            def options_in_words(cls):
                return {"birds": {"values": "``birds``, from 1 to 9", "variable": "BIRDS"}}

        def construct(rpc_timeout, init_method, grain: float = 0.5, **more):
            '''Construct.

            :param grain: kilograms of ``wheat``,
                for each bird.
            '''

        def init(**arguments): ...

        BACKEND = Backend(
            construct_rpc_backend_options_handler=construct, init_backend_handler=init,
            options_type=Options, capabilities={"carrier"}, description="by air",
        )
        """,
    )

    page = command("show", "PIGEON", "--json").json

    assert [tuple(option.values()) for option in page["options"][2:]] == [
        ("grain", "float", "0.5", "kilograms of wheat, for each bird", "handler", None, None),
        ("birds", "int", "3", "", "options type", "birds, from 1 to 9", "BIRDS"),
        ("loft", "str", None, "", "options type", None, None),
    ]
    assert page["capabilities"] == {"carrier": ""}
    assert page["options_type"] == "rpc_backend_pigeon.Options"
    assert "required" in command("show", "PIGEON").stdout


def test_an_unknown_name_is_status_1_with_the_nearest_name(command: Any) -> None:
    ended = command("show", "TENSORPIP")

    assert ended.status == 1
    assert ended.stdout == ""
    assert "Did you mean 'TENSORPIPE'?" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_broken_backend_is_status_1_with_the_cause(command: Any, as_json: list[str]) -> None:
    command.install("rpc-backend-broken", {"BROKEN": "B"}, "import no_such_library")

    ended = command("show", "BROKEN", *as_json)
    debug = command("show", "BROKEN", "--debug", *as_json)

    assert ended.status == debug.status == 1
    assert ended.stdout == "" if not as_json else "no_such_library" in ended.json["error"]
    assert "rpc-backend-broken 1.0" in ended.stderr
    assert "No module named 'no_such_library'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "rpc_backend_broken.py" in debug.stderr  # the cause, with its own traceback


@pytest.mark.slow
def test_a_broken_hook_package_is_a_warning_in_one_line(command: Any) -> None:
    command.install("rpc-tracing", {"tracing": ""}, "1/0", group="rpc.backends.hooks")

    ended = command("show", "TENSORPIPE")

    assert ended.status == 0
    assert ended.stderr.startswith("Warning: the RPC hook package rpc-tracing 1.0")
    assert "hooks.py" not in ended.stderr


@pytest.mark.slow
def test_what_a_package_prints_at_import_is_not_in_the_json(
    command: Any, backend_source: Callable[[str], str]
) -> None:
    loud = "import os\nprint('loud')\nos.write(1, b'louder')\n"
    command.install("rpc-backend-loud", {"LOUD": "BACKEND"}, loud + backend_source("pass"))

    ended = command("show", "LOUD", "--json")

    assert ended.status == 0, ended.stderr
    assert ended.json["state"] == "loaded"


@pytest.mark.slow
def test_a_package_that_hangs_at_import_ends_with_its_place(command: Any) -> None:
    command.install("rpc-backend-sleepy", {"SLEEPY": "B"}, "import time\ntime.sleep(600)")

    ended = command("show", "SLEEPY", "--timeout", "20")

    assert ended.status == 1
    assert ended.stdout == ""
    for part in ("rpc-backend-sleepy 1.0", "rpc_backend_sleepy.py:2", "20 s", "pip uninstall"):
        assert part in ended.stderr


@pytest.mark.slow
def test_a_package_that_crashes_at_import_ends_with_the_signal(command: Any) -> None:
    command.install("rpc-backend-crash", {"CRASH": "B"}, "import os\nos.abort()")

    ended = command("show", "CRASH", "--json")

    assert ended.status == 1
    assert ended.json["error"] in ended.stderr
    for part in ("rpc-backend-crash 1.0", "SIGABRT", "rpc_backend_crash.py:2", "pip uninstall"):
        assert part in ended.stderr
