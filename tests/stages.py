"""Runs the stages of ``make test``; a stage that has passed runs again only if something has changed.

::

    make test                          # all stages
    make test AGAIN=1                  # also those that have passed, and that nothing has changed for
    make stages STAGES="ZEROMQ UCX"    # these alone

A stage depends on its files, on the compiled extensions, and on the installed packages. If it passes,
their fingerprint is kept in ``build/passed``, which a new checkout does not have.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSED = ROOT / "build/passed"

#: What every suite depends on: all that is installed. These are pathspecs of git.
INSTALLED = ("pyproject.toml", "src", "packages", "plugins", ":!packages/bench", ":!*/tests/*")
#: The same for a suite that uses neither ZEROMQ nor UCX.
ON_TENSORPIPE = (*INSTALLED, ":!plugins/zeromq", ":!plugins/ucx")
_SUPPORT = ("conftest.py", "tests/conftest.py", "tests/support", "Makefile")
#: The folders of tests that the tests of packages and plugins do not use.
_OTHER_TESTS = (
    *("bench", "cli", "conformance", "core", "demo", "docs", "inspect", "installed", "matrix"),
    *("mutation", "processes", "release", "scale", "structure", "torch_suites", "wheelhouse"),
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
    """

    name: str
    title: str
    files: Sequence[str]
    arguments: Sequence[str]
    markers: str = ""
    thorough: Sequence[str] = ()

    def command(self, *, thorough: bool) -> list[str]:
        """Return the command line of this stage."""
        arguments = [*self.arguments, *(self.thorough if thorough else ())]
        if self.markers:
            markers = self.markers if thorough else f"{self.markers} and not thorough"
            arguments += ["-m", markers]
        return [sys.executable, "-m", "pytest", *arguments]


def _conformance(backend: str, *arguments: str) -> tuple[str, ...]:
    return ("--pyargs", *arguments, "--rpc-backend", backend, "-q")


#: Three files at a time, because most tests wait, in the order that conftest.py sorts: slow files first.
BY_FILE = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "10")
_OWN = "not torch_suites and not whole_suite"
STAGES = (
    Stage(
        "torch_suites",
        "torch's own RPC suites on our handlers",
        (*ON_TENSORPIPE, *_SUPPORT, "tests/torch_suites"),
        ("tests/torch_suites", "-n", "3"),
        "torch_suites",
    ),
    Stage(
        "ZEROMQ",
        "ZEROMQ passes the conformance suite",
        (*INSTALLED, *_SUPPORT, ":!plugins/ucx"),
        (*_conformance("ZEROMQ", "rpc_backends_testing"), "-n", "3"),
        thorough=("--rpc-tier", "torch"),
    ),
    Stage(
        "encryption",
        "ZEROMQ encrypts its TCP connections",
        (*INSTALLED, *_SUPPORT, ":!plugins/ucx"),
        (
            *_conformance("ZEROMQ", "rpc_backends_testing.chapters.test_security"),
            *("--rpc-option", "unix_sockets=false"),
        ),
    ),
    Stage(
        "UCX",
        "UCX passes the conformance suite",
        (*INSTALLED, *_SUPPORT, ":!plugins/zeromq"),
        (*_conformance("UCX", "rpc_backends_testing"), "-n", "3"),
        thorough=("--rpc-tier", "torch"),
    ),
    Stage(
        "suite",
        "the conformance suite on correct backends and on broken ones",
        (*ON_TENSORPIPE, *_SUPPORT, "tests/conformance", "packages/agents/tests", "examples"),
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
        "core",
        "the tests of the core, the command and the documents",
        (".",),
        ("tests", "--ignore", "tests/installed", *BY_FILE),
        _OWN,
    ),
)


def main() -> int:
    """Run the stages, each even if an earlier one has failed; return 1 if a stage fails."""
    parser = argparse.ArgumentParser(prog="make test")
    parser.add_argument("--only", default="", help=f"some of: {' '.join(s.name for s in STAGES)}")
    parser.add_argument("--thorough", action="store_true", help="long tests, too")
    parser.add_argument("--again", action="store_true", help="also what has passed")
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest")
    given = parser.parse_args()
    names = given.only.split() or [stage.name for stage in STAGES]
    if unknown := set(names) - {stage.name for stage in STAGES}:
        parser.error(f"no such stage: {' '.join(sorted(unknown))}")
    failed, times = [], []
    for stage in STAGES:
        if stage.name not in names:
            continue
        command = [*stage.command(thorough=given.thorough), *given.pytest]
        before = None if given.pytest else fingerprint(stage.files, command)
        if before and not given.again and has_passed(stage.name, before):
            print(f"==> {stage.title}: passed, and nothing has changed since", flush=True)
            continue
        print(f"==> pytest: {stage.title}", flush=True)
        started = time.monotonic()
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        times.append(f"{stage.name} {(time.monotonic() - started) / 60:.1f}")
        if status == _NONE_SELECTED and given.pytest:
            continue
        if status:
            failed.append(stage.title)
        elif before and before == fingerprint(stage.files, command):
            PASSED.mkdir(parents=True, exist_ok=True)
            (PASSED / stage.name).write_text(before)
    if times:
        print(f"==> minutes: {', '.join(times)}", flush=True)
    if failed:
        print(f"error: failed: {'; '.join(failed)}; see above", file=sys.stderr)
    return 1 if failed else 0


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
    paths += root.glob("p*/*/src/*/*.so")
    environment = [
        *command,
        *(platform.python_version(), platform.platform(), str(os.geteuid())),
        *sorted(f"{found.name} {found.version}" for found in metadata.distributions()),
        *sorted(
            f"{k}={v}" for k, v in os.environ.items() if k.startswith(("RPC_BACKENDS_", "TORCH"))
        ),
    ]
    total = hashlib.sha256("\0".join(environment).encode())
    for path in sorted(set(paths)):
        if path.is_file():
            total.update(f"{path.relative_to(root)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
