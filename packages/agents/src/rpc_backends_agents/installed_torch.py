"""What the installed torch says of itself, by which a build of the extension ``_C`` is chosen."""

from __future__ import annotations

from typing import NamedTuple

from rpc_backends_agents.loading import folder_of


class Torch(NamedTuple):
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
        return folder_of(self.version, new_strings=self.new_strings)

    def __str__(self) -> str:
        """Return for example ``torch 2.6.0+cu124 (old std::string)``."""
        return f"torch {self.version}{'' if self.new_strings else ' (old std::string)'}"


def minor_of(version: str) -> tuple[int, int]:
    """Return the minor version, for example ``(2, 13)``; zeros if there is none."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0].partition("+")[0]
    return (int(major), int(minor)) if (major + minor).isdecimal() and major and minor else (0, 0)
