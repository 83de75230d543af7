"""What an sdist and a wheel must contain: the files of the last commit, and nothing else."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

#: What a build adds to a wheel.
_ADDED_TO_WHEEL = re.compile(
    r"[^/]+\.dist-info/(METADATA|RECORD|WHEEL|entry_points\.txt|top_level\.txt|licenses/LICENSE(?:\.\w+)?|sboms/.+)"
    r"|[^/]+/cpp/fingerprint\.txt"  # of the sources
    r"|[^/]+/(builds/torch-[\w.+-]+/)?_\w+\.cpython-\w+-[\w-]+\.so"  # extensions
    r"|[^/]+\.libs/.+"  # auditwheel
)
#: What a build adds to an sdist.
_ADDED_TO_SDIST = re.compile(
    r"PKG-INFO|setup\.cfg|LICENSE|\.gitignore|README\.md|pyproject\.toml|src/[^/]+\.egg-info/.+"
)


def tracked(folder: Path) -> set[str]:
    """Return the paths of the files of the last commit in a folder, relative to it."""
    command = ["git", "ls-files", "--", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def of_wheel(wheel: Path) -> set[str]:
    """Return the paths in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def of_sdist(sdist: Path) -> set[str]:
    """Return the paths in an sdist, without its folder."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def wheel_deviations(packed: set[str], files: set[str]) -> list[str]:
    """Compare the paths in a wheel with the files of its distribution.

    :param files: paths relative to the distribution's folder.
    """
    wanted = {name.removeprefix("src/") for name in files if name.startswith("src/")}
    missing = [f"{name} is missing" for name in sorted(wanted - packed)]
    carried = {name for name in packed if name.partition("/cpp/")[2] in files}  # C++
    return missing + _unknown(packed - wanted - carried, _ADDED_TO_WHEEL)


def sdist_deviations(packed: set[str], files: set[str]) -> list[str]:
    """Compare the paths in an sdist with the files of its distribution.

    Sources must all be there. Tests and documents may be. The core has no C++: the CMakeLists.txt in its
    folder is for the tests of other distributions.
    """
    has_cpp = any(name.startswith("csrc/") for name in files)
    needed = {"pyproject.toml", "README.md", *(["CMakeLists.txt"] if has_cpp else [])}
    wanted = {name for name in files if name.startswith(("src/", "csrc/")) or name in needed}
    missing = [f"{name} is missing" for name in sorted(wanted - packed)]
    return missing + _unknown(packed - files, _ADDED_TO_SDIST)


def newest_torch(dist: Path) -> str:
    """Return the newest minor version of torch that the wheel of the agents has a build for."""
    (wheel,) = dist.glob("rpc_backends_agents-*.whl")
    builds = (re.search(r"/builds/torch-(\d+)\.(\d+)/", name) for name in of_wheel(wheel))
    major, minor = max((int(match[1]), int(match[2])) for match in builds if match)
    return f"{major}.{minor}"


def differences(first: Path, second: Path) -> tuple[int, list[str]]:
    """Compare the files of two builds, byte for byte.

    The second one may have fewer builds of the agents, so what lists them is not compared.

    :returns: the number of files that were compared, and a line for each that differs.
    """
    count, different = 0, []
    for file in sorted(second.iterdir()):
        if file.is_dir():
            continue
        counterpart = first / file.name
        if not counterpart.exists():
            different.append(f"{file.name} is not in {first}")
        elif file.name.startswith("rpc_backends_agents") and file.suffix == ".whl":
            with zipfile.ZipFile(file) as here, zipfile.ZipFile(counterpart) as there:
                for name in here.namelist():
                    if not name.endswith(("/RECORD", ".cdx.json")):
                        count += 1
                        if here.read(name) != there.read(name):
                            different.append(f"{file.name}: {name}")
        else:
            count += 1
            if file.read_bytes() != counterpart.read_bytes():
                different.append(file.name)
    return count, different


def _unknown(names: set[str], added: re.Pattern[str]) -> list[str]:
    return [
        f"{name} is not a file of the commit" for name in sorted(names) if not added.fullmatch(name)
    ]
