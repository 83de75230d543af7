"""Package attributes that are imported on first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's ``__getattr__``, which imports names from other modules.

    :param homes: the source of each name in ``rpc_backends_core``: ``module``, ``module:name`` if the
        name differs there, or ``module:`` for the module itself.
    """

    def find(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module_name, colon, attribute = home.partition(":")
        module = import_module(f"rpc_backends_core.{module_name}")
        value: object = module if colon and not attribute else getattr(module, attribute or name)
        vars(sys.modules[package])[name] = value
        return value

    return find
