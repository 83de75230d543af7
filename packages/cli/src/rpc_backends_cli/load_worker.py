"""The child that loads plugins and hook packages one after the other, and says how each went."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rpc_backends_cli import child

if TYPE_CHECKING:
    from rpc_backends_core.spi import Record


def hook_id(found: Record) -> str:
    """Return what tells a hook package from others: several may choose one name."""
    return f"{found.name} of {found.origin}"


def main(spec: dict[str, Any], say: child.Say) -> None:
    """Load ``spec["items"]``, pairs of kind (``backend``, ``hook``) and name.

    :param spec: ``limit`` has the seconds for each.
    """
    import torch  # noqa: F401  # as in every program, and not to be counted as the first plugin's time

    from rpc_backends_core.spi.inspection import default_registry

    registry = default_registry()
    registry.on_loaded = None  # hook packages are tried on their own
    for kind, name in spec["items"]:
        say(trying=[kind, name])
        child.end_in(spec["limit"])
        started = time.perf_counter()
        error = _load_backend(name) if kind == "backend" else _load_hooks(name)
        say(done=[kind, name], seconds=time.perf_counter() - started, failure=error)


def _load_backend(name: str) -> str | None:
    from rpc_backends_core.spi import RpcBackendsError
    from rpc_backends_core.spi.inspection import default_registry

    try:
        default_registry().backend(name)
    except RpcBackendsError as error:
        return str(error)
    return None


def _load_hooks(name: str) -> str | None:
    """Load the hook package that :func:`hook_id` calls ``name``."""
    import warnings

    from rpc_backends_core.spi.inspection import Hooks, default_registry

    found = [one for one in default_registry().hook_packages() if hook_id(one) == name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same is in the record
        errors = [record.error for record in Hooks(found).records if record.error is not None]
    return f"{type(errors[0]).__name__}: {errors[0]}" if errors else None
