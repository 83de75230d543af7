"""Runs the stages of ``make test``; a stage that has passed runs again only if something has changed.

::

    make test                          # all stages, two at a time
    make test AGAIN=1                  # also those that have passed, and that nothing has changed for
    make stages STAGES="ZEROMQ UCX"    # these alone

A stage depends on its files, on the compiled extensions, on the installed packages, and on variables of
the environment. If it passes, their fingerprint is kept in ``build/passed``, which a new checkout does
not have. The next run of the stage removes it, and so does a failure.

Two stages run side by side, because one alone often waits. The output of each goes to a file in
``build/stages``, and is printed as a whole when the stage ends. One stage alone, or stages with
arguments for pytest, print as they run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSED = ROOT / "build/passed"
OUTPUTS = ROOT / "build/stages"
#: Seconds between two lines that say how far the stages are.
_PROGRESS = 60

#: What every suite depends on: all that is installed. These are pathspecs of git.
_PACKAGES = ("pyproject.toml", "src", "packages", "plugins", ":!packages/bench")
INSTALLED = (*_PACKAGES, ":!packages/*/tests/*", ":!plugins/*/tests/*")
#: The same for a suite that does not use UCX.
ON_ZEROMQ = (*INSTALLED, ":!plugins/ucx")
#: The same for a suite that uses neither ZEROMQ nor UCX.
ON_TENSORPIPE = (*ON_ZEROMQ, ":!plugins/zeromq")
_SUPPORT = ("conftest.py", "tests/conftest.py", "tests/support", "Makefile")
#: The folders of tests that the tests of packages and plugins do not use.
_OTHER_TESTS = (
    *("bench", "cli", "conformance", "core", "demo", "docs", "inspect", "installed", "matrix"),
    *("mutation", "processes", "release", "scale", "structure", "torch_suites", "wheelhouse"),
)
#: What pytest reads at the root, whatever it runs.
_CONFIGURATION = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini"),
    *("setup.cfg", "conftest.py"),
)
#: Variables that change what a test does: of pytest and Python, the loader, this project, and libraries.
_VARIABLES = re.compile(
    r"PY|LD_|RPC_|TORCH|ATEN_|UCX_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|CUDA_|NCCL_|GLOO_|TP_|OPENSSL_|SSL_"
    r"|OTEL_|PROMETHEUS|MALLOC_|GLIBC_|[ATUL]SAN_|HYPOTHESIS|COV|MASTER_|LC_|SOAK_"
    r"|(RANK|LOCAL_RANK|WORLD_SIZE|LANG|TZ|TMPDIR|CI|CC|CXX|C(XX)?FLAGS|LDFLAGS)="
)
#: pytest's exit status if no test was selected.
_NONE_SELECTED = 5


@dataclass(frozen=True)
class Stage:
    """One run of pytest.

    :ivar files: git's pathspecs of the files that the result depends on.
    :ivar arguments: pytest's arguments.
    :ivar markers: the expression that selects tests by marker.
    :ivar thorough: arguments that ``make test-all`` adds.
    :ivar quick: arguments that ``make test-all`` leaves out.
    """

    name: str
    title: str
    files: Sequence[str]
    arguments: Sequence[str]
    markers: str = ""
    thorough: Sequence[str] = ()
    quick: Sequence[str] = ()

    def command(self, *, thorough: bool) -> list[str]:
        """Return the command line of this stage."""
        arguments = [*self.arguments, *(self.thorough if thorough else self.quick)]
        if self.markers:
            markers = self.markers if thorough else f"{self.markers} and not thorough"
            arguments += ["-m", markers]
        return [sys.executable, "-m", "pytest", *arguments]


def _conformance(backend: str, *arguments: str) -> tuple[str, ...]:
    # These backends conform: on a busy machine, only the time limits would fail.
    slow = ("--rpc-timeout-factor", "4")
    return ("--pyargs", *arguments, "--rpc-backend", backend, *slow, "-q")


#: How many stages run at a time.
AT_ONCE = 2
#: Three files at a time, because most tests wait, in the order that conftest.py sorts: slow files first.
BY_FILE = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "10")
_OWN = "not torch_suites and not whole_suite"
#: The long ones first, so that none of them runs alone at the end.
STAGES = (
    Stage(
        "core",
        "the tests of the core, the command and the documents",
        (".",),
        ("tests", "--ignore", "tests/installed", *BY_FILE),
        _OWN,
    ),
    Stage(
        "suite",
        "the conformance suite on correct backends and on broken ones",
        (
            *_PACKAGES,
            ":!plugins/*/tests/*",
            ":!plugins/ucx",
            *_SUPPORT,
            "tests/conformance",
            "examples",
        ),
        ("tests/conformance", "packages/agents/tests", "--durations", "5"),
        "whole_suite",
    ),
    Stage(
        "plugins",
        "the tests of packages and plugins",
        (".", ":!.github", ":!benchmarks/results", *(f":!tests/{name}" for name in _OTHER_TESTS)),
        # Not their sources: those of `packages/testing` have tests for other people's backends.
        (*sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("p*/*/tests")), *BY_FILE),
        _OWN,
    ),
    Stage(
        "installed",
        "the installed packages",
        (".", ":!.github", ":!benchmarks/results"),
        ("tests/installed", *BY_FILE),
        _OWN,
    ),
    Stage(
        "torch_suites",
        "torch's own RPC suites on our handlers",
        (*ON_ZEROMQ, *_SUPPORT, "tests/torch_suites"),
        ("tests/torch_suites", "-n", "3"),
        "torch_suites",
    ),
    Stage(
        "ZEROMQ",
        "ZEROMQ passes the conformance suite",
        (*ON_ZEROMQ, *_SUPPORT),
        (*_conformance("ZEROMQ", "rpc_backends_testing"), "-n", "3"),
        thorough=("--rpc-tier", "torch"),
    ),
    Stage(
        "UCX",
        "UCX passes the conformance suite",
        (*INSTALLED, *_SUPPORT, ":!plugins/zeromq"),
        (*_conformance("UCX", "rpc_backends_testing"), "-n", "3"),
        thorough=("--rpc-tier", "torch"),
        # The agent does what these chapters test, and is the same as in the stage of ZEROMQ.
        quick=tuple(f"--ignore-glob=*/chapters/test_{name}.py" for name in ("autograd", "rrefs")),
    ),
    Stage(
        "encryption",
        "ZEROMQ encrypts its TCP connections",
        (*ON_ZEROMQ, *_SUPPORT),
        (
            *_conformance("ZEROMQ", "rpc_backends_testing.chapters.test_security"),
            *("--rpc-option", "unix_sockets=false"),
        ),
    ),
)


def main() -> int:
    """Run the stages, each even if another one has failed; return 1 if a stage fails."""
    parser = argparse.ArgumentParser(prog="make test")
    parser.add_argument("--only", default="", help=f"some of: {' '.join(s.name for s in STAGES)}")
    parser.add_argument("--thorough", action="store_true", help="long tests, too")
    parser.add_argument("--again", action="store_true", help="also what has passed")
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest")
    given = parser.parse_args()
    names = given.only.split() or [stage.name for stage in STAGES]
    if unknown := set(names) - {stage.name for stage in STAGES}:
        parser.error(f"no such stage: {' '.join(sorted(unknown))}")
    runs = []
    for stage in STAGES:
        if stage.name not in names:
            continue
        command = [*stage.command(thorough=given.thorough), *given.pytest]
        before = None if given.pytest else fingerprint(stage.files, command)
        if before and not given.again and has_passed(stage.name, before):
            print(f"==> {stage.title}: passed, and nothing has changed since", flush=True)
            continue
        runs.append(Run(stage, command, before))
    if given.pytest or len(runs) == 1:
        for run in runs:
            run.start(shown=True)
            try:
                run.wait()
            finally:
                run.end()
    else:
        run_side_by_side(runs)
    if runs:
        print(
            f"==> minutes: {', '.join(f'{r.stage.name} {r.minutes:.1f}' for r in runs)}", flush=True
        )
    failed = [run.stage.title for run in runs if run.has_failed(none_selected=not given.pytest)]
    if failed:
        print(f"error: failed: {'; '.join(failed)}; see above", file=sys.stderr)
    return 1 if failed else 0


class Run:
    """A run of a stage: its process, and where its output is.

    :ivar minutes: how long it took; set when it has ended.
    """

    def __init__(self, stage: Stage, command: Sequence[str], fingerprint: str | None) -> None:
        self.stage = stage
        self.minutes = 0.0
        self._output = OUTPUTS / f"{stage.name}.log"
        self._passed = PASSED / stage.name
        self._command = command
        self._fingerprint = fingerprint

    def start(self, *, shown: bool) -> None:
        """Start the process.

        :param shown: whether its output appears as it runs, or when it ends.
        """
        print(f"==> pytest: {self.stage.title}", flush=True)
        if self._fingerprint:
            self._passed.unlink(missing_ok=True)
        self._started = time.monotonic()
        self._has_own_group = not shown
        if shown:
            self._process = subprocess.Popen(self._command, cwd=ROOT)
            return
        OUTPUTS.mkdir(parents=True, exist_ok=True)
        with self._output.open("w") as output:
            # In a process group of its own, so that an interrupt reaches it once: from end().
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether the process ends in time; if it has passed, keep the fingerprint."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self.minutes = (time.monotonic() - self._started) / 60
        if self.has_failed(none_selected=self._fingerprint is not None):
            self._passed.unlink(missing_ok=True)
        elif self._fingerprint and self._fingerprint == fingerprint(
            self.stage.files, self._command
        ):
            self._passed.parent.mkdir(parents=True, exist_ok=True)
            self._passed.write_text(self._fingerprint)
        return True

    def has_failed(self, *, none_selected: bool) -> bool:
        """Return whether the ended process failed.

        :param none_selected: whether a run without a test counts as failed.
        """
        status = self._process.returncode
        return status != 0 and (none_selected or status != _NONE_SELECTED)

    def end(self) -> None:
        """Interrupt pytest and its workers if they run, and wait for their end."""
        if self._has_own_group and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait()

    def show(self) -> None:
        """Print the output."""
        print(f"==> {self.stage.title}: the output", flush=True)
        print(self._output.read_text(errors="replace"), end="", flush=True)

    def progress(self) -> str:
        """Return the share of the tests that have run, as pytest says it."""
        shares = re.findall(r"\[ *(\d+%)\]", self._output.read_text(errors="replace"))
        return f"{self.stage.name} {shares[-1] if shares else '0%'}"


def run_side_by_side(runs: Iterable[Run]) -> None:
    """Run stages, two at a time; print the output of each when it ends.

    An interrupt ends both, and is raised again after their output.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    waiting, running = list(runs), list[Run]()
    said = time.monotonic()
    try:
        while waiting or running:
            if waiting and len(running) < AT_ONCE:
                running.append(waiting.pop(0))
                running[-1].start(shown=False)
                continue
            for run in running.copy():
                if run.wait(0.5):
                    running.remove(run)
                    run.show()
            if running and time.monotonic() - said > _PROGRESS:
                print(f"==> {', '.join(run.progress() for run in running)}", flush=True)
                said = time.monotonic()
    finally:
        for run in running:
            run.end()
            run.show()


