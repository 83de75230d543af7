"""The stages of a run with one pair: an environment, wheels of every distribution, and their tests.

The sources are those of the last commit. They are copied, so that files compiled for one torch are
not used with another.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from matrix.pairs import ROOT, Pair
from matrix.results import Outcome
from stages import INSTALLED, ON_TENSORPIPE
from support.environments import clean_environ, extract_commit

_BUILD_TOOLS = (
    "scikit-build-core>=1.1",
    "pybind11>=2.13",
    "cmake>=3.28,<4",
    "ninja",
    "hatchling>=1.25",
    "editables>=0.5",
    "libucx-cu12>=1.18,<2",
)
_IMPORT = (
    "import torch, rpc_backends_core, rpc_backends_cli, rpc_backends_testing, rpc_backends_bench, "
    "rpc_backends_agents, rpc_backends_faults, rpc_backends_inspect; "
    "import torch.distributed.rpc as rpc; rpc.BackendType.ZEROMQ, rpc.BackendType.UCX"
)
#: Test processes at a time: most tests wait.
_PROCESSES = "4"
_SUITE = (
    "-m",
    "pytest",
    "--pyargs",
    "rpc_backends_testing",
    "-n",
    _PROCESSES,
    "-q",
    "--rpc-backend",
)
#: Seconds that one stage may take.
_LIMIT = 3600


@dataclass(frozen=True)
class Stage:
    """One thing that is tried with each pair.

    :ivar arguments: the arguments that the environment's Python is started with.
    :ivar counts: whether this is a pytest run, whose tests are counted.
    :ivar files: git's patterns for the files that the result depends on; empty: run it each time.
    """

    name: str
    title: str
    arguments: Sequence[str]
    counts: bool = True
    files: Sequence[str] = ()


STAGES = (
    # torch's own imports warn with some versions of its dependencies, so errors begin after it.
    Stage(
        "import",
        "import",
        ("-c", f"import torch, warnings; warnings.simplefilter('error'); {_IMPORT}"),
        False,
    ),
    Stage("doctor", "doctor", ("-m", "rpc_backends_cli", "doctor"), False),
    Stage(
        "core",
        "core's tests",
        ("-m", "pytest", "tests/core", "-m", "not thorough", "-n", _PROCESSES, "-q"),
    ),
    Stage(
        "torch_suites",
        "torch's suites, TENSORPIPE",
        (
            "-m",
            "pytest",
            "tests/torch_suites",
            "-m",
            "torch_suites",
            "-n",
            _PROCESSES,
            "-q",
        ),
        files=(*ON_TENSORPIPE, "tests/torch_suites"),
    ),
    Stage("TENSORPIPE", "TENSORPIPE", (*_SUITE, "TENSORPIPE"), files=ON_TENSORPIPE),
    Stage(
        "FAULTY_TENSORPIPE",
        "FAULTY_TENSORPIPE",
        (*_SUITE, "FAULTY_TENSORPIPE"),
        files=ON_TENSORPIPE,
    ),
    Stage(
        "ZEROMQ",
        "ZEROMQ and torch's suites",
        (*_SUITE, "ZEROMQ", "--rpc-tier", "torch"),
        files=(*INSTALLED, ":!plugins/ucx"),
    ),
    Stage(
        "UCX",
        "UCX and torch's suites",
        (*_SUITE, "UCX", "--rpc-tier", "torch"),
        files=(*INSTALLED, ":!plugins/zeromq"),
    ),
    Stage("demo", "demo", ("-m", "demo"), False),
)


class PreparationError(Exception):
    """The environment or the wheels could not be made; the text names the log."""


class Trial:
    """A run with one pair, in a folder of its own.

    :param python: the interpreter to make the environment with.
    """

    def __init__(self, pair: Pair, python: Path, folder: Path) -> None:
        self.pair = pair
        self._python = python
        self._sources = folder / "sources"
        self._venv = folder / "venv"
        self._logs = folder / "logs"

    def prepare(self) -> None:
        """Make the environment, build the wheels, and install them.

        :raises PreparationError: a command failed.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        self._sources.mkdir()
        if not extract_commit(ROOT, self._sources):
            raise PreparationError("git archive failed; see above")
        subprocess.run([self._python, "-m", "venv", self._venv], check=True)
        torch = f"torch=={self.pair.torch}"
        self._prepared("torch", "-m", "pip", "install", "-q", torch, *_BUILD_TOOLS)
        # The core first, then the agents: the others need their headers.
        folders = [".", "packages/agents", *self._others()]
        for folder in folders:
            self._prepared(
                "wheels",
                "-m",
                "pip",
                "wheel",
                "-q",
                "--no-build-isolation",
                "--no-deps",
                "-w",
                "wheels",
                f"./{folder}",
            )
        core, *wheels = sorted(
            map(str, (self._sources / "wheels").glob("*.whl")),
            key=lambda name: "rpc_backends_core" not in name,
        )
        requirements = "examples/demo/requirements.txt"
        self._prepared(
            "install",
            "-m",
            "pip",
            "install",
            "-q",
            torch,
            f"{core}[dev]",
            *wheels,
            "-r",
            requirements,
        )

    def run(self, stage: Stage) -> Outcome:
        """Run one stage, and return its outcome; its output is in the log of that name."""
        report = self._logs / f"{stage.name}.xml"
        arguments = (
            [*stage.arguments, f"--junitxml={report}"] if stage.counts else list(stage.arguments)
        )
        started = time.monotonic()
        status = self._logged(stage.name, arguments)
        seconds = round(time.monotonic() - started)
        if not stage.counts or not report.exists():
            return Outcome("passed" if status == 0 else "failed", seconds)
        counts = counts_of(report)
        return Outcome("passed" if status == 0 else "failed", seconds, *counts)

    def torch_build(self) -> str:
        """Return the version of the installed torch with its build, for example ``2.9.1+cu128``."""
        return self._printed("import torch; print(torch.__version__)")

    def missing_names(self) -> dict[str, str]:
        """Return the private names that the installed torch lacks, each with what is lost."""
        found = self._printed(
            "import json; from rpc_backends_core.spi import torch_internals; "
            "print(json.dumps({one.path: one.without for one in torch_internals.missing()}))"
        )
        names: dict[str, str] = json.loads(found)
        return names

    def _printed(self, source: str) -> str:
        done = subprocess.run(
            [self._venv / "bin/python", "-c", source],
            env=clean_environ(),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def _others(self) -> list[str]:
        found = sorted(
            path.parent.relative_to(self._sources)
            for place in ("packages", "plugins")
            for path in (self._sources / place).glob("*/pyproject.toml")
        )
        return [str(one) for one in found if str(one) != "packages/agents"]

    def _prepared(self, log: str, *arguments: str) -> None:
        if self._logged(log, arguments) != 0:
            path = self._logs / f"{log}.log"
            last = path.read_text().strip().splitlines()[-1:]
            raise PreparationError(
                f"{' '.join(arguments[:4])} failed: {''.join(last)} (all of it: {path})"
            )

    def _logged(self, log: str, arguments: Sequence[str]) -> int:
        environ = clean_environ(
            {
                "PYTHONPATH": str(self._sources / "examples"),
                "PATH": f"{self._venv / 'bin'}:{os.environ['PATH']}",
            }
        )
        with (self._logs / f"{log}.log").open("a") as output:
            command = [str(self._venv / "bin/python"), *arguments]
            try:
                return subprocess.run(
                    command,
                    cwd=self._sources,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=environ,
                    timeout=_LIMIT,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                output.write(f"\n[killed: still running after {_LIMIT} s]\n")
                return -1


def counts_of(report: Path) -> tuple[int, int, int]:
    """Return the numbers of passed, failed and skipped tests in a JUnit report of pytest."""
    passed = failed = skipped = 0
    for suite in ElementTree.parse(report).iter("testsuite"):
        wrong = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
        failed += wrong
        passed += int(suite.get("tests", 0)) - wrong - int(suite.get("skipped", 0))
    return passed, failed, skipped
