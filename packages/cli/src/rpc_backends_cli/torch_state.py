"""Importing torch, and whether the bridge is in it afterwards."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

#: Torch calls the entry points of ``torch.backends`` only where this variable is 1, which is the default.
TORCH_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


@dataclass(frozen=True)
class Bridge:
    """Whether ``torch.distributed.rpc`` has the registry.

    :ivar state: ``in place``; ``off`` (somebody chose so); ``absent`` (this torch has no RPC);
        ``failed``.
    :ivar text: the reason and, where there is one, the remedy.
    """

    state: Literal["in place", "off", "absent", "failed"]
    text: str


def import_torch() -> str | None:
    """Import torch, which registers its own backends and those of other packages.

    :returns: why that cannot be done, None where it can.
    """
    try:
        import torch  # noqa: F401
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None


def bridge() -> Bridge:
    """Return whether the bridge is in place, and why not; torch must have been imported."""
    import torch.distributed

    from rpc_backends_core.spi import inspection

    if inspection.is_installed():
        return _installed()
    if not torch.distributed.is_available() or not torch.distributed.rpc.is_available():
        return Bridge("absent", "this torch is built without RPC; install one that has it")
    off = _switched_off()
    if off is not None:
        return Bridge(
            "off",
            f"switched off by {off}; unset it, or let the program call rpc_backends_core.install()",
        )
    return Bridge("failed", _why_not())


def _installed() -> Bridge:
    from torch.distributed import rpc

    from rpc_backends_core import BackendType

    for place in (rpc, rpc.backend_registry):
        if place.__dict__.get("BackendType") is not BackendType:
            return Bridge(
                "failed",
                f"{place.__name__}.BackendType has been replaced by {place.BackendType!r} since: a "
                "package that is imported with torch does this",
            )
    return Bridge("in place", "torch.distributed.rpc has the registry")


def _switched_off() -> str | None:
    """Return the variable that somebody has switched it off with."""
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
            "the entry point in the group torch.backends is not installed, so `import torch` does not "
            "know of this package; install it with pip install rpc-backends-core"
        )
    return "somebody has taken it out: rpc_backends_core.install() puts it back"


def _has_entry_point() -> bool:
    import importlib_metadata

    found = importlib_metadata.entry_points(group="torch.backends")
    return any(entry_point.value.startswith("rpc_backends_core.") for entry_point in found)