def has_passed(name: str, fingerprint: str) -> bool:
    """Return whether a stage has passed with the same files, packages and command."""
    file = PASSED / name
    return file.exists() and file.read_text() == fingerprint


def fingerprint(files: Sequence[str], command: Iterable[str], root: Path = ROOT) -> str | None:
    """Return a hash of what a stage depends on; None if git cannot list the files.

    :param files: git's pathspecs. Files that git does not know yet count, ignored ones do not.
    """
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *files]
    done = subprocess.run(listed, cwd=root, capture_output=True, check=False)
    if done.returncode:
        return None
    paths = [root / os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    paths += (root / name for name in _CONFIGURATION)
    paths += root.glob("p*/*/src/**/*.so")
    paths += Path(sysconfig.get_path("platlib")).glob("rpc_*/**/*.so")
    environment = [
        *command,
        *(platform.python_version(), platform.platform(), str(os.geteuid())),
        *sorted(
            f"{distribution.name} {distribution.version}"
            for distribution in metadata.distributions()
        ),
        *filter(_VARIABLES.match, sorted(f"{k}={v}" for k, v in os.environ.items())),
    ]
    total = hashlib.sha256("\0".join(environment).encode())
    for path in sorted(set(paths)):
        if path.is_file():
            total.update(f"{os.path.relpath(path, root)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
