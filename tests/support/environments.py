"""Virtual environments to install wheels into, and processes that run in them.

Tests never install torch, which takes most of a minute. `Environment.of_links` makes a *base*: links to
torch and to the third-party dependencies in the environment that runs the tests. Every other environment
is made `on` the base: it contains what the test installs, and a ``.pth`` file adds the base's
site-packages after its own. Both see nothing else of the environment that runs the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support import native

# Variables through which the shell or the environment that runs the tests would affect children.
_PREFIXES_TO_DROP = (
    "RPC_BACKENDS_",
    "PYTHON",
    "TORCH",
    "COVERAGE",
    "VIRTUAL_ENV",
    "TP_",
    "MASTER_",
)


def clean_environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without this project's and Python's variables, and with `extra`."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(_PREFIXES_TO_DROP)}
    environ["OMP_NUM_THREADS"] = "1"
    environ["RPC_BACKENDS_RECORDER"] = "off"  # the recorder's own tests turn it on
    environ.update(extra or {})
    return environ


def free_port() -> int:
    """Return a TCP port of the loopback interface on which nothing listens.

    The kernel does not choose it: it might give the same one to another socket before the test listens.
    As `rpc_backends_processes.free_port`; `make wheels` needs it where no package of ours is installed.
    """
    chosen_by_kernel = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    while True:
        port = random.SystemRandom().randrange(10_000, min(int(chosen_by_kernel[0]), 32_000))
        with (
            socket.socket() as server,
            contextlib.suppress(OSError),
        ):  # it is taken: try another one
            server.bind(("127.0.0.1", port))
            return port


def program(*parts: str) -> str:
    """Join pieces of source; each is dedented by itself."""
    return "\n".join(dedent(part) for part in parts)


class ChildFailedError(AssertionError):
    """A process that had to succeed failed; the text has all its output."""


@dataclass(frozen=True)
class Result:
    """The result of a finished process."""

    command: Sequence[str]
    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The value of the last line of stdout, which must be JSON."""
        lines = self.stdout.strip().splitlines()
        try:
            return json.loads(lines[-1])
        except (IndexError, ValueError) as error:
            raise ChildFailedError(f"no JSON in the last line of stdout\n{self}") from error

    def check(self) -> Result:
        """Return this result if the process succeeded.

        :raises ChildFailedError: the exit status is not 0.
        """
        if self.returncode != 0:
            raise ChildFailedError(str(self))
        return self

    def __str__(self) -> str:
        """Return command, code, output and status, for the report of a failed test."""
        shown = " ".join(self.command[:2]) + (" ..." if len(self.command) > 2 else "")
        code = self.command[self.command.index("-c") + 1] if "-c" in self.command else ""
        parts = [f"exit status {self.returncode} from {shown}"]
        for title, text in (("code", code), ("stdout", self.stdout), ("stderr", self.stderr)):
            if text.strip():
                parts.append(f"--- {title}\n{indent(text.rstrip(), '    ')}")
        return "\n".join(parts)


@dataclass
class Process:
    """A running process that the test exchanges lines with."""

    command: Sequence[str]
    popen: subprocess.Popen[str]

    def __enter__(self) -> Process:
        """Return the process."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Kill the process if it still runs."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.communicate()

    def read_line(self) -> str:
        """Return the next line of the process's stdout.

        :raises ChildFailedError: the process ended without another line.
        """
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            raise ChildFailedError(f"the process ended early\n{self.finish(check=False)}")
        return line.rstrip("\n")

    def write_line(self, text: str = "") -> None:
        """Send one line to the process's stdin."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(text + "\n")
        self.popen.stdin.flush()

    def finish(self, *, timeout: float = 120, check: bool = True) -> Result:
        """Wait for the end; after `timeout` seconds, kill the process and say so in its stderr."""
        try:
            stdout, stderr = self.popen.communicate(timeout=timeout)
            note = ""
        except subprocess.TimeoutExpired:
            self.popen.kill()
            stdout, stderr = self.popen.communicate()
            note = f"\n[killed: still running after {timeout:g} s]"
        result = Result(self.command, self.popen.returncode, stdout, stderr + note)
        return result.check() if check else result


