"""Creating the package of a new backend: its names and its files."""

from __future__ import annotations

from rpc_backends_cli.scaffold.names import BadNameError, Names, member_name
from rpc_backends_cli.scaffold.writing import files, write

__all__ = ["BadNameError", "Names", "files", "member_name", "write"]
