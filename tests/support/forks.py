"""Runs Python programs in processes that have imported torch, and nothing of this project.

Each is forked from one process. That takes milliseconds, and importing torch takes two seconds of a core.
So are the interpreters that the program starts for its worker processes; see `support.spare`.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Code that a forked process runs before the program: what `import torch` does last.
INSTALL_PLUGINS = "import torch; torch._import_device_backends()"

_SERVER = """
import atexit, faulthandler, gc, importlib, json, os, select, signal, sys, threading, traceback, types
import click, importlib_metadata, packaging.requirements, packaging.version, pluggy, rich.console
import pytest, rich.table, torch, torch.distributed.rpc
sys.path.insert(0, sys.argv[1])
import spare
del sys.path[0]
gc.freeze()
job = None
for line in iter(sys.stdin.readline, ""):
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    if not select.select([end := os.pidfd_open(pid)], [], [], job["seconds"])[0]:
        os.kill(pid, signal.SIGABRT)  # it writes its stacks
    os.close(end)
    job = None
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
if job is not None:
    for name, number in ((os.devnull, 0), (job["out"], 1), (job["err"], 2)):
        opened = os.open(name, os.O_RDWR)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["cwd"])
    folders = job["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [job["cwd"], *filter(None, folders), *sys.path[1:]]
    sys.argv[:] = job["argv"]
    sys.orig_argv[:] = [sys.executable, *job["argv"]]
    importlib.invalidate_caches()
    code = spare.wait_for_code(job["code"], job["spares"])
    if code == job["code"]:  # the program, and not a process that stood ready
        # Not dump_traceback_later(), for whose thread a fork of the program would wait at its exit.
        faulthandler.enable()
    # pickle finds the program's functions in this module.
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    program = compile(code, "<test>", "exec")
    if not job["at_once"]:
        exec(program, main.__dict__)
    else:
        try:
            exec(program, main.__dict__)
            status = 0
        except SystemExit as error:
            status = error.code or 0
            if not isinstance(status, int):
                print(status, file=sys.stderr)
                status = 1
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            status = 1
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
"""


@dataclass(frozen=True)
class Ended:
    """The result of a finished program."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The value of stdout, all of which must be JSON."""
        return json.loads(self.stdout)


class Forks:
    """The process that the others are forked from."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(Path(__file__).parent)],
            env={**env, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        code: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        seconds: float = 300,
        ends_at_once: bool = False,
        templates: int = 1,
    ) -> Ended:
        """Run ``code`` with ``sys.argv == argv``, and return its status and output.

        :param seconds: after this time the process writes its stacks, and ends.
        :param ends_at_once: end without freeing what torch has allocated, which takes 0.2 seconds of a
            core. Threads are joined, and functions that wait for the exit run.
        :param templates: how many templates of worker processes are forked, see `support.spare`; those
            that the program starts after them import torch.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            job = {
                "code": code,
                "argv": list(argv),
                "env": dict(env),
                "cwd": str(cwd),
                "out": out.name,
                "err": err.name,
                "seconds": seconds,
                "at_once": ends_at_once,
                "spares": templates,
            }
            self._server.stdin.write(json.dumps(job) + "\n")
            self._server.stdin.flush()
            ready, _, _ = select.select([self._server.stdout], [], [], seconds + 60)
            status = self._server.stdout.readline() if ready else ""
            assert status, f"the server has ended, or no end in {seconds:g} s: {err.read()}"
            return Ended(int(status), out.read(), err.read())

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self._server.communicate()
