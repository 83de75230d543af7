"""The commands `rpc-backends faults` and `rpc-backends doctor`, as a user sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rpc_backends_cli.checks import variables
from rpc_backends_faults.check import check
from support import steps
from support.workers import Workers

from . import fault_steps

RULES = """seed = 4
[[rule]]
name = "slow"
what = "delay"
message = "PYTHON_CALL"
receiver = "ps"
seconds = {uniform = [0.1, 0.2]}
every = 3
budget = 2
"""


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `rpc-backends`."""
    return subprocess.run(
        [sys.executable, "-m", "rpc_backends_cli", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("explore", "--kind", "drop", "python", "x.py"),
            "no such option '--kind'. Did you mean '--kinds'?",
        ),
        (
            ("explore", "--seeds=3", "python", "x.py"),
            "no such option '--seeds'. Did you mean '--seed'?",
        ),
        (("explore", "--zzz", "python"), "no such option '--zzz'. The options are --budget, "),
        (("run", "--rule", "x.toml", "python"), "no such option '--rule'. Did you mean '--rules'?"),
    ],
)
def test_a_mistyped_option_is_not_the_program(arguments: tuple[str, ...], text: str) -> None:
    done = command("faults", *arguments)

    assert done.returncode == 2
    assert text in done.stderr


def test_options_after_the_program_are_those_of_the_program(tmp_path: Path) -> None:
    words = ("--log", str(tmp_path), sys.executable, "-c", "import sys; print(sys.argv[1:])")
    done = command("faults", "run", *words, "--seed", "3", "--left", "x")

    assert done.stdout == "['--seed', '3', '--left', 'x']\n", done.stderr


def test_a_comparison_with_an_unknown_backend_is_refused_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = command("faults", "explore", "--against", "ZEROMK", "--out", str(out), "python", "x.py")

    assert done.returncode == 2
    assert "--against: no RPC backend 'ZEROMK'. Did you mean 'ZEROMQ'?" in done.stderr
    assert not out.exists()


def test_check_explains_rules_in_words(rules: Path) -> None:
    done = command("faults", "check", str(rules))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{rules}: 1 rule, seed 4",
        "",
        f"slow  ({rules}:2)",
        "  each PYTHON_CALL to ps is sent 0.1 to 0.2 s later: every 3rd time, at most twice per"
        " process.",
    ]


def test_check_gives_json(rules: Path) -> None:
    checked = json.loads(command("faults", "check", str(rules), "--json").stdout)

    assert checked["ok"] is True
    assert checked["seed"] == 4
    assert checked["rules"][0]["what"] == "delay"
    assert checked["rules"][0]["words"].startswith("each PYTHON_CALL to ps")


@pytest.mark.parametrize("as_json", [False, True])
def test_check_exits_with_1_and_lists_all_problems(rules: Path, as_json: bool) -> None:
    rules.write_text(RULES.replace("delay", "dealy").replace("every = 3", "every = 0"))

    done = command("faults", "check", str(rules), *(["--json"] if as_json else []))

    assert done.returncode == 1
    said = " ".join((done.stdout + done.stderr).split())
    assert f"{rules}:4: 'dealy' is not a kind of fault. Did you mean 'delay'?" in said
    assert f"{rules}:8: 'every' is 0; it must be a whole number, 1 or more." in said


def test_report_writes_a_self_contained_page(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Workers(2, env={"RPC_BACKENDS_FAULTS_LOG": str(log)}, seconds=180) as workers:
        workers.run(steps.join, url)
        rule = {
            "what": "fail",
            "name": "</script>".strip("</>"),
            "text": "</script><b>",
            "function": "*do",
        }
        workers[0].call(fault_steps.add, rule)
        workers[0].call(fault_steps.attempt, "worker1", "x")
        workers[0].call(fault_steps.tensors, "worker1")
        workers.run(steps.leave)

    page = tmp_path / "page.html"
    done = command("faults", "report", str(log), "--out", str(page))
    story = json.loads(command("faults", "report", str(log), "--json").stdout)

    assert done.returncode == 0, done.stderr
    assert f"{page}: {len(story['messages'])} messages of 2 workers, 1 faults" in done.stdout
    text = page.read_text()
    assert "/*DATA*/" not in text
    assert text.count("</script>") == 1
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert story["workers"] == ["worker0", "worker1"]
    [failed] = [message for message in story["messages"] if message["faults"]]
    assert (failed["from"], failed["to"], failed["outcome"]) == ("worker0", "worker1", "failed")
    assert {message["outcome"] for message in story["messages"]} == {"failed", "answer"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"event": "request"}\n', "this is not an event log of fault injection"),
        (b'{"a": [1]}\n', "this is not an event log of fault injection"),
        (b"[]\n", "this is not an event log of fault injection"),
        (b"", "is empty: it is not an event log"),
        (b"\x00\xff\x80", "this is not a line of an event log"),
        (b'{"event": "start"}\n', "this is not an event of fault injection: it lacks 't'."),
    ],
)
def test_report_of_an_invalid_log_is_an_error(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)

    done = command("faults", "report", str(tmp_path))

    assert done.returncode == 1
    assert text in " ".join(done.stderr.split())
    assert "Error(" not in done.stderr


