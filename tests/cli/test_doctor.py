"""`rpc-backends doctor` finds problems, and a problem does not stop the other checks."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_core.spi.inspection import settings
from support.command import wait_until

pytestmark = pytest.mark.slow

#: Seconds after which something that hangs is killed. On busy cores, what does not hang may need more:
#: then the next limit is tried.
LIMITS = (8, 120)
BRIDGE_OFF = [("RPC_BACKENDS_AUTOLOAD", "0"), ("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")]


def _finding(ended: Any, section: str, about: str) -> dict[str, Any]:
    """Return the first finding about something."""
    findings = ended.json["sections"][section]
    finding: dict[str, Any] = next(finding for finding in findings if finding["about"] == about)
    return finding


def _levels(ended: Any, section: str) -> list[tuple[str, str]]:
    return [(finding["about"], finding["level"]) for finding in ended.json["sections"][section]]


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
        return False


def test_doctor_makes_calls_over_every_backend(command: Any) -> None:
    """In a new interpreter, so that the processes that doctor starts end as they do for a user."""
    ended = command.anew("doctor", "--json")

    assert ended.status == 0, ended.stdout
    assert ended.json["ok"]
    assert _levels(ended, "backends") == [
        ("FAULTY_TENSORPIPE", "ok"),
        ("TENSORPIPE", "ok"),
        ("TENSORPIPE", "note"),  # torch's own backend, which the plugin shadows
        ("UCX", "ok"),
        ("ZEROMQ", "ok"),
    ]
    assert _levels(ended, "calls") == [
        ("FAULTY_TENSORPIPE", "ok"),
        ("TENSORPIPE", "ok"),
        ("UCX", "ok"),
        ("ZEROMQ", "ok"),
    ]
    for call in ended.json["sections"]["calls"]:
        data = call["data"]
        assert data["calls"] == 100
        assert 0 < data["median_call_seconds"] < 10
        assert 0 < data["first_call_seconds"] < 10
        assert 0 < data["start_seconds"] < 30
    assert _finding(ended, "bridge", "in place")["level"] == "ok"
    assert [about for about, _ in _levels(ended, "versions")] == [
        "Python", "system", "rpc-backends-core", "torch", "libraries",
    ]  # fmt: skip


def test_broken_packages_do_not_stop_the_other_checks(
    command: Any, backend_source: Callable[[str], str]
) -> None:
    command.install("rpc-backend-broken", {"BROKEN": "B"}, "import no_such_library")
    command.install("rpc-backend-three", {"THREE": "B"}, "B = 3")
    command.install("rpc-backend-crash", {"CRASH": "B"}, "import os\nos.abort()")
    command.install("pigeon-one", {"PIGEON": "BACKEND"}, backend_source("pass"))
    command.install("pigeon-two", {"PIGEON": "BACKEND"}, backend_source("pass"))
    command.install("rpc-tracing", {"tracing": ""}, "1/0", group="rpc.backends.hooks")
    hook = "from rpc_backends_core import hookimpl\n@hookimpl\ndef rpc_backends_loaded(): pass\n"
    command.install("rpc-x-tracing", {"tracing": ""}, hook, group="rpc.backends.hooks")

    ended = command("doctor", "--json", "--no-calls")

    assert ended.status == 1
    assert not ended.json["ok"]
    assert ended.json["problems"] == 5
    assert "calls" not in ended.json["sections"]
    assert _levels(ended, "backends") == [
        ("BROKEN", "problem"),
        ("CRASH", "problem"),
        ("FAULTY_TENSORPIPE", "ok"),
        ("PIGEON", "problem"),
        ("TENSORPIPE", "ok"),
        ("TENSORPIPE", "note"),
        ("THREE", "problem"),
        ("UCX", "ok"),
        ("ZEROMQ", "ok"),
    ]
    broken = _finding(ended, "backends", "BROKEN")["text"]
    assert "No module named 'no_such_library'" in broken
    assert "pip install --force-reinstall rpc-backend-broken" in broken
    assert "not a backend" in _finding(ended, "backends", "THREE")["text"]
    crash = _finding(ended, "backends", "CRASH")["text"]
    assert "SIGABRT, at rpc_backend_crash.py:2" in crash
    assert "pip uninstall rpc-backend-crash" in crash
    assert "pigeon-one" in _finding(ended, "backends", "PIGEON")["text"]
    tracing = [level for about, level in _levels(ended, "hooks") if about == "tracing"]
    assert tracing == ["problem", "ok"]
    hook = _finding(ended, "hooks", "tracing")["text"]
    assert "ZeroDivisionError" in hook
    assert "pip uninstall rpc-tracing" in hook


def test_requirements_that_are_not_met_are_problems(
    command: Any, backend_source: Callable[[str], str]
) -> None:
    command.install(
        "rpc-backend-pigeon",
        {"PIGEON": "BACKEND"},
        backend_source("pass"),
        requires=[
            "rpc-backends-core>=2",
            "a-loft-nobody-has",
            "click",
            "aviary; extra == 'more'",
            "what is this",
        ],
    )

    ended = command("doctor", "PIGEON", "--no-calls", "--json")

    assert ended.status == 1
    version, missing, invalid = (
        finding["text"] for finding in ended.json["sections"]["requirements"]
    )
    assert sorted([version, missing, invalid]) == [
        "rpc-backend-pigeon 1.0 has an invalid requirement, 'what is this'. Its author must correct "
        "its metadata.",
        "rpc-backend-pigeon 1.0 requires a-loft-nobody-has, and it is not installed. Install it: pip "
        "install 'a-loft-nobody-has'",
        "rpc-backend-pigeon 1.0 requires rpc-backends-core>=2, and rpc-backends-core 0.1.0 is "
        "installed. Install it: pip install 'rpc-backends-core>=2'",
    ]


def test_a_misspelt_entry_point_group_is_a_problem(command: Any) -> None:
    command.install("rpc-backend-pigeon", {"PIGEON": "B"}, "", group="rpc.backend")

    ended = command("doctor", "PIGEON", "--no-calls", "--json")

    assert ended.status == 1
    text = _finding(ended, "requirements", "rpc-backend-pigeon")["text"]
    assert "'PIGEON' in the entry-point group 'rpc.backend'" in text
    assert "did you mean 'rpc.backends'?" in text
    assert text in _finding(ended, "unknown", "PIGEON")["text"]


FAILING_HOOK = """
from rpc_backends_core import RefusedError, hookimpl

