"""The child that looks at what an installed package has doctor look at."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rpc_backends_cli import child, installed
from rpc_backends_core.spi import inspection as discovery


def main(spec: dict[str, Any], say: child.Say) -> None:
    """Run the check that is ``spec["number"]`` among those of all packages."""
    found = discovery.declared(discovery.CHECKS_GROUP)[spec["number"]]
    try:
        section = installed.run_check(found)
    except installed.UnusableError as error:
        say(unusable=str(error))
    else:
        # What is not JSON by itself travels as text, which is how it is printed.
        say(section=json.loads(json.dumps(asdict(section), default=str)))
