"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package whose names have their homes in other modules.

    :param homes: for each name ``module``, ``module:name`` where it has another name there, or
        ``module:`` for the module itself; modules of ``rpc_backends_core``.
    """

    def find(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module_name, colon, attribute = home.partition(":")
        module = import_module(f"rpc_backends_core.{module_name}")
        found: object = module if colon and not attribute else getattr(module, attribute or name)
        vars(sys.modules[package])[name] = found
        return found

    return find
