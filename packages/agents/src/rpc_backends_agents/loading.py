"""Loads the extension ``_C`` that was built for the installed torch.

Each import of the agents runs this, so it does as little as it can: a released torch, and a user who has
compiled nothing, need no other module. Everything else is in :mod:`.torch_builds`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

#: The name of a build's file for this Python.
FILE = f"_C{EXTENSION_SUFFIXES[0]}"
#: The end of the name of a folder for a torch with the old layout of ``std::string``.
OLD_STRINGS = "-old-strings"


def load_usual(name: str) -> bool:
    """Load the package's build for a released torch, if the user has not compiled anything.

    :param name: the name of the module that is being imported, whose place it takes.
    :returns: whether that was possible; if not, :func:`.torch_builds.load` finds another build.
    """
    import torch

    from rpc_backends_agents import __path__ as folders

    cache = user_cache(os.environ)
    if cache is not None and os.access(cache, os.F_OK):  # Path.exists fails in an unreadable folder
        return False
    build = folder_of(torch.__version__, new_strings=torch.compiled_with_cxx11_abi())
    for folder in folders:
        path = Path(folder, "builds", build, FILE)
        if path.exists():
            with suppress(ImportError):  # `torch_builds` tries again, and says what to do
                load_file(name, path)
                return True
    return False


def load_file(name: str, path: Path) -> None:
    """Load an extension as the module of this name.

    :raises ImportError: it lacks a symbol, for example.
    """
    loader = ExtensionFileLoader(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    sys.modules[name] = module = module_from_spec(spec)
    loader.exec_module(module)


def user_cache(environ: Mapping[str, str]) -> Path | None:
    """Return the folder for all that the user has compiled, which need not exist; None without a home."""
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the specification: to be ignored
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "rpc-backends"


def folder_of(version: str, *, new_strings: bool) -> str:
    """Return the folder of a build for a torch: one for all releases of a minor version.

    A nightly torch (2.16.0.dev20261101) or a vendor's (2.9.0a0+nv25.9) is no release.

    :param new_strings: whether ``std::string`` has the layout of C++11.
    """
    numbers = version.partition("+")[0].split(".")
    if numbers[-1].startswith("post"):
        numbers[-1] = numbers[-1].removeprefix("post")
    is_release = len(numbers) > 1 and all(map(str.isdecimal, numbers))
    name = ".".join(numbers[:2]) if is_release else version
    return f"torch-{name}{'' if new_strings else OLD_STRINGS}"