@dataclass(frozen=True)
class Environment:
    """One virtual environment."""

    root: Path

    @classmethod
    def _empty(cls, root: Path) -> Environment:
        _run([sys.executable, "-m", "venv", "--without-pip", str(root)])
        return cls(root)

    @classmethod
    def of_links(cls, root: Path, requirements: Iterable[str]) -> Environment:
        """Make an environment of links to pip, and to distributions with all their dependencies.

        :param requirements: the distributions, installed in the environment that runs the tests.
        """
        environment = cls._empty(root)
        environment.link("pip", *requirements)
        return environment

    @classmethod
    def on(cls, base: Environment, root: Path) -> Environment:
        """Make an empty environment in which Python finds the packages of `base` after its own."""
        environment = cls._empty(root)
        environment.add_path(base.site_packages, name="base")
        return environment

    @classmethod
    def like(cls, model: Environment, root: Path) -> Environment:
        """Make a copy of another environment, which is a second faster than installing the same again."""
        environment = cls._empty(root)
        shutil.copytree(model.site_packages, environment.site_packages, dirs_exist_ok=True)
        for script in (model.root / "bin").iterdir():
            if not (root / "bin" / script.name).exists():
                text = script.read_text().replace(str(model.root), str(root))
                (root / "bin" / script.name).write_text(text)
                (root / "bin" / script.name).chmod(0o755)
        return environment

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.root / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The folder that wheels are installed into."""
        (folder,) = (self.root / "lib").glob("python*/site-packages")
        return folder

    def add_path(self, folder: Path, *, name: str = "extra") -> None:
        """Put `folder` on ``sys.path`` after site-packages, for every process of this environment."""
        (self.site_packages / f"{name}.pth").write_text(f"{folder}\n")

    def add_first_path(self, folder: Path) -> None:
        """Put `folder` on ``sys.path`` before site-packages, for every process of this environment."""
        line = f"import sys; sys.path.insert(1, {str(folder)!r})\n"
        (self.site_packages / "first.pth").write_text(line)

    def install(self, *wheels: Path) -> None:
        """Install wheels, not editable; their dependencies must be installed already."""
        self._pip("install", "--no-index", *map(str, wheels))

    def install_editable(self, folder: Path) -> None:
        """Install the project in `folder` in editable mode; its build backend must be installed."""
        self._pip("install", "--no-index", "--no-build-isolation", "--editable", str(folder))

    def link(self, *requirements: str) -> None:
        """Link to third-party distributions where they are installed for the tests."""
        for name in closure(requirements):
            link_distribution(metadata.distribution(name), self.site_packages)

    def install_into(self, folder: Path, wheel: Path) -> None:
        """Install one wheel into a folder, as ``pip install --target`` does."""
        self._pip("install", "--no-index", "--no-deps", "--target", str(folder), str(wheel))

    def uninstall(self, *names: str) -> None:
        """Uninstall distributions."""
        self._pip("uninstall", "--yes", *names)

    def pip_check(self) -> Result:
        """Run ``pip check``: every dependency must be installed in a suitable version."""
        return self._pip("check")

    def run(
        self,
        code: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 120,
    ) -> Result:
        """Run `code` (dedented) in a new process with ``sys.argv[1:] == arguments``.

        :raises ChildFailedError: the process failed and `check` is true.
        """
        return self.start(code, *arguments, env=env).finish(timeout=timeout, check=check)

    def start(self, code: str, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        """Start `code` and return its process at once."""
        return self._start([str(self.python), "-c", dedent(code), *arguments], env)

    def command(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 120,
    ) -> Result:
        """Run a program of this environment's ``bin``, for example ``rpc-backends``."""
        program = str(self.root / "bin" / command[0])
        return self._start([program, *command[1:]], env).finish(timeout=timeout, check=check)

    def run_workers(
        self,
        code: str,
        *,
        world_size: int = 2,
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
    ) -> list[Result]:
        """Run `code` in several processes that find rank and rendezvous in their environment.

        :raises ChildFailedError: a process failed; the text shows the output of all.
        """
        rendezvous = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world_size),
        }
        workers = [
            self.start(code, env={**rendezvous, "RANK": str(rank), **(env or {})})
            for rank in range(world_size)
        ]
        results = [worker.finish(timeout=timeout, check=False) for worker in workers]
        if any(result.returncode for result in results):
            shown = (f"=== rank {rank}: {result}" for rank, result in enumerate(results))
            raise ChildFailedError("\n".join(shown))
        return results

    def _start(self, command: Sequence[str], env: Mapping[str, str] | None) -> Process:
        popen = subprocess.Popen(
            command,
            cwd=self.root,
            env=clean_environ(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return Process(command, popen)

    def _pip(self, *arguments: str) -> Result:
        return _run([str(self.python), "-m", "pip", *arguments], cwd=self.root)


def build_wheels(folders: Sequence[Path], into: Path) -> dict[str, Path]:
    """Build a wheel of the distribution in each folder; return the wheels by distribution.

    The build backends of the running environment build them, and no extension is compiled twice.
    """
    build = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps"]
    build += ["--no-build-isolation", "--wheel-dir", str(into)]
    with native.prebuilt(*set(folders).intersection(native.distributions())) as variables:
        _run([*build, *map(str, folders)], env=variables)
    return wheels_in(into)


def unpack(archive: Path, into: Path) -> None:
    """Extract a tar archive. Python has the filter since 3.11.4, and Debian 12 has 3.11.2."""
    with tarfile.open(archive) as contents:
        if hasattr(tarfile, "data_filter"):
            contents.extractall(into, filter="data")
        else:
            contents.extractall(into)


def build_sdist(folder: Path, into: Path) -> Path:
    """Build the sdist of the distribution in a folder; return it."""
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(into)]
    _run([*build, str(folder)])
    (sdist,) = into.glob("*.tar.gz")
    return sdist


def wheels_in(folder: Path) -> dict[str, Path]:
    """Return the wheels that :func:`build_wheels` has built in a folder, by distribution."""
    return {
        wheel.name.partition("-")[0].replace("_", "-"): wheel
        for wheel in sorted(folder.glob("*.whl"))
    }


def closure(requirements: Iterable[str]) -> list[str]:
    """Return the names of the distributions that requirements name, and of their dependencies."""
    extras: dict[str, set[str]] = {}  # the extras wanted of each distribution; "" stands for none
    waiting = [(text, "") for text in requirements]
    while waiting:
        text, extra = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        wanted = {"", *requirement.extras} - extras.setdefault(name, set())
        extras[name] |= wanted
        waiting.extend((text, extra) for text in metadata.requires(name) or [] for extra in wanted)
    return [*extras]


def link_distribution(distribution: metadata.Distribution, folder: Path) -> None:
    """Make links in a folder to all files of a distribution."""
    files = distribution.files
    assert files, f"{distribution.name} does not list its files"
    for first in sorted({file.parts[0] for file in files} - {"..", "__pycache__"}):
        link = folder / first
        if not link.is_symlink():  # several distributions may share a folder
            link.symlink_to(Path(str(distribution.locate_file(first))))


def read_project(folder: Path) -> dict[str, Any]:
    """Return the ``project`` table of a folder's pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def extract_commit(root: Path, into: Path) -> bool:
    """Write the files of the last commit into a folder; return whether git could read them."""
    archive = subprocess.Popen(["git", "archive", "HEAD"], cwd=root, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x"], cwd=into, stdin=archive.stdout, check=True)
    return archive.wait() == 0


def distributions(root: Path) -> list[Path]:
    """Return the folders of this repository's distributions; the core comes first."""
    return [root, *sorted(path.parent for path in root.glob("p*/*/pyproject.toml"))]


def third_party(folders: Iterable[Path]) -> list[str]:
    """Return the requirements of this repository's distributions on third parties."""
    needed = [text for folder in folders for text in read_project(folder).get("dependencies", [])]
    return [text for text in needed if not Requirement(text).name.startswith("rpc-backend")]


def _run(
    command: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Result:
    done = subprocess.run(
        command, cwd=cwd, env=clean_environ(env), capture_output=True, text=True, check=False
    )
    return Result(command, done.returncode, done.stdout, done.stderr).check()
