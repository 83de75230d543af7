"""Runs the quickstart of the README in an environment, and compares its output with the README's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.environments import clean_environ, free_port

README = Path(__file__).parents[2] / "README.md"


@dataclass(frozen=True)
class Step:
    """One command of the quickstart.

    :ivar shown: the lines that the README shows.
    :ivar printed: the lines that the command printed.
    """

    command: str
    shown: list[str]
    printed: list[str]
    stderr: str


def requirement() -> str:
    """Return what the README installs from the wheels; installing takes two lines."""
    shown = re.search(
        r"^## Install\n.*?^```console\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE
    )
    assert shown
    lines = re.fullmatch(r'\$ make wheels\n\$ pip install --find-links dist "(.+)"\n', shown[1])
    assert lines, shown[1]
    return lines[1]


def run(python: Path, folder: Path, environ: Mapping[str, str] | None = None) -> list[Step]:
    """Write the program into a folder, and run each command that the README shows.

    :param python: the interpreter of the environment.
    :param environ: the environment of the commands; by default a clean one.
    """
    readme = README.read_text()
    match = re.search(r"<!-- file: quickstart.py -->\n\n```python\n(.*?)```", readme, re.DOTALL)
    shown = re.search(
        r"<!-- output of quickstart.py -->\n\n```console\n(.*?)```", readme, re.DOTALL
    )
    assert match and shown
    (folder / "quickstart.py").write_text(match[1])
    steps = []
    for block in re.split(r"^\$ ", shown[1], flags=re.MULTILINE)[1:]:
        command, _, output = block.partition("\n")
        done = subprocess.run(
            # torchrun is this module. Environments of links have no such script.
            ["bash", "-c", command.replace("torchrun", f"{python} -m torch.distributed.run")],
            cwd=folder,
            # torchrun prints that it sets OMP_NUM_THREADS if that is not set.
            # The recorder is on, as for a user.
            env={
                **(environ or clean_environ()),
                **torchrun_port(),
                "OMP_NUM_THREADS": "1",
                "RPC_BACKENDS_RECORDER": "on",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        logged = [line for line in done.stderr.splitlines() if line.startswith("INFO:")]
        printed = _sorted([*logged, *done.stdout.splitlines()])
        lines = _sorted(output.splitlines())
        steps.append(Step(command, lines, _shortened(printed, lines), done.stderr))
    return steps


def torchrun_port() -> dict[str, str]:
    """Return a variable with which torchrun uses a free port; its own default may be in use."""
    return {"PET_MASTER_PORT": str(free_port())}


def _sorted(lines: list[str]) -> list[str]:
    """Return the lines of the log first, and sorted: two workers log at the same time."""
    logged = [line for line in lines if line.startswith("INFO:")]
    return [*sorted(logged), *(line for line in lines if line not in logged)]


def _shortened(printed: list[str], shown: list[str]) -> list[str]:
    """Shorten each printed line whose beginning the README shows, with `...` for the rest."""
    pairs = zip(printed, shown, strict=False)
    short = [
        head if head.endswith("...") and line.startswith(head.removesuffix("...")) else line
        for line, head in pairs
    ]
    return [*short, *printed[len(short) :]]
