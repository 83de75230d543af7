"""Installs the wheels as a user does, where no compiler is found, and tries the engines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support import quickstart
from support.environments import clean_environ, free_port

ENGINES = ("TENSORPIPE", "ZEROMQ", "UCX")
_FIRST_CALL = """
import sys
import torch
from torch.distributed import rpc
rank = int(sys.argv[1])
rpc.init_rpc(f"worker{rank}", backend="ZEROMQ", rank=rank, world_size=2)
if rank == 0:
    assert rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]
    print("answered", flush=True)
rpc.shutdown()
"""
#: Programs that compile, and that must not be found.
_COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "ninja", "make", "cmake")
#: Seconds that one command may take.
_LIMIT = 600


class TrialError(Exception):
    """A step failed; the text has the command and its output."""


class WheelTrial:
    """A virtual environment with torch, into which the wheels are installed.

    :param python: its interpreter.
    :param wheels: the folder with the wheels of all distributions.
    :param folder: an empty folder for files.
    :param install: installs requirements; by default pip does, with the index.
    """

    def __init__(
        self,
        python: Path,
        wheels: Path,
        folder: Path,
        install: Callable[..., None] | None = None,
    ) -> None:
        self._python = python
        self._wheels = wheels
        self._folder = folder
        self.install = install or self._install
        programs = folder / "bin"
        programs.mkdir(parents=True)
        for name in ("bash", "env", "uname"):  # what the quickstart's commands need
            (programs / name).symlink_to(f"/usr/bin/{name}")
        self._path = os.pathsep.join((str(python.parent), str(programs)))

    def run(self) -> Iterator[tuple[str, float]]:
        """Run all steps; yield what each has done, and in how many seconds.

        :raises TrialError: a step failed.
        """
        compilers = [name for name in _COMPILERS if shutil.which(name, path=self._path)]
        if compilers:
            raise TrialError(f"there are compilers in the environment: {', '.join(compilers)}")
        torch = self._torch_version()
        yield "from the installation to the first call on ZEROMQ", self.first_call()
        if self._torch_version() != torch:
            raise TrialError(f"pip has replaced torch {torch} by {self._torch_version()}")
        for step in (self.quickstart, self.doctor, self.conformance):
            started = time.monotonic()
            done = step()
            yield done, time.monotonic() - started

    def first_call(self) -> float:
        """Install as the README says; return the seconds until a first call on ZEROMQ is answered."""
        started = time.monotonic()
        self.install(quickstart.requirement())
        rendezvous = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
        workers = [self._start(["-c", _FIRST_CALL, str(rank)], rendezvous) for rank in range(2)]
        assert workers[0].stdout is not None
        answer = workers[0].stdout.readline()
        seconds = time.monotonic() - started
        outputs = [answer, *("".join(self._end(worker)) for worker in workers)]
        if answer != "answered\n":
            raise TrialError("the first call on ZEROMQ was not answered:\n" + "\n".join(outputs))
        return seconds

    def quickstart(self) -> str:
        """Run the README's quickstart as it is printed, and its program on each engine."""
        for step in quickstart.run(self._python, self._folder, self._environ()):
            if step.printed != step.shown:
                raise TrialError(
                    f"{step.command} printed {step.printed}, not {step.shown}\n{step.stderr}"
                )
        for engine in ENGINES:
            command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "quickstart.py"]
            variables = {"RPC_BACKENDS_OVERRIDE": engine, **quickstart.torchrun_port()}
            printed = "".join(self._ran(*command, env=variables))
            if f"runs on {engine} " not in printed or "tensor([2., 2.])" not in printed:
                raise TrialError(f"the quickstart on {engine} printed:\n{printed}")
        return f"quickstart, on {', '.join(ENGINES)}"

    def doctor(self) -> str:
        """Run ``doctor``, and check that it shows the build for this torch, from the package."""
        report = json.loads(self._ran("-m", "rpc_backends_cli", "doctor", "--json")[0])
        if not report["ok"]:
            raise TrialError(f"doctor finds problems: {json.dumps(report['sections'], indent=1)}")
        (build,) = report["sections"]["agents"]
        minor = ".".join(self._torch_version().split(".")[:2])
        if build["data"]["torch"] != minor or build["data"]["origin"] != "package":
            raise TrialError(f"doctor shows another build for torch {minor}: {build}")
        return f"doctor, {build['text']}"

    def conformance(self) -> str:
        """Run a chapter of the conformance suite on each engine."""
        self.install("rpc-backends[testing]")
        for engine in ENGINES:
            arguments = ("conformance", engine, "--chapter", "calls", "-x")
            self._ran("-m", "rpc_backends_cli", *arguments)
        return f"conformance, calls, on {', '.join(ENGINES)}"

    def _torch_version(self) -> str:
        """Return the version of the installed torch, without importing it."""
        code = "from importlib.metadata import version; print(version('torch'))"
        return self._ran("-c", code)[0].strip()

    def _install(self, *requirements: str) -> None:
        """Install distributions from the wheels, and what they need from the index."""
        pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"]
        self._ran(*pip, "--find-links", str(self._wheels), *requirements)

    def _ran(self, *arguments: str, env: dict[str, str] | None = None) -> tuple[str, str]:
        """Run the environment's Python, and return what it printed on stdout and on stderr."""
        worker = self._start(list(arguments), env)
        printed = self._end(worker)
        if worker.returncode:
            output = "".join(printed)
            raise TrialError(
                f"python {' '.join(arguments)} ended with {worker.returncode}:\n{output}"
            )
        return printed

    def _start(
        self, arguments: list[str], env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self._python), *arguments],
            cwd=self._folder,
            env=self._environ(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _end(self, worker: subprocess.Popen[str]) -> tuple[str, str]:
        try:
            return worker.communicate(timeout=_LIMIT)
        except subprocess.TimeoutExpired:
            worker.kill()
            stdout, stderr = worker.communicate()
            return stdout, f"{stderr}\n[killed: still running after {_LIMIT} s]"

    def _environ(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        cache = {"XDG_CACHE_HOME": str(self._folder / "cache"), "PIP_CACHE_DIR": _pip_cache()}
        return clean_environ({"PATH": self._path, **cache, **(extra or {})})


def _pip_cache() -> str:
    """Return pip's cache, which is warm for a user, too."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return os.environ.get("PIP_CACHE_DIR") or f"{base}/pip"
