"""Builds an sdist and wheels of every distribution in dist/, and an index of them in dist/simple/.

The wheel of the agents has a build for every supported torch. No torch is installed: its headers are
fetched, and kept in build/.

::

    make wheels                                   # for one Python: 15 minutes, later seconds
    make wheels PYTHONS="3.11 3.12 3.13"          # for each of these, if it is installed
    make wheels TORCHES="2.9 2.13"                # with builds for these alone
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from packaging.version import Version

from matrix import pairs
from wheelhouse import files, torches
from wheelhouse.builds import Compiler


def main() -> int:
    """Build everything; return 1 if something cannot be built."""
    here = ".".join(map(str, sys.version_info[:2]))
    parser = argparse.ArgumentParser(prog="make wheels", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pythons", default=here, help="minor versions of Python")
    parser.add_argument("--torches", default="", help="minor versions of torch (default: all)")
    parser.add_argument("--sources", type=Path, default=pairs.ROOT, help="the clone to build from")
    parser.add_argument("--out", type=Path, default=pairs.ROOT / "dist", help="for the files")
    parser.add_argument(
        "--kept", type=Path, default=pairs.ROOT / "build", help="for headers and compiled files"
    )
    parser.add_argument("--no-sdists", action="store_true", help="build wheels only")
    given = parser.parse_args()
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", flush=True)

    try:
        build(given, say)
    except (ValueError, RuntimeError, files.FilesError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def build(given: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Build what the command line asks for.

    :raises ValueError: a version is not supported, or its Python is not installed.
    """
    folders = files.all_distributions(given.sources)
    shutil.rmtree(given.out, ignore_errors=True)
    kept = given.kept.resolve()
    pythons = {
        version: files.with_build_tools(version, kept / f"wheels/python{version}")
        for version in map(Version, given.pythons.split())
    }
    say("the build tools are installed")
    wanted = {
        version: torches.named(torches.published(version), given.torches) for version in pythons
    }
    compiler = Compiler(given.sources.resolve(), kept, say)
    compiled = compiler.all(wanted, pythons)
    if not given.no_sdists:
        files.build_sdists(folders, given.out)
        say(f"built {len(folders)} sdists")
    for number, (version, python) in enumerate(pythons.items()):
        chosen = folders if number == 0 else [one for one in folders if files.has_cpp(one)]
        files.build_wheels(chosen, python, compiled[python], given.out)
        say(f"built {len(chosen)} wheels with Python {version}")
    files.make_index(given.out)
    files.sizes(given.out, say)


if __name__ == "__main__":
    sys.exit(main())
