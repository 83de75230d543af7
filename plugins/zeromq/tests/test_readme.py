"""The README lists every option and every environment variable."""

from __future__ import annotations

import inspect
from pathlib import Path

from rpc_backend_zeromq import ZeroMQRpcBackendOptions, options
from rpc_backend_zeromq.environment import PREFIX, VARIABLES

TEXT = (Path(__file__).parents[1] / "README.md").read_text()
ROWS = [line.split("|")[1:] for line in TEXT.splitlines() if line.startswith("| `")]


def test_every_option_has_a_row_with_its_variable() -> None:
    rows = {row[0].strip("` "): row[1].strip("` ") for row in ROWS}

    assert set(rows) == set(inspect.signature(ZeroMQRpcBackendOptions).parameters)
    assert {f"{PREFIX}{name}" for name in rows.values() if name} == set(VARIABLES)
    for option, variable in rows.items():
        assert variable in ("", option.upper())


def test_the_table_shows_the_actual_defaults() -> None:
    shown = {row[0].strip("` "): row[2].strip("` ") for row in ROWS}

    assert shown["max_message_bytes"] == f"{options.MAX_MESSAGE_BYTES >> 30} GiB"
    assert shown["max_unanswered_bytes"] == f"{options.MAX_UNANSWERED_BYTES >> 30} GiB"
    assert shown["heartbeat_timeout"] == f"{options.HEARTBEAT_TIMEOUT:g}"
    assert (shown["num_worker_threads"], shown["heartbeat"]) == ("16", "a sixth of the timeout")
    assert options.HEARTBEATS == 6
