"""The worked example: its README shows the output of its commands and the whole fix."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.environments import clean_environ

FOLDER = Path(__file__).parents[3] / "examples" / "parameter_server"
README = (FOLDER / "README.md").read_text()
CONSOLE = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    part.partition("\n")[::2]
    for block in CONSOLE
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]
]
TRAINING = r"accuracy (0\.\d+), parameters (\w+)"
FILES = ("*.py", "*.toml", "pytest.ini")


def comparable(output: str, sound: str) -> str:
    """Return the output of a command without values that differ between processors or runs.

    :param sound: the digest of the parameters that are learnt without faults.
    """

    def of_training(match: re.Match[str]) -> str:
        assert 0.9 < float(match[1]) <= 1  # the program learns despite the faults
        return f"parameters {'sound' if match[2] == sound else 'other'}"

    output = re.sub(TRAINING, of_training, output)
    return re.sub(r"in [\d.]+s.*", "in SECONDS", output).strip()


def first_digest(output: str) -> str:
    match = re.search(TRAINING, output)
    assert match is not None, output
    return match[2]


@pytest.mark.thorough
def test_each_command_prints_what_the_readme_shows(tmp_path: Path) -> None:
    for pattern in FILES:
        for file in FOLDER.glob(pattern):
            shutil.copy(file, tmp_path)
    bin_first = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = clean_environ({"PATH": bin_first, "TP_SOCKET_IFNAME": "lo"})
    # An editable install of the fixture, which users do not have, makes pytest warn.
    environ["PYTEST_ADDOPTS"] = '-W "ignore:Module already imported so cannot be rewritten"'
    if "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]

    shown, printed = [], []
    for command, output in COMMANDS:
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        shown.append((command, output))
        printed.append((command, done.stdout))

    as_shown, as_printed = (
        [(command, comparable(text, first_digest(texts[0][1]))) for command, text in texts]
        for texts in (shown, printed)
    )
    assert as_printed == as_shown


def test_the_readme_shows_the_break_and_the_fix_on_both_backends() -> None:
    sound = first_digest(COMMANDS[0][1])
    faulty = {
        ("ZEROMQ" if "OVERRIDE=ZEROMQ" in command else "TENSORPIPE", command.split()[-1]): (
            comparable(output, sound)
        )
        for command, output in COMMANDS
        if "RPC_BACKENDS_FAULTS=" in command
    }

    assert faulty == {
        (backend, program): f"200 updates sent, {applied} applied\nparameters {parameters}"
        for backend in ("TENSORPIPE", "ZEROMQ")
        for program, applied, parameters in (
            ("train.py", 220, "other"),
            ("train_fixed.py", 200, "sound"),
        )
    }


def test_the_readme_shows_the_whole_fix() -> None:
    programs = [(FOLDER / name).read_text().splitlines() for name in ("train.py", "train_fixed.py")]
    lines = list(difflib.unified_diff(*programs, n=1, lineterm=""))[2:]
    [shown] = re.findall(r"```diff\n(.*?)\n```", README, re.DOTALL)

    assert shown.splitlines() == ["@@" if line.startswith("@@") else line for line in lines]
