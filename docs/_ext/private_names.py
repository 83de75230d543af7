"""Writes the table of torch's private names on the page "If torch's RPC changes".

Run it after a change of the list: ``python docs/_ext/private_names.py``.
"""

from __future__ import annotations

from pathlib import Path

from rpc_backends_core.spi import torch_internals

PAGE = Path(__file__).parents[1] / "explanation/if-torch-changes.md"
_BEGIN, _END = "<!-- private names: generated -->", "<!-- end of private names -->"


def page() -> str:
    """Return the page, with the table that it should have."""
    text = PAGE.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise SystemExit(f"error: {PAGE} lacks the markers {_BEGIN!r} and {_END!r}.")
    return f"{before}{_BEGIN}\n\n{_table()}\n\n{_END}{after}"


def _table() -> str:
    lines = ["| name | what it is for | without it | seen in torch |", "|---|---|---|---|"]
    for name in torch_internals.NAMES:
        path = name.path.removeprefix("torch.").removeprefix("distributed.")
        lines.append(f"| `{path}` | {name.use} | {name.without} | {name.seen} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
