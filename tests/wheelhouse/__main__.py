"""Builds an sdist and wheels of every distribution in dist/, and an index of them in dist/simple/.

The wheel of the agents has a build for every supported torch. No torch is installed: its headers are
fetched, and kept in build/.

::

    make wheels                                   # for one Python: 14 minutes, later seconds
    make wheels PYTHONS="3.11 3.12 3.13 3.14"     # for each of these, if it is installed
    make wheels TORCHES="2.9 2.13"                # with builds for these alone
    make wheels OPENSSL_SOURCE=openssl-3.5.9.tar.gz   # with this OpenSSL in place of the system's
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from matrix import pairs
from support.environments import distributions
from wheelhouse import files, openssl
from wheelhouse.builds import Compiler
from wheelhouse.torches import named


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
    parser.add_argument(
        "--openssl", type=Path, help="sources of the OpenSSL to compile for engines"
    )
    given = parser.parse_args()
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", flush=True)

    try:
        build(
            given.sources.resolve(),
            given.out,
            given.kept.resolve(),
            say,
            torches={
                python: named(pairs.torches_for(python), given.torches)
                for python in map(Version, given.pythons.split())
            },
            sdists=not given.no_sdists,
            openssl_source=given.openssl,
        )
    except (ValueError, RuntimeError, files.FilesError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def build(
    sources: Path,
    out: Path,
    kept: Path,
    say: Callable[[str], None],
    *,
    torches: Mapping[Version, Sequence[Version]],
    sdists: bool = True,
    openssl_source: Path | None = None,
) -> None:
    """Build the files of all distributions.

    :param sources: the clone to build from.
    :param out: the folder for the files; what is in it is deleted.
    :param kept: the folder that keeps headers and compiled files.
    :param say: gets a line for each step.
    :param torches: the versions of torch to build for, by the version of Python.
    :param openssl_source: sources of the OpenSSL that engines are linked to; None for the system's.
    :raises ValueError: a Python is not installed.
    :raises RuntimeError: a wheel of torch or the sources of OpenSSL cannot be read or compiled.
    :raises FilesError: a build failed.
    :raises subprocess.CalledProcessError: a compilation failed; `say` has got its output.
    """
    folders = distributions(sources)
    shutil.rmtree(out, ignore_errors=True)
    interpreters = {
        version: files.with_build_tools(version, kept / f"wheels/python{version}")
        for version in torches
    }
    say("the build tools are installed")
    compiled = Compiler(sources, kept, say).all(torches, interpreters)
    linked = openssl.of_system()
    if openssl_source is not None:
        linked = openssl.from_source(openssl_source, kept, say)
    if sdists:
        for folder in folders:
            files.build_sdist(folder, kept, out)
        say(f"built {len(folders)} sdists")
    for number, (version, python) in enumerate(interpreters.items()):
        # The wheels without C++ are for any Python.
        chosen = folders if number == 0 else [folder for folder in folders if files.has_cpp(folder)]
        for folder in chosen:
            files.build_wheel(folder, python, compiled[python], linked, kept, out)
        say(f"built {len(chosen)} wheels with Python {version}")
    files.make_index(out)
    files.sizes(out, say)


if __name__ == "__main__":
    sys.exit(main())
