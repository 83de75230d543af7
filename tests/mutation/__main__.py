"""Counts what share of the mutants of a sound transport the tests of ``TransportContract`` kill.

::

    PYTHONPATH=tests .venv/bin/python -m mutation               # all: some minutes on two cores
    PYTHONPATH=tests .venv/bin/python -m mutation --every 15    # a sample
    PYTHONPATH=tests .venv/bin/python -m mutation --line 88     # those of one line
"""

from __future__ import annotations

import argparse
import time

from mutation.mutants import mutants
from mutation.running import run, sound
from mutation.survivors import SOUND, is_equivalent, listed, share


def main() -> int:
    """Test the mutants, print each result, and return 1 if a mutant survives that is not listed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each N-th mutant")
    parser.add_argument("--line", type=int, help="only mutants of this line")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    given = parser.parse_args()
    chosen = list(mutants(SOUND.read_text()))[:: given.every]
    if given.line is not None:
        chosen = [mutant for mutant in chosen if mutant.line == given.line]
    (fate,) = run([sound(SOUND.read_text())])
    if fate.killed_by:
        print(f"without a fault, {fate.killed_by} fails: {fate.got}")
        return 1
    reasons, started, survivors, fates = listed(), time.monotonic(), [], []
    for number, fate in enumerate(run(chosen, given.jobs), 1):
        words = (
            f"killed by {fate.killed_by}: {fate.got}" if fate.killed_by else f"SURVIVES {fate.got}"
        )
        print(f"{number}/{len(chosen)} {fate.seconds:5.1f} s  {fate.mutant}  {words}", flush=True)
        fates.append(fate)
        if not fate.killed_by:
            survivors.append(fate.mutant)
    killed, equivalent = len(chosen) - len(survivors), sum(map(is_equivalent, survivors))
    print(
        f"{killed} of {len(chosen)} mutants killed in {time.monotonic() - started:.0f} s: "
        f"{killed / max(len(chosen), 1):.1%} of all; {share(fates):.1%} without the {equivalent} "
        "survivors that are equivalent"
    )
    unknown = [
        survivor for survivor in survivors if (survivor.fault, survivor.before) not in reasons
    ]
    for survivor in survivors:
        print(
            f"survives: {survivor}: {reasons.get((survivor.fault, survivor.before), 'NOT LISTED')}"
        )
    return 1 if unknown else 0


if __name__ == "__main__":
    raise SystemExit(main())
