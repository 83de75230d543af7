"""The builds of the extension ``_C`` that ``rpc-backends build-agents`` keeps in the user's cache.

What is loaded runs with the user's rights, so a file that others could have written is refused.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rpc_backends_agents.installed_torch import Torch
from rpc_backends_agents.loading import FILE, user_cache
from rpc_backends_core.spi import RpcBackendsError

#: The permission bits with which others than the owner may write.
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: The head of a library: where the table of its sections begins, the size of an entry, and how many.
_HEAD = struct.Struct("<40xQ10xHH2x")


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

    :raises MissingBuildError: others than this user and root could have written it, or a part of it is
        missing.
    """
    top = root(environ)
    if top is None or not os.access(top, os.F_OK):  # Path.exists fails in an unreadable folder
        return None
    path = folder(torch, top) / FILE
    if not os.access(path, os.F_OK):
        return None
    if reason := _why_foreign(path, top):
        raise MissingBuildError(
            f"rpc-backends-agents does not load {path}, because {reason}, and that user could have "
            "changed it. Delete it, set XDG_CACHE_HOME to a folder of your own, and compile again: "
            "rpc-backends build-agents"
        )
    if _is_cut_off(path):
        raise MissingBuildError(
            f"rpc-backends-agents does not load {path}, because the end of the file is missing. Compile "
            "it again: rpc-backends build-agents --force"
        )
    return path


def make_folder(torch: Torch, environ: Mapping[str, str] = os.environ) -> Path:
    """Make the folder for a torch's build, which only this user can write to; return it.

    :raises PermissionError: others can write to a folder that is there already.
    :raises OSError: it cannot be made; for example, the user has no home.
    """
    top = root(environ)
    if top is None:
        raise FileNotFoundError("this user has no home folder")
    made = folder(torch, top)
    top.parent.mkdir(parents=True, exist_ok=True)
    for place in (*reversed(made.parents), made):
        if place.is_relative_to(top):
            place.mkdir(mode=0o700, exist_ok=True)
    if reason := _why_foreign(made, top):
        raise PermissionError(reason)
    return made


def remove_empty_folders(torch: Torch, environ: Mapping[str, str] = os.environ) -> None:
    """Remove the folder for a torch's build and those above it in the cache, as far as they are empty."""
    top = root(environ)
    if top is None:
        return
    made = folder(torch, top)
    for place in (made, *made.parents):
        if place.is_relative_to(top):
            with suppress(OSError):  # it is not there, or not empty
                place.rmdir()


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


def _is_cut_off(path: Path) -> bool:
    """Return whether the end of a library is missing, so that loading it could kill the process.

    A file of this kind (ELF, 64 bits) ends with the table of its sections, whose place its head has.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        size = os.fstat(file.fileno()).st_size
    if len(head) < _HEAD.size:
        return True
    table, entry, count = _HEAD.unpack(head)
    return bool(size < table + entry * count)
