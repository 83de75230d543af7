"""Try a program under the policy that the guard learns from it, and with one entry taken out at a time.

    python try_program.py --out FOLDER [--entries N] -- COMMAND...

Prints how many entries the policy has, and how the program ends when the policy is enforced. Then, for
each entry: whether the audit log and the program's output name it when the policy lacks it. Exits with
status 1 if the program ends in another way under the policy, or an entry is not named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

#: Seconds after which a run is ended.
_LIMIT = 300.0


def run(command: list[str], log: Path, policy: Path | None = None) -> int:
    """Run a command, and return its exit status; 124 if it was ended."""
    env = dict(os.environ)
    if policy is not None:
        env["RPC_BACKENDS_GUARD"] = str(policy)
    with log.open("w") as out:
        try:
            return subprocess.run(
                command, env=env, stdout=out, stderr=out, timeout=_LIMIT, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return 124


def refused(policy: Path) -> list[str]:
    """Return the entries that a run has lacked."""
    log = policy.with_suffix(".audit.jsonl")
    lines = log.read_text().splitlines() if log.exists() else []
    return [record["name"] for record in map(json.loads, lines) if record["event"] == "refused"]


def entry_lines(policy: str) -> list[int]:
    """Return the lines of a learned policy that have an entry, but for the names of peers."""
    numbers, is_peers = [], False
    for number, line in enumerate(policy.splitlines()):
        if line.endswith("= ["):
            is_peers = line.startswith("peers")
        elif line.startswith('    "') and not is_peers:
            numbers.append(number)
    return numbers


def main() -> int:
    """Run all, and print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--entries", type=int, default=1000, help="the most entries to take out")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    learned = out / "policy.toml"
    begin = time.monotonic()
    learn = ["rpc-backends", "guard", "learn", "--out", str(learned), "--", *options.command]
    status = run(learn, out / "learn.log")
    text = learned.read_text()
    lines = entry_lines(text)
    enforced = run(options.command, out / "enforce.log", learned)
    is_same = enforced == status and not refused(learned)
    print(
        f"learned {len(lines)} entries, status {status}; enforced: status {enforced}, "
        f"{len(refused(learned))} refusals; {time.monotonic() - begin:.0f} s",
        flush=True,
    )
    named = 0
    tried = lines[: options.entries]
    for number in tried:
        entry = text.splitlines()[number].strip(' ",')
        less = out / f"without-{number}.toml"
        less.write_text(
            "".join(line for n, line in enumerate(text.splitlines(True)) if n != number)
        )
        log = less.with_suffix(".log")
        ended = run(options.command, log, less)
        is_named = entry in refused(less) and f"{entry!r}" in log.read_text()
        named += is_named
        print(f"{'named' if is_named else 'NOT NAMED'}: {entry}, status {ended}", flush=True)
    print(f"{named} of {len(tried)} are named", flush=True)
    return 0 if is_same and named == len(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
