"""A program for tests of the search: twelve updates of `server`, without torch, so it takes 0.1 s.

It leaves the event log that a worker with faults leaves, and knows one kind of fault, `duplicate`.
"""

import json
import os
import sys
import time
import tomllib
from pathlib import Path


def duplicates(number):
    """Return the faults of the update with this number."""
    rules = tomllib.loads(Path(os.environ["RPC_BACKENDS_FAULTS"]).read_text()).get("rule", [])
    return [
        {"what": "duplicate", "rule": f"duplicate-{position}"}
        for position, rule in enumerate(rules, 1)
        if rule["what"] == "duplicate" and rule.get("after", 0) == number
    ]


def main():
    """Send all updates, and print those that were applied."""
    if os.environ.get("RPC_BACKENDS_OVERRIDE") == "NOSUCH":
        sys.exit("there is no backend NOSUCH")
    logs = Path(os.environ["RPC_BACKENDS_FAULTS_LOG"])
    logs.mkdir(exist_ok=True)
    common = {"to": "server", "type": "PYTHON_CALL", "function": "__main__.update", "bytes": 9}
    with (logs / "trainer.jsonl").open("w") as log:
        start = {"event": "start", "worker": "trainer", "seed": 0, "rules": [], "pid": os.getpid()}
        log.write(json.dumps({"t": time.time(), **start}) + "\n")
        for number in range(12):
            faults = duplicates(number)
            request = {"event": "request", "id": number, "digest": "a", "nth": 1, "faults": faults}
            log.write(json.dumps({"t": time.time(), **common, **request}) + "\n")
            for _ in range(1 + len(faults)):
                print("applied", number, flush=True)


if __name__ == "__main__":
    main()