@hookimpl(wrapper=True)
def rpc_backends_init_backend(backend):
    raise {error}('mine')
    yield
"""


def test_a_hook_that_fails_at_its_first_call_is_a_problem(command: Any) -> None:
    source = FAILING_HOOK.format(error="OSError")
    command.install("rpc-tracing", {"tracing": ""}, source, group="rpc.backends.hooks")
    refusing = FAILING_HOOK.format(error="RefusedError")
    command.install("rpc-policy", {"policy": ""}, refusing, group="rpc.backends.hooks")

    ended = command("doctor", "TENSORPIPE", "--no-calls", "--json")

    assert ended.status == 1
    hook = _finding(ended, "hooks", "tracing")
    assert hook["level"] == "problem"
    for part in ("rpc_backends_init_backend", "rpc-tracing 1.0", "OSError: mine", "pip uninstall"):
        assert part in hook["text"]
    levels = dict(_levels(ended, "hooks"))
    assert levels.pop("tracing") == "problem"
    assert set(levels.values()) == {"ok"}, levels
    assert "policy" in levels


def test_a_backend_without_options_is_a_problem(
    command: Any, backend_source: Callable[[str], str]
) -> None:
    source = backend_source("pass").replace("return rpc.TensorPipe", "rpc.TensorPipe")
    command.install("rpc-backend-pigeon", {"PIGEON": "BACKEND"}, source)

    ended = command("doctor", "PIGEON", "--json")

    finding = _finding(ended, "backends", "PIGEON")
    assert finding["level"] == "problem"
    assert "construct_rpc_backend_options_handler (rpc_backend_pigeon.construct)" in finding["text"]
    assert ended.json["sections"]["calls"] == []


def test_a_backend_that_hangs_is_reported_and_killed(
    command: Any, backend_source: Callable[[str], str], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    hang = f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(600)"
    module = command.install("rpc-backend-stuck", {"STUCK": "BACKEND"}, backend_source(hang))

    for limit in LIMITS:
        pids.write_text("")
        ended = command("doctor", "stuck", "--timeout", str(limit), "--json")
        started = [int(pid) for pid in pids.read_text().split()]
        if len(started) == 2:
            break

    assert ended.status == 1
    assert _levels(ended, "backends") == [("STUCK", "ok")]
    call = _finding(ended, "calls", "STUCK")
    assert call["level"] == "problem"
    assert call["data"]["timed_out"]
    assert call["data"]["stage"] == "starting"
    assert f"{module}.py:10 (init)" in call["text"]
    assert f"{limit} s" in call["text"]
    assert len(started) == 2
    assert not any(map(_runs, started))


def test_a_package_that_hangs_at_import_is_killed(command: Any) -> None:
    command.install("rpc-backend-sleepy", {"SLEEPY": "B"}, "import time\ntime.sleep(600)")

    for limit in LIMITS:
        ended = command(
            "doctor", "SLEEPY", "TENSORPIPE", "--timeout", str(limit), "--no-calls", "--json"
        )
        levels = _levels(ended, "backends")[:2]
        if ("TENSORPIPE", "ok") in levels:
            break

    assert ended.status == 1
    assert levels == [("SLEEPY", "problem"), ("TENSORPIPE", "ok")]
    assert "rpc_backend_sleepy.py:2 (<module>)" in _finding(ended, "backends", "SLEEPY")["text"]


def test_the_error_of_the_failing_worker_is_shown(
    command: Any, backend_source: Callable[[str], str]
) -> None:
    fail = "if rank == 1: raise RuntimeError('no pigeon left')"
    command.install("rpc-backend-pigeon", {"PIGEON": "BACKEND"}, backend_source(fail))

    ended = command("doctor", "PIGEON", "--json")

    call = _finding(ended, "calls", "PIGEON")
    assert call["data"]["stage"] == "starting"
    error, note = call["data"]["error"].split("\n")
    assert error == "RuntimeError: no pigeon left"
    assert note == (
        "Raised by init_backend_handler (rpc_backend_pigeon.init) of RPC backend 'PIGEON' "
        "(rpc-backend-pigeon 1.0)."
    )
    assert "rpc_backend_pigeon.py" in call["data"]["traceback"]


def test_a_backend_with_required_options_is_not_called(
    command: Any, backend_source: Callable[[str], str]
) -> None:
    source = backend_source("pass").replace("init_method, **", "init_method, loft, **")
    command.install("rpc-backend-pigeon", {"PIGEON": "BACKEND"}, source)

    ended = command("doctor", "PIGEON", "--json")

    assert ended.status == 0
    assert _finding(ended, "calls", "PIGEON")["data"] == {"required": ["loft"]}


def test_a_denied_plugin_leaves_torchs_own_backend(command: Any) -> None:
    ended = command("doctor", "TENSORPIPE", "--json", env={"RPC_BACKENDS_DENY": "TENSORPIPE"})

    assert ended.status == 0
    assert _levels(ended, "backends") == [("TENSORPIPE", "note"), ("TENSORPIPE", "ok")]
    assert _levels(ended, "calls") == [("TENSORPIPE", "ok")]


def test_an_override_does_not_change_the_tested_backend(
    command: Any, backend_source: Callable[[str], str]
) -> None:
    source = backend_source("raise OSError('no wings')")
    command.install("rpc-backend-pigeon", {"PIGEON": "BACKEND"}, source)
    env = {"RPC_BACKENDS_OVERRIDE": "PIGEON"}

    ended = command("doctor", "TENSORPIPE", "--json", env=env)

    assert ended.status == 0
    assert "'PIGEON'" in _finding(ended, "variables", "RPC_BACKENDS_OVERRIDE")["text"]
    assert _levels(ended, "calls") == [("TENSORPIPE", "ok")]


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGTERM]
)
def test_a_signal_leaves_no_process_behind(
    command: Any, backend_source: Callable[[str], str], tmp_path: Path, number: int
) -> None:
    pids = tmp_path / "pids"
    hang = f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(600)"
    command.install("rpc-backend-stuck", {"STUCK": "BACKEND"}, backend_source(hang))

    with subprocess.Popen(
        [sys.executable, "-m", "rpc_backends_cli", "doctor", "STUCK"],
        env=command.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as doctor:
        try:
            # On busy cores, doctor and its template of workers take a minute to import torch.
            wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 240)
            doctor.send_signal(number)
            _, errors = doctor.communicate(timeout=120)
        finally:
            doctor.kill()

    assert doctor.returncode not in (0, None)
    assert b"Traceback" not in errors
    assert not any(_runs(int(pid)) for pid in pids.read_text().split())


@pytest.mark.parametrize(("variable", "value"), BRIDGE_OFF)
def test_a_disabled_bridge_is_a_note_with_the_variable(
    command: Any, variable: str, value: str
) -> None:
    ended = command("doctor", "TENSORPIPE", "--no-calls", "--json", env={variable: value})

    assert ended.status == 0
    bridge = _finding(ended, "bridge", "off")
    assert bridge["level"] == "note"
    assert f"{variable}={value}" in bridge["text"]


def test_a_bridge_that_failed_is_a_problem_with_its_cause(command: Any) -> None:
    site = "import rpc_backends_core._patches as b\ndef install(): raise OSError('no')\n"
    (command.packages / "sitecustomize.py").write_text(site + "b.install = install\n")

    ended = command.anew("doctor", "TENSORPIPE", "--no-calls", "--json")

    assert ended.status == 1
    assert "OSError: no" in _finding(ended, "bridge", "failed")["text"]


def test_invalid_variables_are_problems(command: Any) -> None:
    env = {
        "RPC_BACKENDS_DEFAULT": "TENSORPIP",
        "RPC_BACKENDS_OVERRIDE": "TENSORPIPES",
        "RPC_BACKENDS_JOIN_TIMEOUT": "soon",
        "RPC_BACKENDS_ALLOW": "TENSORPIPE",
        "RPC_BACKENDS_DEFALT": "x",
    }

    ended = command("doctor", "TENSORPIPE", "--no-calls", "--json", env=env)

    assert ended.status == 1
    assert _levels(ended, "variables") == [
        ("RPC_BACKENDS_DEFAULT", "problem"),
        ("RPC_BACKENDS_OVERRIDE", "problem"),
        ("RPC_BACKENDS_ALLOW", "ok"),
        ("RPC_BACKENDS_JOIN_TIMEOUT", "problem"),
        ("RPC_BACKENDS_DEFALT", "warning"),
    ]
    assert "'TENSORPIPE'" in _finding(ended, "variables", "RPC_BACKENDS_DEFAULT")["text"]
    assert "'TENSORPIPE'" in _finding(ended, "variables", "RPC_BACKENDS_OVERRIDE")["text"]
    nearest = _finding(ended, "variables", "RPC_BACKENDS_DEFALT")["data"]["nearest"]
    assert nearest == "RPC_BACKENDS_DEFAULT"


def test_a_valid_value_of_each_variable_is_ok(command: Any, tmp_path: Path) -> None:
    lock = tmp_path / "lock.json"
    assert command("lock", str(lock), "--allow-editable").status == 0
    env = {
        settings.AUTOLOAD: "1",
        settings.DEFAULT: "TENSORPIPE",
        settings.OVERRIDE: "TENSORPIPE",
        settings.ALLOW: "TENSORPIPE",
        settings.DENY: "FAULTY_TENSORPIPE",
        settings.LOCK: str(lock),
        settings.JOIN_TIMEOUT: "5",
        settings.UNPICKLING_ERRORS: "return",
        settings.REQUIRE_AUTH: "0",
    }
    assert set(env) == set(settings.VARIABLES)

    ended = command("doctor", "TENSORPIPE", "--no-calls", "--json", env=env)

    assert {level for _, level in _levels(ended, "variables")} == {"ok"}


def test_the_value_of_a_backends_variable_is_hidden(
    command: Any, backend_source: Callable[[str], str]
) -> None:
    command.install("rpc-backend-pigeon", {"PIGEON": "BACKEND"}, backend_source("pass"))
    env = {"RPC_BACKENDS_PIGEON_SECRET": "coo", "RPC_BACKENDS_PIGEONS": "3"}

    ended = command("doctor", "--no-calls", "--json", "TENSORPIPE", env=env)

    assert _levels(ended, "variables") == [
        ("RPC_BACKENDS_PIGEONS", "warning"),
        ("RPC_BACKENDS_PIGEON_SECRET", "ok"),
    ]
    assert "coo" not in ended.stdout


def test_an_invalid_deny_list_is_one_problem(command: Any) -> None:
    env = {"RPC_BACKENDS_DENY": "TENSORPIP"}

    ended = command("doctor", "--json", env=env)

    assert ended.status == 1
    assert _levels(ended, "backends") == [("not checked", "problem")]
    assert _levels(ended, "addresses")[0][0] == "TensorPipe"


def test_torch_that_cannot_be_imported_is_a_problem(command: Any) -> None:
    torch = command.packages / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise ImportError('libtorch.so is not there')")

    ended = command.anew("doctor", "--json")

    assert ended.status == 1
    assert "libtorch.so is not there" in _finding(ended, "versions", "torch")["text"]


def test_an_unknown_name_is_a_problem_with_the_nearest_one(command: Any) -> None:
    ended = command("doctor", "TENSORPIP", "--no-calls", "--json")

    assert ended.status == 1
    assert "'TENSORPIPE'" in _finding(ended, "unknown", "TENSORPIP")["text"]


def test_an_unknown_name_is_printed_as_a_problem(command: Any) -> None:
    """The output is right although other sections have no findings: no backend is loaded here."""
    ended = command("doctor", "NOPE", "--no-calls")

    assert ended.status == 1
    assert "no RPC backend 'NOPE'" in ended.stdout


def test_the_text_has_what_the_json_has(command: Any) -> None:
    arguments = ("doctor", "TENSORPIPE", "--no-calls")
    text, report = command(*arguments), command(*arguments, "--json")

    assert text.status == report.status == 0
    assert "\x1b" not in text.stdout
    assert max(map(len, text.stdout.splitlines())) <= 80
    for findings in report.json["sections"].values():
        for finding in findings:
            assert f"{finding['level']:7}  {finding['about']}" in text.stdout
    assert text.stdout.splitlines()[-1].startswith("Nothing is broken")