def test_doctor_explains_variables_and_checks_rules(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = check()
    monkeypatch.setenv("RPC_BACKENDS_FAULTS", str(rules))
    sound = check()
    rules.write_text("[[rule]]\n")
    broken = check()

    assert [finding.level for finding in without.findings] == ["ok"]
    assert [finding.level for finding in sound.findings] == ["note", "ok"]
    assert sound.findings[1].data == {"rules": ["slow"]}
    assert [finding.level for finding in broken.findings] == ["note", "problem"]
    assert "the rule has no 'what'" in broken.findings[1].text


def test_doctor_reports_an_unknown_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPC_BACKENDS_FAULTS_LOGS", "logs")
    [finding] = check().findings

    assert finding.level == "problem"
    assert "Did you mean RPC_BACKENDS_FAULTS_LOG?" in finding.text


def test_doctor_tells_our_variables_from_others() -> None:
    environ = {
        "RPC_BACKENDS_FAULTS": "x",
        "RPC_BACKENDS_FAULTS_LOG": "x",
        "RPC_BACKENDS_FAULTY": "x",
    }
    levels = {finding.about: finding.level for finding in variables(environ).findings}

    assert levels["RPC_BACKENDS_FAULTS"] == levels["RPC_BACKENDS_FAULTS_LOG"] == "ok"
    assert levels["RPC_BACKENDS_FAULTY"] == "warning"


PROGRAM = """
import os, pathlib, sys
from torch.distributed import rpc
import operator
rpc.init_rpc("one", rank=0, world_size=1, backend="ZEROMQ", rpc_backend_options=
    rpc.backend_registry.construct_rpc_backend_options("ZEROMQ", init_method=f"file://{sys.argv[1]}"))
for _ in range(20):
    try:
        print(rpc.rpc_sync("one", operator.add, args=(1, 1)), end=" ")
    except RuntimeError:
        print("-", end=" ")
rpc.shutdown()
sys.exit(7)
"""


@pytest.mark.slow
def test_run_runs_a_program_with_rules_and_again_from_its_log(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "rules.toml").write_text(
        '[[rule]]\nwhat = "fail"\nfunction = "_operator.add"\nprobability = 0.5\n'
    )

    def run(number: int, *options: str) -> str:
        done = command(
            *("faults", "run", *options),
            *(sys.executable, str(tmp_path / "program.py"), str(tmp_path / f"store{number}")),
        )
        assert done.returncode == 7, done.stderr
        return done.stdout

    rules, logs = tmp_path / "rules.toml", tmp_path / "logs"
    first = run(1, "--rules", str(rules), "--seed", "3", "--log", str(logs))
    again = run(2, "--replay", str(logs))
    with_seed_4 = run(3, "--rules", str(rules), "--seed", "4")

    assert 0 < first.count("-") < 20
    assert again == first
    assert with_seed_4 != first


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "there is nothing to do"),
        (("--replay", "nowhere"), "the log 'nowhere' to replay does not exist"),
        (("--replay", "x", "--rules", "y"), "--replay takes rules and seed from the log"),
        (("--rules", "nothing.toml"), "nothing.toml cannot be read"),
    ],
)
def test_run_rejects_invalid_options(options: tuple[str, ...], said: str) -> None:
    done = command("faults", "run", *options, "true")

    assert done.returncode == 1
    assert said in done.stderr


def test_run_names_a_missing_program(tmp_path: Path) -> None:
    done = command("faults", "run", "--log", str(tmp_path), "no-such-program")

    assert done.returncode == 1
    assert "'no-such-program' cannot be run: No such file or directory." in done.stderr


def test_the_commands_load_with_a_click_whose_types_are_not_generic() -> None:
    """Before 8.2, click.ParamType took no type in brackets."""
    code = """
import click

def refuse(_kind, _type):
    raise TypeError("type 'ParamType' is not subscriptable")

click.ParamType.__class_getitem__ = classmethod(refuse)
import rpc_backends_faults.explore.command
"""
    subprocess.run([sys.executable, "-c", code], check=True)
