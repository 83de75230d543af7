"""Run the command in a process of its own, with small packages on its path; return its output."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent

from support.forks import INSTALL_PLUGINS, Ended, Forks

_FOREIGN = ("RPC_BACKENDS_", "PYTHON", "TORCH_DEVICE", "TP_", "MASTER_", "FORCE_COLOR", "COLUMNS")

# Torch's own agent under another name; %s is a statement that runs first when the agent starts.
BACKEND = """
import os
import time
import torch.distributed.rpc as rpc

def construct(rpc_timeout, init_method, **kwargs):
    return rpc.TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method)

def init(store, name, rank, world_size, rpc_backend_options):
    %s
    agent = rpc.TensorPipeAgent(store, name, rank, world_size, rpc_backend_options, {}, [])
    rpc.api._init_rpc_states(agent)
    return agent

BACKEND = (construct, init)
"""


#: No lookups: the name server of the machine may be slow.
_NO_NAME_SERVER = {"RES_OPTIONS": "attempts:0"}
#: Variables that Python or torch reads when it starts.
_AT_START = ("PYTHON", "TORCH", "OMP_", "LD_", "MALLOC")
_BEGIN = """
{install}
import spare
spare.use({install!r})
"""
_RUN_MODULE = """
import runpy
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""
_RUN_SCRIPT = """
import os, sys
__file__ = {script!r}
sys.path[0] = os.path.dirname(__file__)
with open(__file__) as _script:
    _script = compile(_script.read(), __file__, "exec")
exec(_script)
"""


@functools.cache
def _forks() -> Forks:
    """Return the process that the programs of this test process are forked from."""
    environ = {name: v for name, v in os.environ.items() if not name.startswith(_FOREIGN)}
    server = Forks({**environ, **_NO_NAME_SERVER})
    atexit.register(server.close)
    return server


def run_module(
    module: str, *arguments: str, env: Mapping[str, str], cwd: Path, templates: int = 1
) -> Ended:
    """Do what ``python -m`` does, in a process that is forked from one that has imported torch.

    The process ends at once, so this is for modules that are tested for what they do before their exit.
    """
    code = _BEGIN.format(install=INSTALL_PLUGINS) + _RUN_MODULE.format(module=module)
    argv = [module, *arguments]
    return _forks().run(code, argv, env=env, cwd=cwd, ends_at_once=True, templates=templates)


def run_code(code: str, *arguments: str, env: Mapping[str, str], cwd: Path) -> Ended:
    """Do what ``python -c`` does, in a process that is forked from one that has imported torch."""
    code = f"{INSTALL_PLUGINS}\n{code}"
    return _forks().run(code, ["-c", *arguments], env=env, cwd=cwd, ends_at_once=True)


def run_python(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Do what ``subprocess.run([sys.executable, *arguments])`` does, in a process that is forked.

    The process has imported torch. So this is for programs that import torch, and do nothing before.

    :param arguments: ``-c CODE``, ``-m MODULE`` or a script, and its arguments.
    :param env: all its variables; those of this process by default.
    """
    first, *argv = map(str, arguments)
    if first == "-c":
        code = argv.pop(0)
    elif first == "-m":
        first, *argv = argv
        code = _RUN_MODULE.format(module=first)
    else:
        code = _RUN_SCRIPT.format(script=str(Path(cwd or ".", first).resolve()))
    begin = _BEGIN.format(install=INSTALL_PLUGINS)
    environ = dict(os.environ if env is None else env)
    ended = _forks().run(begin + code, [first, *argv], env=environ, cwd=cwd or Path.cwd())
    return subprocess.CompletedProcess(
        [sys.executable, *map(str, arguments)], ended.status, ended.stdout, ended.stderr
    )


class Command:
    """The command, with variables of its own and ``packages`` on its path.

    :param templates: how many templates of worker processes one run of the command starts.
    """

    def __init__(self, folder: Path, templates: int = 1) -> None:
        self._templates = templates
        self.packages = folder / "packages"
        self.packages.mkdir()

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        environ = {name: v for name, v in os.environ.items() if not name.startswith(_FOREIGN)}
        packages = {"PYTHONPATH": str(self.packages)}
        return {**environ, **_NO_NAME_SERVER, **packages, **(extra or {})}

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        """Run the command in a process that is forked, unless its start depends on ``env``."""
        if any(name.startswith(_AT_START) for name in env or {}):
            return self.anew(*arguments, env=env)
        environ = self.environ(env)
        return run_module(
            *("rpc_backends_cli", *arguments),
            env=environ,
            cwd=self.packages.parent,
            templates=self._templates,
        )

    def anew(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        """Run the command in a new interpreter, for tests of how it starts and imports torch."""
        return self.python("-m", "rpc_backends_cli", *arguments, env=env)

    def python(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=self.environ(env),
            cwd=self.packages.parent,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def install(
        self,
        distribution: str,
        entry_points: Mapping[str, str],
        source: str,
        group: str = "rpc.backends",
        requires: Sequence[str] = (),
    ) -> str:
        """Install a package of one module for the command; return the module's name.

        :param entry_points: attribute of the module by entry-point name; "" for the module itself.
        """
        module = distribution.replace("-", "_")
        info = self.packages / f"{module}-1.0.dist-info"
        info.mkdir()
        metadata = f"Name: {distribution}\nVersion: 1.0\nSummary: about {distribution}\n"
        metadata += "".join(f"Requires-Dist: {text}\n" for text in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{metadata}")
        lines = [f"{name} = {module}:{what}" for name, what in entry_points.items()]
        text = "\n".join([f"[{group}]", *(line.removesuffix(":") for line in lines), ""])
        (info / "entry_points.txt").write_text(text)
        (self.packages / f"{module}.py").write_text(dedent(source))
        return module


def marked(mark: bytes) -> list[int]:
    """Return the processes with ``mark`` (``NAME=value``) in their environment."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


def wait_until(true: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition that no event reports, by polling."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not true after {seconds:g} s"
        time.sleep(0.02)
