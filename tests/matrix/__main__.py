"""Runs the tests with each supported pair of torch and Python, and writes docs/compatibility.md.

::

    make matrix                            # all pairs: about 15 minutes each on two cores
    make matrix ONLY="2.9 2.15 py3.12"     # torch 2.9 and 2.15, with Python 3.12
    make test-wheels                       # only the first stage: the wheels, without a compiler
    make matrix AGAIN=1                    # also what has passed, and has not changed since

Without ``AGAIN``, a stage that has passed is run again only if a file has changed that it depends on.
An environment needs up to 6 GB and is deleted after its run. If ``uv`` is on the PATH, it installs torch:
in seconds, where pip needs minutes.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from matrix import pairs, results
from matrix.stages import STAGES, WHEELS, PreparationError, Trial
from support.environments import extract_commit
from wheelhouse.__main__ import build
from wheelhouse.files import built_already


def main() -> int:
    """Run the chosen pairs; return 1 if a stage of one fails, and 2 if a pair cannot be tried."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--only", default="", help="versions, such as '2.9 2.15 py3.12' (default: all)"
    )
    parser.add_argument(
        "--stages",
        default="",
        help=f"some of: {' '.join(stage.name for stage in STAGES)}; writes only the table of {WHEELS}",
    )
    parser.add_argument(
        "--dist", type=built_already, help="wheels of the last commit that are built already"
    )
    parser.add_argument(
        "--folder", type=Path, default=pairs.ROOT / "build/matrix", help="for environments and logs"
    )
    parser.add_argument("--again", action="store_true", help="run stages that have passed, too")
    parser.add_argument("--keep", action="store_true", help="do not delete the environments")
    given = parser.parse_args()
    stages = [stage for stage in STAGES if not given.stages or stage.name in given.stages.split()]
    try:
        torches = {python: pairs.torches_for(python) for python in pairs.supported_pythons()}
        chosen = pairs.choose(torches, given.only)
    except ValueError as error:
        parser.error(str(error))
    status = 0
    wheels = given.dist or _build_wheels(chosen, given.folder)
    for number, pair in enumerate(chosen, 1):
        print(f"==> {number}/{len(chosen)}: {pair}", flush=True)
        commit = _commit()  # there may be a later one when the run ends
        before = results.of(str(pair.torch), str(pair.python))
        outcomes = dict(still_valid(before, commit)) if before and not given.again else {}
        python = pairs.interpreter(pair.python)
        if python is None:
            print(f"    not tried: no Python {pair.python} on this machine", flush=True)
            status = 2
            continue
        folder = given.folder / f"{pair.torch}-py{pair.python}"
        shutil.rmtree(folder, ignore_errors=True)
        trial = Trial(pair, python, folder, wheels)
        try:
            trial.prepare()
            torch = trial.torch_build()  # a stage may replace it, which is a failure of this pair
            for stage in stages:
                if stage.name in outcomes:
                    print(f"    {stage.name}: passed, and nothing has changed since", flush=True)
                    continue
                outcome = outcomes[stage.name] = replace(trial.run(stage), commit=commit)
                print(
                    f"    {stage.name}: {outcome.status}, {outcome.cell()} ({outcome.seconds} s)",
                    flush=True,
                )
        except PreparationError as error:
            print(f"    not tried: {error}", flush=True)
            status = 2
            continue
        result = (torch, str(pair.python), commit, f"{datetime.date.today()}")
        if outcome := outcomes.pop(WHEELS, None):
            results.write_installation(results.Installation(*result, outcome))
        if not given.stages:
            results.write(results.Row(*result, outcomes, trial.missing_names()))
        if any(each.status != "passed" for each in (outcome, *outcomes.values()) if each):
            print(f"    the logs are in {folder / 'logs'}", flush=True)
            status = max(status, 1)
        if not given.keep:
            shutil.rmtree(folder / "venv")
            shutil.rmtree(folder / "sources")
    return status


def _build_wheels(chosen: Sequence[pairs.Pair], folder: Path) -> Path:
    """Build the wheels of the last commit for all pairs; return the folder with them."""
    sources = folder / "sources"
    shutil.rmtree(sources, ignore_errors=True)
    sources.mkdir(parents=True)
    extract_commit(pairs.ROOT, sources)
    torches: dict[Version, list[Version]] = {}
    for pair in chosen:
        if pairs.interpreter(pair.python):
            torches.setdefault(pair.python, []).append(pair.torch)
    build(
        sources,
        folder / "wheels",
        pairs.ROOT / "build",
        lambda line: print(f"    {line}", flush=True),
        torches=torches,
        sdists=False,
    )
    shutil.rmtree(sources)
    return folder / "wheels"


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        command, cwd=pairs.ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def still_valid(row: results.Row, commit: str) -> Iterator[tuple[str, results.Outcome]]:
    """Yield the outcomes, by stage, of stages that passed and whose files have not changed since."""
    for stage in STAGES:
        outcome = row.stages.get(stage.name)
        if outcome is None or outcome.status != "passed" or not stage.files:
            continue
        since = outcome.commit or row.commit
        command = ["git", "diff", "--quiet", since, commit, "--", *stage.files]
        if subprocess.run(command, cwd=pairs.ROOT, check=False).returncode == 0:
            yield stage.name, replace(outcome, commit=since)


if __name__ == "__main__":
    sys.exit(main())
