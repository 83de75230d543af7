"""The C++ sources of the extension ``_C``, which the package has so that users can compile it."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).parent


def folder() -> Path:
    """Return the folder with ``CMakeLists.txt`` and ``csrc``: of the wheel, or of a clone."""
    carried = _PACKAGE / "cpp"
    return carried if carried.is_dir() else _PACKAGE.parents[1]


def fingerprint() -> str:
    """Return a hash of all that a compilation reads of this package, as 16 hexadecimal digits.

    A wheel has it in a file, because an import needs it if the user has compiled something.
    """
    stored = _PACKAGE / "cpp/fingerprint.txt"
    return stored.read_text() if stored.exists() else compute_fingerprint()


def compute_fingerprint() -> str:
    """Return the same from the sources."""
    top = folder()
    files = [top / "CMakeLists.txt", *top.glob("*.cmake")]
    for place in (top / "csrc", _PACKAGE / "include", _PACKAGE / "cmake"):
        files += place.rglob("*.*")
    digest = hashlib.sha256()
    for file in sorted(file for file in files if file.is_file()):
        digest.update(f"\n{file.name}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
