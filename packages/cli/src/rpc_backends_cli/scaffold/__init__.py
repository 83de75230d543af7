"""Creating the package of a new backend: its names and its files."""

from __future__ import annotations

from rpc_backends_cli.scaffold.names import BadNameError, Names, member_name
from rpc_backends_cli.scaffold.source import Origin, installed_from
from rpc_backends_cli.scaffold.variants import Kind, Variant
from rpc_backends_cli.scaffold.writing import Facts, files, write

__all__ = [
    "BadNameError",
    "Facts",
    "Kind",
    "Names",
    "Origin",
    "Variant",
    "files",
    "installed_from",
    "member_name",
    "write",
]
