"""Where the installed distributions of this project came from, if they are not from an index."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit


def installed_from() -> str:
    """Return the clone or the URL of the repository that this command was installed from, or "".

    pip records it (PEP 610) unless the command came from an index.
    """
    try:
        text = metadata.distribution("rpc-backends").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    return source_of(text) if text else ""


def source_of(record: str) -> str:
    """Return the clone or URL that a file ``direct_url.json`` names, or "" if it names neither."""
    found = json.loads(record)
    url = str(found.get("url", ""))
    if "vcs_info" in found:
        return url
    if "dir_info" not in found:
        return ""  # a wheel
    clone = Path(unquote(urlsplit(url).path)).parents[1]  # it is in packages/cli
    return str(clone) if (clone / "packages" / "agents").is_dir() else ""
