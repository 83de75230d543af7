"""The published list of requirements, each with the first version of the suite that has it.

The list is a file, so that a review shows its changes. A requirement that is added or made stricter has
``since`` and increases :data:`~.suite.SUITE_VERSION`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FILE = Path(__file__).parent / "chapters" / "requirements.json"


def requirements() -> dict[str, int]:
    """Return the first version of the suite with each requirement, by id."""
    listed: dict[str, int] = json.loads(FILE.read_text())
    return listed


def main(arguments: list[str]) -> int:
    """Add the requirements of a complete run to the list.

    For maintainers of the suite: run it with ``--rpc-report REPORT``, and then
    ``python -m rpc_backends_testing.manifest REPORT``.
    """
    report = json.loads(Path(arguments[0]).read_text())
    in_report = {
        result["id"]: result["since"]
        for result in report["results"]
        if result["chapter"] != "torch"
    }
    listed = requirements()
    gone = sorted(listed.keys() - in_report.keys())
    if gone:
        print(f"listed, but not in the report: {', '.join(gone)}", file=sys.stderr)
    FILE.write_text(json.dumps({**in_report, **listed}, indent=1, sort_keys=True) + "\n")
    print(f"{len(in_report.keys() - listed.keys())} added, {len(listed)} were there")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
