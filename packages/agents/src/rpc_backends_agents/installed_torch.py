"""What the installed torch says of itself, by which a build of the extension ``_C`` is chosen."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: A release in any build (2.13.0+cpu), but no nightly (2.16.0.dev20261101) or vendor's (2.9.0a0+nv25.9).
_RELEASE = re.compile(r"(\d+\.\d+)(?:\.\d+)*(?:\.post\d+)?(?:\+.*)?")
_NUMBERS = re.compile(r"(\d+)\.(\d+)")
#: The end of the name of a folder for a torch with the old layout of ``std::string``.
OLD_STRINGS = "-old-strings"


@dataclass(frozen=True)
class Torch:
    """What the installed torch says of itself.

    :ivar version: for example ``2.13.0+cpu``.
    :ivar commit: the commit of torch that it was built from; empty if unknown.
    :ivar new_strings: whether ``std::string`` has the layout of C++11.
    """

    version: str
    commit: str
    new_strings: bool

    @classmethod
    def installed(cls) -> Torch:
        """Return what the installed torch says; imports torch."""
        import torch

        commit = getattr(torch.version, "git_version", None) or ""
        return cls(str(torch.__version__), commit, torch.compiled_with_cxx11_abi())

    @property
    def minor(self) -> tuple[int, int]:
        """The minor version, for example ``(2, 13)``."""
        return minor_of(self.version)

    @property
    def folder(self) -> str:
        """The folder of a build for this torch: one for all releases of a minor version."""
        release = _RELEASE.fullmatch(self.version)
        name = release[1] if release else self.version
        return f"torch-{name}{'' if self.new_strings else OLD_STRINGS}"

    def __str__(self) -> str:
        """Return for example ``torch 2.6.0+cu124 (old std::string)``."""
        return f"torch {self.version}{'' if self.new_strings else ' (old std::string)'}"


def minor_of(version: str) -> tuple[int, int]:
    """Return the minor version, for example ``(2, 13)``; zeros if there is none."""
    match = _NUMBERS.match(version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
