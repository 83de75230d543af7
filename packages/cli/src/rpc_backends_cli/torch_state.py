"""Importing torch and checking whether the bridge is installed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

#: Torch runs the entry points of ``torch.backends`` only if this variable is 1 (the default).
TORCH_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


@dataclass(frozen=True)
class Bridge:
    """Whether the registry is installed in ``torch.distributed.rpc``.

    :ivar state: ``in place``; ``off`` (disabled by a setting); ``absent`` (this torch has no RPC);
        ``failed``.
    :ivar text: the reason and, if there is one, the remedy.
    """

    state: Literal["in place", "off", "absent", "failed"]
    text: str


def import_torch() -> str | None:
    """Import torch, which registers its own backends and those of other packages.

    :returns: why the import failed; None if it succeeded.
    """
    try:
        import torch  # noqa: F401
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None


def bridge() -> Bridge:
    """Return whether the bridge is installed, and why not; torch must be imported already."""
    import torch.distributed

    from rpc_backends_core.spi import inspection

    if inspection.is_installed():
        return _installed()
    if not torch.distributed.is_available() or not torch.distributed.rpc.is_available():
        return Bridge("absent", "this torch is built without RPC; install a build that includes it")
    off = _switched_off()
    if off is not None:
        return Bridge(
            "off",
            f"disabled by {off}; unset it, or call rpc_backends_core.install() in the program",
        )
    return Bridge("failed", _why_not())


def _installed() -> Bridge:
    from torch.distributed import rpc

    from rpc_backends_core import BackendType

    for place in (rpc, rpc.backend_registry):
        if place.__dict__.get("BackendType") is not BackendType:
            return Bridge(
                "failed",
                f"{place.__name__}.BackendType was later replaced by {place.BackendType!r}, by a "
                "package that is imported with torch",
            )
    return Bridge("in place", "torch.distributed.rpc uses the registry")


def _switched_off() -> str | None:
    """Return the setting that disables the bridge, or None."""
    from rpc_backends_core.spi.inspection import settings

    if os.environ.get(TORCH_AUTOLOAD, "1") != "1":
        return f"{TORCH_AUTOLOAD}={os.environ[TORCH_AUTOLOAD]}"
    if not settings.autoload_enabled():
        return f"{settings.AUTOLOAD}={os.environ[settings.AUTOLOAD]}"
    return None


def _why_not() -> str:
    from rpc_backends_core.spi.inspection import autoload_failure

    failure = autoload_failure()
    if failure is not None:
        return f"installing it failed with {type(failure).__name__}: {failure}"
    if not _has_entry_point():
        return (
            "the entry point in the group torch.backends is not installed, so `import torch` does "
            "not load this package; install it with: pip install rpc-backends-core"
        )
    return "the program removed it; rpc_backends_core.install() installs it again"


def _has_entry_point() -> bool:
    import importlib_metadata

    entry_points = importlib_metadata.entry_points(group="torch.backends")
    return any(entry_point.value.startswith("rpc_backends_core.") for entry_point in entry_points)
