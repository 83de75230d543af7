"""The builds of the extension ``_C`` that ``rpc-backends build-agents`` keeps in the user's cache.

What is loaded runs with the user's rights, so a file that others could have written is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from rpc_backends_agents.installed_torch import Torch
from rpc_backends_agents.loading import FILE, user_cache
from rpc_backends_core.spi import RpcBackendsError

#: The permission bits with which others than the owner may write.
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class MissingBuildError(RpcBackendsError, ImportError):
    """No build may be used with the installed torch; the text says what to do."""


def root(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder for all builds, which need not exist; None if the user has no home."""
    path = user_cache(environ)
    return None if path is None else Path(os.path.realpath(path))


def folder(torch: Torch, top: Path) -> Path:
    """Return the folder for a torch's build: by the agents' version and sources, and by the torch.

    :param top: what :func:`root` returns.
    """
    from rpc_backends_agents import __version__, sources

    names = ["torch", torch.version, torch.commit[:10], "" if torch.new_strings else "old-strings"]
    name = "-".join(filter(None, names))
    return top / "agents" / f"{__version__}-{sources.fingerprint()}" / name


def find(torch: Torch, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the build for this torch and Python; None if there is none.

    :raises MissingBuildError: others than this user and root could have written it.
    """
    top = root(environ)
    if top is None or not top.exists():
        return None
    path = folder(torch, top) / FILE
    if not path.exists():
        return None
    if reason := _why_foreign(path, top):
        raise MissingBuildError(
            f"rpc-backends-agents does not load {path}, because {reason}, and that user could have "
            "changed it. Delete it, set XDG_CACHE_HOME to a folder of your own, and compile again: "
            "rpc-backends build-agents"
        )
    return path


def make_folder(torch: Torch, environ: Mapping[str, str] = os.environ) -> Path:
    """Make the folder for a torch's build, which only this user can write to; return it.

    :raises PermissionError: others can write to a folder that is there already.
    :raises OSError: it cannot be made; for example, the user has no home.
    """
    top = root(environ)
    if top is None:
        raise FileNotFoundError("this user has no home folder. Set XDG_CACHE_HOME to a folder")
    made = folder(torch, top)
    top.parent.mkdir(parents=True, exist_ok=True)
    for place in (*reversed(made.parents), made):
        if place.is_relative_to(top):
            place.mkdir(mode=0o700, exist_ok=True)
    if reason := _why_foreign(made, top):
        raise PermissionError(f"{reason}. Set XDG_CACHE_HOME to a folder of your own")
    return made


def _why_foreign(path: Path, top: Path) -> str | None:
    """Return why others could have written a file below `top`; None if they could not."""
    for place in (path, *path.parents):
        status = place.lstat()
        if place.is_relative_to(top):
            if status.st_uid not in (os.geteuid(), 0):
                return f"another user (id {status.st_uid}) owns {place}"
            if status.st_mode & _OTHERS_WRITE:
                return f"other users can write to {place}"
        elif status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            return f"every user can write to {place}"
    return None
