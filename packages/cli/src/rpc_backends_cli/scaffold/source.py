"""Where the installed distributions of this project came from, if they are not from an index."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Origin:
    """What this command was installed from; both are empty if that was an index or a wheel.

    :ivar url: the URL of the repository.
    :ivar clone: the folder with a clone of it. The path means nothing on other machines.
    """

    url: str = ""
    clone: str = ""


def installed_from() -> Origin:
    """Return what this command was installed from. pip records it (PEP 610)."""
    try:
        text = metadata.distribution("rpc-backends-cli").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return Origin()
    return origin_of(text) if text else Origin()


def origin_of(record: str) -> Origin:
    """Return the clone or URL that a file ``direct_url.json`` names."""
    direct_url = json.loads(record)
    url = str(direct_url.get("url", ""))
    if "vcs_info" in direct_url:
        return Origin(url=url)
    if "dir_info" not in direct_url:
        return Origin()  # a wheel
    clone = Path(unquote(urlsplit(url).path)).parents[1]  # it is in packages/cli
    return Origin(clone=str(clone)) if (clone / "packages" / "agents").is_dir() else Origin()
