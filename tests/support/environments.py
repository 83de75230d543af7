"""Virtual environments to install real wheels into, and processes that run in them.

Installing torch takes most of a minute, so nobody does: `Environment.of_links` makes a *base*, of links
to torch and the third-party dependencies where pip has installed them for the tests, and every other
environment `on` that base sees the base's site-packages after its own (a ``.pth`` file) and holds only
what the test installs. Nothing else of the environment that runs the tests is visible in either.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
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

# What would let the environment that runs the tests, or the shell it was started from, leak.
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
    """Return the variables a child is started with: ours and Python's dropped, then `extra`."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(_PREFIXES_TO_DROP)}
    environ["OMP_NUM_THREADS"] = "1"
    environ["RPC_BACKENDS_RECORDER"] = "off"  # its own tests turn it on
    environ.update(extra or {})
    return environ


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def program(*parts: str) -> str:
    """Join pieces of source, each indented as it stands where it is written."""
    return "\n".join(dedent(part) for part in parts)


class ChildFailedError(AssertionError):
    """A process that had to succeed did not; the text holds all it printed."""


@dataclass(frozen=True)
class Result:
    """What a finished process left behind."""

    command: Sequence[str]
    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The last line of stdout, which the child wrote with ``json.dumps``."""
        lines = self.stdout.strip().splitlines()
        try:
            return json.loads(lines[-1])
        except (IndexError, ValueError) as error:
            raise ChildFailedError(f"no JSON in the last line of stdout\n{self}") from error

    def check(self) -> Result:
        """Return this result.

        :raises ChildFailedError: the process ended with another status than 0.
        """
        if self.returncode != 0:
            raise ChildFailedError(str(self))
        return self

    def __str__(self) -> str:
        """Show everything somebody needs who sees this in a failed test's report."""
        shown = " ".join(self.command[:2]) + (" ..." if len(self.command) > 2 else "")
        code = self.command[self.command.index("-c") + 1] if "-c" in self.command else ""
        parts = [f"exit status {self.returncode} from {shown}"]
        for title, text in (("code", code), ("stdout", self.stdout), ("stderr", self.stderr)):
            if text.strip():
                parts.append(f"--- {title}\n{indent(text.rstrip(), '    ')}")
        return "\n".join(parts)


