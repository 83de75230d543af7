"""The builds of the extension ``_C``: which there are, and which one fits the installed torch.

A wheel has builds for many versions of torch, each in a folder such as ``builds/torch-2.13``.
``rpc-backends build-agents`` compiles one for any other torch, and keeps it in the user's cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rpc_backends_agents import build_cache
from rpc_backends_agents.build_cache import MissingBuildError
from rpc_backends_agents.installed_torch import Torch, minor_of
from rpc_backends_agents.loading import FILE, OLD_STRINGS, load_file
from rpc_backends_core.spi import SettingError, parse_boolean

#: A yes lets a torch that there is no build for use the nearest one.
VARIABLE = "RPC_BACKENDS_AGENTS_ANY_TORCH"
#: What compiles a build for the installed torch.
COMMAND = "rpc-backends build-agents"
_OLDEST_MINOR = (2, 6)


class Build(NamedTuple):
    """A compiled ``_C``.

    :ivar path: its file.
    :ivar torch: the version of torch that it was compiled for: ``2.13``, if that is a release.
    :ivar new_strings: the layout of ``std::string`` that it was compiled with.
    :ivar origin: ``package``, or ``cache`` for the user's.
    """

    path: Path
    torch: str
    new_strings: bool
    origin: str

    @classmethod
    def of_package(cls, path: Path) -> Build:
        """Return a build of the package, described by the name of its folder."""
        name = path.parent.name
        version = name.removeprefix("torch-").removesuffix(OLD_STRINGS)
        return cls(path, version, not name.endswith(OLD_STRINGS), "package")

    @property
    def minor(self) -> tuple[int, int]:
        """The minor version of torch, for example ``(2, 13)``."""
        return minor_of(self.torch)

    def data(self) -> dict[str, object]:
        """Return the same for JSON."""
        return {
            "path": str(self.path),
            "torch": self.torch,
            "old_strings": not self.new_strings,
            "origin": self.origin,
        }

    def __str__(self) -> str:
        """Return for example ``2.6 (old std::string)``."""
        return f"{self.torch}{'' if self.new_strings else ' (old std::string)'}"


def load(name: str) -> None:
    """Put the build for the installed torch in the place of the module that is being imported.

    :param name: the module's name.
    :raises MissingBuildError: there is no build for this torch, it may not be used, or it cannot be
        loaded; the message says what to do.
    """
    torch = Torch.installed()
    load_build(name, choose(torch), torch)


def load_build(name: str, build: Build, torch: Torch) -> None:
    """Load a build as the module of this name.

    :raises MissingBuildError: it does not fit the installed torch; the message says what to do.
    """
    try:
        load_file(name, build.path)
    except ImportError as error:
        raise MissingBuildError(
            f"rpc-backends-agents cannot load its build for torch {build} with {torch}: {error}. "
            f"Compile one for this torch, which needs a C++ compiler: {_command(torch)}",
            name=name,
            path=str(build.path),
        ) from error


def choose(torch: Torch, environ: Mapping[str, str] = os.environ) -> Build:
    """Return the build to use with a torch.

    :raises MissingBuildError: there is none, or it may not be used; the message says what to do.
    """
    build = fitting(torch, environ)
    if build is not None:
        return build
    builds = [build for build in packaged() if build.new_strings == torch.new_strings]
    if torch.minor >= _OLDEST_MINOR and builds and _takes_any_torch(environ):
        same_minor = [build for build in builds if build.minor == torch.minor]
        return (same_minor or builds)[-1]
    raise MissingBuildError(_no_build(torch))


def fitting(torch: Torch, environ: Mapping[str, str] = os.environ) -> Build | None:
    """Return the build for a torch, from the user's cache or the package; None if there is none.

    :raises MissingBuildError: others could have written the user's build, or a part of it is missing.
    """
    path = build_cache.find(torch, environ)
    if path is not None:
        return Build(path, torch.version, torch.new_strings, "cache")
    for place in _places():
        path = place / torch.folder / FILE
        if path.exists():
            return Build.of_package(path)
    return None


def packaged() -> list[Build]:
    """Return the builds of the installed package for this Python, by version of torch."""
    builds = [Build.of_package(path) for place in _places() for path in place.glob(f"*/{FILE}")]
    return sorted(builds, key=lambda build: (build.minor, build.new_strings))


def _command(torch: Torch) -> str:
    """Return what compiles a build although that for a torch cannot be loaded, if there is one."""
    try:
        has_one = fitting(torch) is not None
    except MissingBuildError:
        has_one = True
    return f"{COMMAND} --force" if has_one else COMMAND


def _no_build(torch: Torch) -> str:
    known = ", ".join(map(str, packaged())) or "none"
    head = f"rpc-backends-agents has no build for {torch}. It has builds for torch: {known}."
    if torch.minor < _OLDEST_MINOR:
        return (
            f"{head} It is too old to compile one for it. Install one of these versions of torch."
        )
    return (
        f"{head} Compile one for this torch, which needs a C++ compiler: {COMMAND}. Or set {VARIABLE}=1 "
        "to try the nearest one, which is safe only if torch's C++ interface has not changed since."
    )


def _takes_any_torch(environ: Mapping[str, str]) -> bool:
    text = environ.get(VARIABLE, "").strip()
    try:
        return text != "" and parse_boolean(VARIABLE, text)
    except SettingError as error:
        raise MissingBuildError(str(error)) from error


def _places() -> Iterator[Path]:
    """Yield the folders that may have builds: an editable install has two."""
    import rpc_backends_agents

    for folder in rpc_backends_agents.__path__:
        yield Path(folder, "builds")
