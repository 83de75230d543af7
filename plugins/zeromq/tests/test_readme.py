"""The README lists every option and every environment variable."""

from __future__ import annotations

import inspect
from pathlib import Path

from rpc_backend_zeromq import ZeroMQRpcBackendOptions

TEXT = (Path(__file__).parents[1] / "README.md").read_text()
ROWS = [line.split("|")[1:] for line in TEXT.splitlines() if line.startswith("| `")]


def test_every_option_has_a_row_with_its_variable() -> None:
    rows = {row[0].strip("` "): row[1].strip("` ") for row in ROWS}

    assert set(rows) == set(inspect.signature(ZeroMQRpcBackendOptions).parameters)
    assert {f"RPC_BACKENDS_ZEROMQ_{name}" for name in rows.values() if name} == set(
        ZeroMQRpcBackendOptions.variables()
    )
    for option, variable in rows.items():
        assert variable in ("", option.upper())
