"""Helpers of the core's tests: a folder of small packages, and processes to run code in."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import importlib_metadata

from rpc_backends_core import _discovery as discovery
from support.children import started

GROUPS = {"backends": discovery.BACKENDS_GROUP, "hooks": discovery.HOOKS_GROUP}

#: The source of a complete backend; `CALLS` lists the handlers that were called.
BACKEND = """
    from torch.distributed import rpc
    from rpc_backends_core import Backend

    CALLS = []

    class Options(rpc.RpcBackendOptions):
        pass

    def construct(rpc_timeout, init_method, **options):
        CALLS.append("construct")
        return Options(rpc_timeout, init_method)

    def init(store, name, rank, world_size, rpc_backend_options):
        CALLS.append("init")
        return "agent"

    BACKEND = Backend(
        construct_rpc_backend_options_handler=construct,
        init_backend_handler=init,
        options_type=Options,
    )
"""


class Site:
    """A folder on ``sys.path`` that contains distributions as pip installs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def add(
        self,
        distribution: str,
        version: str = "1.0",
        *,
        backends: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        hooks: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        modules: Mapping[str, str] | None = None,
        metadata: bytes | None = b"",
    ) -> Path:
        """Install a distribution and return its ``.dist-info``.

        :param backends: entry points: a mapping of names to values, or pairs of both.
        :param hooks: entry points of hook packages, in the same form.
        :param modules: source (dedented) by module name.
        :param metadata: contents of METADATA, if not the usual ones; None for no such file.
        """
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        if metadata is not None:
            (info / "METADATA").write_bytes(metadata or text.encode())
        lines: list[str] = []
        for group, entries in (("backends", backends), ("hooks", hooks)):
            pairs = entries.items() if isinstance(entries, Mapping) else entries
            lines += [f"[{GROUPS[group]}]", *(f"{name} = {value}" for name, value in pairs)]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for name, source in (modules or {}).items():
            (self.folder / f"{name}.py").write_text(dedent(source))
        importlib.invalidate_caches()
        return info

    def add_backend(self, name: str, source: str = BACKEND, version: str = "1.0") -> str:
        """Install ``rpc-backend-NAME`` with one backend; return the name of its module."""
        # Installed plugins have no module of this name, so it is not imported yet.
        module = f"sample_backend_{name.lower()}"
        self.add(
            f"rpc-backend-{name.lower()}",
            version,
            backends={name: f"{module}:BACKEND"},
            modules={module: source},
        )
        return module

    def add_hooks(self, name: str, source: str) -> str:
        """Install ``rpc-hooks-NAME``, whose module itself is the object with the hooks."""
        module = f"rpc_hooks_{name}"
        head = "import sys\nfrom rpc_backends_core import RefusedError, hookimpl\nCALLS = []\n"
        self.add(f"rpc-hooks-{name}", hooks={name: module}, modules={module: head + dedent(source)})
        return module

    def remove(self, distribution: str) -> None:
        """Uninstall a distribution; its modules stay on disk."""
        for info in self.folder.glob(f"{distribution.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(info)
        importlib.invalidate_caches()

    def scan(self) -> discovery.Scan:
        """Scan this folder as the core scans ``sys.path``."""
        distributions = importlib_metadata.distributions(path=[str(self.folder)])
        return discovery.select(point for each in distributions for point in each.entry_points)

    def forget_modules(self) -> None:
        """Remove modules of this folder from ``sys.modules``, so that each test imports its own."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(self.folder)):
                del sys.modules[name]


def calls(module: str) -> list[Any]:
    """Return what the module of a test package has recorded; empty if it was never imported."""
    noted: list[Any] = getattr(sys.modules.get(module), "CALLS", [])
    return noted


class ChildFailedError(AssertionError):
    """Code that had to succeed in another process failed."""


_FORKS = """
import faulthandler, json, os, sys, traceback
import torch, torch.distributed.rpc
del os.environ["RPC_BACKENDS_AUTOLOAD"]
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            faulthandler.dump_traceback_later(20, exit=True)
            os.dup2(os.open(job["out"], os.O_WRONLY), 1)
            os.dup2(1, 2)
            os.environ.update(job["env"])
            exec(compile(job["code"], "<test>", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""

#: Python 3.12 and newer warn of a fork beside other threads, which is what some tests are about.
_NO_FORK_WARNING = "ignore:This process:DeprecationWarning"

_ONLY_THIS_SITE = """
import sys
sys.path.insert(0, {folder!r})
import rpc_backends_core._discovery as _discovery
def _scan():
    import importlib_metadata
    found = importlib_metadata.distributions(path=[{folder!r}])
    return _discovery.select(one for each in found for one in each.entry_points)
_discovery.scan = _scan
"""


class Children:
    """Runs code in processes that have imported torch and not installed the bridge.

    Each is forked from one process, which takes milliseconds.
    """

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _FORKS],
            env=clean_environ({"RPC_BACKENDS_AUTOLOAD": "0", "PYTHONWARNINGS": _NO_FORK_WARNING}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, code: str, *, site: Site | None = None, env: Mapping[str, str] | None = None
    ) -> str:
        """Run `code` (dedented) and return what it printed.

        :param site: the only folder in which the code finds backends and hooks; by default it finds none.
        :raises ChildFailedError: the code failed.
        """
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        folder = str(site.folder) if site is not None else "/nowhere"
        with tempfile.NamedTemporaryFile("r") as out:
            job = {
                "code": _ONLY_THIS_SITE.format(folder=folder) + dedent(code),
                "env": dict(env or {}),
                "out": out.name,
            }
            self._popen.stdin.write(json.dumps(job) + "\n")
            self._popen.stdin.flush()
            status = self._popen.stdout.readline().strip()
            output = out.read()
        if status != "0":
            raise ChildFailedError(f"exit status {status}\n{output}")
        return output.strip()

    def close(self) -> None:
        """End the process that the others are forked from."""
        self._popen.communicate()


@contextmanager
def fresh(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Fresh]:
    """Start `code` (dedented) in a new interpreter, which is killed at the end of the block."""
    with started(
        [sys.executable, "-c", dedent(code), *arguments],
        env=clean_environ(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as popen:
        yield Fresh(popen)


@dataclass
class Fresh:
    """A running interpreter."""

    popen: subprocess.Popen[str]

    def output(self) -> str:
        """Wait until it ends; return what it printed.

        :raises ChildFailedError: it failed.
        """
        output, _ = self.popen.communicate(timeout=300)
        if self.popen.returncode:
            raise ChildFailedError(f"exit status {self.popen.returncode}\n{output}")
        return output.strip()


def clean_environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of this process without this project's variables."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("RPC_BACKENDS_")}
    return {**environ, "OMP_NUM_THREADS": "1", **(extra or {})}


class Workers:
    """Threads that stand for workers. Their results and errors are kept by key."""

    def __init__(self) -> None:
        self._threads: dict[Any, threading.Thread] = {}
        self.results: dict[Any, Any] = {}
        self.errors: dict[Any, BaseException] = {}

    def start(self, key: Any, work: Callable[[], Any]) -> None:
        """Start a thread."""

        def run() -> None:
            try:
                self.results[key] = work()
            except BaseException as error:
                self.errors[key] = error

        self._threads[key] = threading.Thread(target=run, daemon=True)
        self._threads[key].start()

    def join(self, seconds: float = 15) -> Workers:
        """Wait for all threads; one that still runs after that time is an error."""
        for key, thread in self._threads.items():
            thread.join(seconds)
            assert not thread.is_alive(), f"worker {key!r} still runs"
        return self

    def all_results(self) -> list[Any]:
        """Wait for all threads; return the results by key, or raise the first error."""
        self.join()
        for error in self.errors.values():
            raise error
        return [self.results[key] for key in sorted(self.results)]


def at_once(count: int, work: Callable[[int], Any]) -> Workers:
    """Run `work` with 0..count-1 in threads that start together, and wait for them."""
    barrier = threading.Barrier(count)

    def call(number: int) -> Any:
        barrier.wait(10)
        return work(number)

    workers = Workers()
    for number in range(count):
        workers.start(number, lambda number=number: call(number))  # type: ignore[misc]
    return workers.join()


def joining(store: Any, name: str, rank: int, world_size: int | None, **options: Any) -> Any:
    """Return a function that joins a group, with time limits of ten seconds."""
    from rpc_backends_core._group import join_group

    options = {"backend": "PIGEON", "timeout": 10.0, "join_timeout": 10.0, **options}
    return lambda: join_group(store, name, rank, world_size, **options)


def form(store: Any, world_size: int, **options: Any) -> list[Any]:
    """Form a static group of workers w0, w1, ... in threads; return each worker's group object."""
    workers = Workers()
    for rank in range(world_size):
        workers.start(rank, joining(store, f"w{rank}", rank, world_size, **options))
    return workers.all_results()