@dataclass
class Process:
    """A process that runs beside the test and can be told, line by line, to go on."""

    command: Sequence[str]
    popen: subprocess.Popen[str]

    def __enter__(self) -> Process:
        """Return the process itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leave nothing running when the test fails half-way."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.communicate()

    def read_line(self) -> str:
        """Return the next line the process prints.

        :raises ChildFailedError: it ended without printing one.
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
        """Wait for the end; a process still running after `timeout` seconds is killed and shown."""
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
        """Make an environment of links to what `requirements` mean where the tests run, and to pip.

        That is the distributions they name and what these depend on.
        """
        environment = cls._empty(root)
        environment.link("pip", *requirements)
        return environment

    @classmethod
    def on(cls, base: Environment, root: Path) -> Environment:
        """Make an empty environment that sees, after its own packages, those of `base`."""
        environment = cls._empty(root)
        environment.add_path(base.site_packages, name="base")
        return environment

    @classmethod
    def like(cls, other: Environment, root: Path) -> Environment:
        """Make an environment with all that pip has installed in another, which takes a second less."""
        environment = cls._empty(root)
        shutil.copytree(other.site_packages, environment.site_packages, dirs_exist_ok=True)
        for script in (other.root / "bin").iterdir():
            if not (root / "bin" / script.name).exists():
                text = script.read_text().replace(str(other.root), str(root))
                (root / "bin" / script.name).write_text(text)
                (root / "bin" / script.name).chmod(0o755)
        return environment

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.root / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where wheels are installed to."""
        (found,) = (self.root / "lib").glob("python*/site-packages")
        return found

    def add_path(self, folder: Path, *, name: str = "extra") -> None:
        """Put `folder` on ``sys.path``, behind site-packages, for every process started here."""
        (self.site_packages / f"{name}.pth").write_text(f"{folder}\n")

    def add_first_path(self, folder: Path) -> None:
        """Put `folder` on ``sys.path`` before site-packages, for every process started here."""
        line = f"import sys; sys.path.insert(1, {str(folder)!r})\n"
        (self.site_packages / "first.pth").write_text(line)

    def install(self, *wheels: Path) -> None:
        """Install wheels, not editable; what they depend on must be there already."""
        self._pip("install", "--no-index", *map(str, wheels))

    def link(self, *requirements: str) -> None:
        """Have what others publish, by links to where it is installed for the tests."""
        for name in closure(requirements):
            link_distribution(metadata.distribution(name), self.site_packages)

    def install_into(self, folder: Path, wheel: Path) -> None:
        """Install one wheel into a folder of its own, as ``pip install --target`` does."""
        self._pip("install", "--no-index", "--no-deps", "--target", str(folder), str(wheel))

    def uninstall(self, *names: str) -> None:
        """Uninstall distributions."""
        self._pip("uninstall", "--yes", *names)

    def pip_check(self) -> Result:
        """Ask pip whether every dependency is there in a version that suits."""
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

        :raises ChildFailedError: it failed and `check` is true.
        """
        return self.start(code, *arguments, env=env).finish(timeout=timeout, check=check)

    def start(self, code: str, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        """Start `code` and return at once."""
        return self._start([str(self.python), "-c", dedent(code), *arguments], env)

    def command(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 120,
    ) -> Result:
        """Run a program of this environment's ``bin``, ``rpc-backends`` say."""
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
        """Run `code` in processes that find rank and rendezvous where torch looks for them.

        :raises ChildFailedError: one of them failed; the text shows them all.
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
    """Build a wheel of the distribution in each folder; return them by the distribution's name.

    They are built by the build backends of the running environment, and nothing is compiled twice.
    """
    build = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps"]
    build += ["--no-build-isolation", "--wheel-dir", str(into)]
    others = [str(folder) for folder in folders if folder not in native.distributions()]
    if others:
        _run([*build, *others])
    for folder in folders:
        if folder in native.distributions():
            with native.prebuilt(folder) as variables:
                _run([*build, str(folder)], env=variables)
    return wheels_in(into)


def build_sdist(folder: Path, into: Path) -> Path:
    """Build an sdist of the distribution in a folder; return it."""
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(into)]
    _run([*build, str(folder)])
    (sdist,) = into.glob("*.tar.gz")
    return sdist


def wheels_in(folder: Path) -> dict[str, Path]:
    """Return the wheels that :func:`build_wheels` has built there."""
    return {
        wheel.name.partition("-")[0].replace("_", "-"): wheel
        for wheel in sorted(folder.glob("*.whl"))
    }


def closure(requirements: Iterable[str]) -> list[str]:
    """Return the distributions that requirements mean here, and all that these depend on, by name."""
    found: dict[str, set[str]] = {}  # with the extras of each that are wanted; "" is none
    waiting = [(text, "") for text in requirements]
    while waiting:
        text, extra = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        wanted = {"", *requirement.extras} - found.setdefault(name, set())
        found[name] |= wanted
        waiting.extend((text, extra) for text in metadata.requires(name) or [] for extra in wanted)
    return [*found]


def link_distribution(distribution: metadata.Distribution, folder: Path) -> None:
    """Link to all that a distribution has in its site-packages, from another folder of that kind."""
    files = distribution.files
    assert files, f"{distribution.name} does not say what it consists of"
    for first in sorted({file.parts[0] for file in files} - {"..", "__pycache__"}):
        link = folder / first
        if not link.is_symlink():  # several may share a folder
            link.symlink_to(Path(str(distribution.locate_file(first))))


def read_project(folder: Path) -> dict[str, Any]:
    """Return the ``project`` table of a folder's pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def distributions(root: Path) -> list[Path]:
    """Return the folders of this repository's distributions, the core's first."""
    return [root, *sorted(path.parent for path in root.glob("p*/*/pyproject.toml"))]


def third_party(folders: Iterable[Path]) -> list[str]:
    """Return what distributions of this repository need of others."""
    needed = [text for folder in folders for text in read_project(folder)["dependencies"]]
    return [text for text in needed if not Requirement(text).name.startswith("rpc-backend")]


def _run(
    command: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Result:
    done = subprocess.run(
        command, cwd=cwd, env=clean_environ(env), capture_output=True, text=True, check=False
    )
    return Result(command, done.returncode, done.stdout, done.stderr).check()
