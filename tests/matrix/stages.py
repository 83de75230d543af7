"""The stages of a run with one pair: an environment, wheels of every distribution, and their tests.

The sources are those of the last commit. They are copied, so that files compiled for one torch are
not used with another. The wheels of that commit are installed, and nothing is compiled.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from matrix.pairs import ROOT, Pair
from matrix.results import Outcome
from stages import INSTALLED, ON_TENSORPIPE, ON_ZEROMQ
from support.environments import clean_environ, extract_commit
from wheelhouse.trial import TrialError, WheelTrial

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


#: The stage that is no command: it installs the packages.
WHEELS = "wheels"
STAGES = (
    Stage(WHEELS, "wheels, without a compiler", (), False),
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
        files=(*ON_ZEROMQ, "tests/torch_suites"),
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
        files=ON_ZEROMQ,
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
    :param wheels: the folder with the wheels of all distributions for this Python.
    """

    def __init__(self, pair: Pair, python: Path, folder: Path, wheels: Path) -> None:
        self.pair = pair
        self._torch = f"torch=={pair.torch}"
        self._python = python
        self._wheels = wheels
        self._is_complete = False
        self._folder = folder
        self._sources = folder / "sources"
        self._venv = folder / "venv"
        self._logs = folder / "logs"

    def prepare(self) -> None:
        """Make the environment, with torch alone.

        :raises PreparationError: a command failed.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        self._sources.mkdir()
        if not extract_commit(ROOT, self._sources):
            raise PreparationError("git archive failed; see above")
        subprocess.run([self._python, "-m", "venv", self._venv], check=True)
        uv = shutil.which("uv")
        if uv:  # keeps what it has unpacked: 20 seconds for each torch, and pip needs minutes
            self._prepared(
                "torch", uv, "pip", "install", "--python", self._python_here, self._torch
            )
        else:
            self._prepared("torch", self._python_here, "-m", "pip", "install", "-q", self._torch)

    def _install_all(self) -> None:
        if self._is_complete:
            return
        self._prepared(
            "install",
            *(self._python_here, "-m", "pip", "install", "-q", "--find-links", str(self._wheels)),
            *(self._torch, "rpc-backends[all]", "rpc-backends-core[dev]"),
            *("-r", "examples/demo/requirements.txt"),
        )
        self._is_complete = True

    def _try_wheels(self) -> Outcome:
        """Install the wheels where no compiler is found, and try the engines."""
        started = time.monotonic()
        trial = WheelTrial(Path(self._python_here), self._wheels, self._folder / "wheel_trial")
        first_call = None
        with (self._logs / "wheels.log").open("a") as log:
            try:
                for what, seconds in trial.run():
                    first_call = first_call or round(seconds, 1)
                    print(f"{what}: {seconds:.1f} s", file=log, flush=True)
                status = "passed"
            except TrialError as error:
                print(error, file=log)
                status = "failed"
        return Outcome(status, round(time.monotonic() - started), first_call=first_call)

    def run(self, stage: Stage) -> Outcome:
        """Run one stage, and return its outcome; its output is in the log of that name.

        :raises PreparationError: the packages cannot be installed.
        """
        if stage.name == WHEELS:
            return self._try_wheels()
        self._install_all()
        report = self._logs / f"{stage.name}.xml"
        arguments = (
            [*stage.arguments, f"--junitxml={report}"] if stage.counts else list(stage.arguments)
        )
        started = time.monotonic()
        status = self._logged(stage.name, [self._python_here, *arguments])
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
        printed = self._printed(
            "import json; from rpc_backends_core.spi import torch_internals; "
            "print(json.dumps({one.path: one.without for one in torch_internals.missing()}))"
        )
        names: dict[str, str] = json.loads(printed)
        return names

    @property
    def _python_here(self) -> str:
        """The interpreter of the environment."""
        return str(self._venv / "bin/python")

    def _printed(self, source: str) -> str:
        done = subprocess.run(
            [self._python_here, "-c", source],
            env=clean_environ(),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def _prepared(self, log: str, *command: str) -> None:
        if self._logged(log, command) != 0:
            path = self._logs / f"{log}.log"
            last = path.read_text().strip().splitlines()[-1:]
            raise PreparationError(
                f"{' '.join(command[:5])} failed: {''.join(last)} (all of it: {path})"
            )

    def _logged(self, log: str, command: Sequence[str]) -> int:
        environ = clean_environ(
            {
                "PYTHONPATH": str(self._sources / "examples"),
                "PATH": f"{self._venv / 'bin'}:{os.environ['PATH']}",
            }
        )
        with (self._logs / f"{log}.log").open("a") as output:
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
