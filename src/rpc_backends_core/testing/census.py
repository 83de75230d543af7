"""Every requirement of the suite with the version that asked for it first, as published.

The list is a file, so that a change of it shows in a review: a requirement that is added or made
stricter says ``since`` and raises :data:`~.suite.SUITE_VERSION`.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).parent / "chapters" / "requirements.json"


def requirements() -> dict[str, int]:
    """Return the version of the suite that first asked for it, by the id of each requirement."""
    listed: dict[str, int] = json.loads(FILE.read_text())
    return listed
