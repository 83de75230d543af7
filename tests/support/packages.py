"""Small packages for tests to install, as wheels that take a millisecond to write.

The files follow the wheel format
(https://packaging.python.org/specifications/binary-distribution-format/), so pip installs them like any
other wheel.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

EntryPoints = Mapping[str, Mapping[str, str]]


def write_package(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    modules: Mapping[str, str],
    entry_points: EntryPoints | None = None,
    requires: Sequence[str] = (),
) -> Path:
    """Write the wheel of a distribution and return its path.

    :param name: the distribution's name; dashes are allowed.
    :param modules: source by path, ``{"my_backend/__init__.py": "..."}``; it is dedented.
    :param entry_points: for each group, values by entry-point name.
    :param requires: ``Requires-Dist`` entries.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {path: dedent(source) for path, source in modules.items()}
    files[f"{info}/METADATA"] = _metadata(name, version, requires)
    files[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    if entry_points:
        files[f"{info}/entry_points.txt"] = _entry_points(entry_points)
    record = "".join(
        f"{path},{_digest(text)},{len(text.encode())}\n" for path, text in files.items()
    )
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"

    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def _metadata(name: str, version: str, requires: Sequence[str]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires), ""])


def _entry_points(entry_points: EntryPoints) -> str:
    sections = []
    for group, entries in entry_points.items():
        sections.append(f"[{group}]")
        sections.extend(f"{name} = {value}" for name, value in entries.items())
        sections.append("")
    return "\n".join(sections)


def _digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
