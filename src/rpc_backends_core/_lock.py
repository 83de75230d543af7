"""The lock: which packages with backends and hooks a process may load, and the hashes of their files.

The lock is a file that ``rpc-backends lock`` writes. If ``RPC_BACKENDS_LOCK`` names a lock, the registry
compares it with the installed packages at each scan, before it imports any of them. Without the variable,
nothing imports this module.
"""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from rpc_backends_core import _discovery
from rpc_backends_core._errors import LockError, SettingError
from rpc_backends_core._settings import LOCK

if TYPE_CHECKING:
    from rpc_backends_core._discovery import Scan

#: The version of the file format.
VERSION = 1
#: Of a package's metadata, only these files decide what is loaded; others differ between installers.
_METADATA = ("METADATA", "entry_points.txt")
_SUFFIXES = tuple(all_suffixes())
#: Errors of a file that can only be written in place.
_STAYS = frozenset({errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS})
#: The most differences that an error shows.
_SHOWN = 10


@dataclass(frozen=True)
class Package:
    """An installed distribution with backends or hooks.

    :ivar backends: the names of its backends, sorted.
    :ivar hooks: the names of its hook packages, sorted.
    :ivar editable: the folder of an editable install, whose files have no hashes; None for any other.
    :ivar files: the SHA-256 of each file in hexadecimal, by path relative to site-packages.
    """

    distribution: str
    version: str
    backends: list[str]
    hooks: list[str]
    editable: str | None
    files: dict[str, str]


def installed() -> list[Package]:
    """Return what is installed, with the hashes that the files have now, sorted by name.

    :raises LockError: a package has no list of its files, or a file was changed after the installation.
    """
    packages = []
    problems: list[str] = []
    for distribution in _distributions(_discovery.scan()):
        if distribution.archive:
            problems.append(f"{distribution.origin} {_in_archive(distribution.archive)}")
            continue
        recorded = {} if distribution.editable else _recorded(distribution.dist)
        hashes = {}
        if not recorded and not distribution.editable:
            problems.append(
                f"{distribution.origin} has no RECORD with its files; install it from a wheel"
            )
        for path, expected in recorded.items():
            actual = _hash(Path(distribution.dist.locate_file(path)))
            if actual is None or actual != (expected or actual):
                what = "is missing" if actual is None else "was changed after the installation"
                problems.append(f"{distribution.origin}: {path} {what}; install the package again")
            else:
                hashes[path] = actual
        package = distribution.package(hashes)
        problems += [
            f"{distribution.origin}: {intruder}"
            for intruder in _intruders(distribution.dist, hashes)
        ]
        packages.append(package)
    if problems:
        raise LockError(f"the installed packages cannot be locked: {_listed(problems)}")
    return packages


def write(path: Path, packages: Iterable[Package]) -> None:
    """Write a lock file, or replace it at once: a worker that starts now reads the former one.

    A file that cannot be replaced is written in place: a mounted one, or one in a folder in which this
    process may not write.

    :raises LockError: it cannot be written; a former file that was not written in place is as it was.
    """
    document = {"version": VERSION, "packages": [asdict(package) for package in packages]}
    text = json.dumps(document, indent=2) + "\n"
    file = path.resolve()  # a link stays one
    try:
        try:
            _replace(file, text)
        except OSError as error:
            if error.errno not in _STAYS or not file.is_file():
                raise
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LockError(
            f"the lock file {path} cannot be written: {error.strerror}. Name a file in a folder that "
            "exists, in which you may write."
        ) from error


def _replace(file: Path, text: str) -> None:
    """Put a new file in the place of a former one, of which it gets the owner and the mode."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        if file.exists():
            former, new = file.stat(), temporary.stat()
            if (former.st_uid, former.st_gid) != (new.st_uid, new.st_gid):
                os.chown(temporary, former.st_uid, former.st_gid)
            temporary.chmod(stat.S_IMODE(former.st_mode))
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: Path) -> list[Package]:
    """Read a lock file.

    :raises SettingError: it cannot be read, or is not a lock file of this version.
    """
    try:
        content = _regular(path)
    except IsADirectoryError as error:
        raise SettingError(
            f"the lock file {path} cannot be read: it is a directory. Name a file in it."
        ) from error
    except OSError as error:
        raise SettingError(
            f"the lock file {path} cannot be read: {type(error).__name__}: {error}. Write it: "
            f"rpc-backends lock {path}"
        ) from error
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _no_lock(path, f"it is not valid JSON ({error})") from error
    if not isinstance(document, dict) or "version" not in document:
        raise _no_lock(path, "it has no object with the key 'version'")
    if document["version"] != VERSION:
        raise SettingError(
            f"the lock file {path} has version {document['version']!r}, and this rpc-backends-core "
            f"reads {VERSION}. Write it again: rpc-backends lock {path}"
        )
    packages = document.get("packages")
    if not isinstance(packages, list) or not all(map(_is_package, packages)):
        raise _no_lock(path, "its 'packages' is not a list of packages with their files")
    return [Package(**package) for package in packages]


def _no_lock(path: Path, reason: str) -> SettingError:
    return SettingError(
        f"the lock file {path} is not a lock: {reason}. Correct the path; or, to write a lock in its "
        f"place: rpc-backends lock {path}"
    )


def _is_package(value: Any) -> bool:
    """Return whether a value of JSON has the fields of a :class:`Package`, with their types."""
    if not isinstance(value, dict) or set(value) != {field.name for field in fields(Package)}:
        return False
    lists = (value["backends"], value["hooks"])
    return (
        isinstance(value["distribution"], str)
        and isinstance(value["version"], str)
        and isinstance(value["editable"], str | None)
        and all(isinstance(names, list) for names in lists)
        and all(isinstance(name, str) for names in lists for name in names)
        and isinstance(value["files"], dict)
        and all(isinstance(digest, str) for digest in value["files"].values())
    )


def check(file: str, scan: Scan) -> None:
    """Compare the installed packages with a lock file, without importing one.

    :param file: the path of the lock file.
    :param scan: the packages that were found.
    :raises LockError: they differ; the message says how.
    :raises SettingError: the file cannot be read.
    """
    changes = differences(read(Path(file)), scan)
    if changes:
        raise LockError(
            f"the installed packages differ from the lock {file}, so none is loaded: {_listed(changes)}. "
            "Undo the change; or, to accept it, write the lock again: rpc-backends lock "
            f"{file}. Without {LOCK} nothing is checked."
        )


def differences(packages: Iterable[Package], scan: Scan | None = None) -> list[str]:
    """Return how the installed packages differ from those of a lock, one line each.

    :param scan: the packages that were found; None to search for them.
    """
    locked = {_normal(package.distribution): package for package in packages}
    texts = []
    there = set()
    for distribution in _distributions(scan if scan is not None else _discovery.scan()):
        there.add(distribution.key)
        package = locked.get(distribution.key)
        if package is None:
            texts.append(f"{distribution.origin} is not in the lock ({distribution.provides})")
        else:
            texts += [f"{distribution.origin}: {text}" for text in _changes(package, distribution)]
    texts += [
        f"{package.distribution} {package.version} is in the lock, but is not installed"
        for key, package in locked.items()
        if key not in there
    ]
    return texts


@dataclass
class _Found:
    """An installed distribution with the names that it declares."""

    dist: Any
    name: str
    version: str
    backends: list[str]
    hooks: list[str]

    @property
    def key(self) -> str:
        return _normal(self.name)

    @property
    def origin(self) -> str:
        return f"{self.name} {self.version}".strip()

    @property
    def editable(self) -> str | None:
        return _editable(self.dist)

    @property
    def archive(self) -> str | None:
        """The zip file from which Python would import it; None for a package in a folder."""
        place = self.dist.locate_file("")
        return None if isinstance(place, os.PathLike) else str(place).rstrip("/")

    @property
    def provides(self) -> str:
        names = (("backend", self.backends), ("hooks", self.hooks))
        return "; ".join(f"{what} {', '.join(items)}" for what, items in names if items)

    def package(self, files: dict[str, str]) -> Package:
        return Package(
            self.name, self.version, self.backends, self.hooks, self.editable, dict(files)
        )


def _distributions(scan: Scan) -> list[_Found]:
    """Return the distributions of a scan, sorted by name; a name may be there twice."""
    distributions: dict[tuple[str, str], _Found] = {}
    for kind, records in (("backends", scan.backends), ("hooks", scan.hooks)):
        for record in records:
            name, version = record.distribution or "an unknown package", record.version or ""
            dist = record.entry_point.dist
            distribution = distributions.setdefault(
                (name, version), _Found(dist, name, version, [], [])
            )
            getattr(distribution, kind).append(record.name)
    return [distributions[key] for key in sorted(distributions)]


def _changes(locked: Package, distribution: _Found) -> Iterator[str]:
    if distribution.version != locked.version:
        yield f"the lock has version {locked.version}"
        return
    if distribution.archive:
        yield f"it {_in_archive(distribution.archive)}"
        return
    editable = distribution.editable
    if editable != locked.editable:
        if editable is None:
            yield f"the lock has an editable install of {locked.editable}"
        else:
            yield (
                f"it is an editable install of {editable}, whose files cannot be checked; install a "
                "wheel"
            )
        return
    if (distribution.backends, distribution.hooks) != (locked.backends, locked.hooks):
        yield f"it declares {distribution.provides}, and not what the lock has"
    for path, expected in locked.files.items():
        actual = _hash(Path(distribution.dist.locate_file(path)))
        if actual != expected:
            yield f"{path} {'is missing' if actual is None else 'was changed'}"
    yield from _intruders(distribution.dist, locked.files)


def _recorded(dist: Any) -> dict[str, str | None]:
    """Return the files in a distribution's RECORD that a process may read, with the hashes in it."""
    files = {}
    for row in csv.reader((dist.read_text("RECORD") or "").splitlines()):
        path = PurePosixPath(row[0]) if row else PurePosixPath("..")
        is_metadata = path.parts[0].endswith(".dist-info")
        if ".." in path.parts or path.is_absolute() or path.suffix == ".pyc":
            continue  # scripts are not imported; Python makes .pyc files from the others
        if not is_metadata or path.name in _METADATA:
            algorithm, _, digest = (row[1] if len(row) > 1 else "").partition("=")
            files[str(path)] = _hexadecimal(digest) if algorithm == "sha256" else None
    return files


def _hexadecimal(digest: str) -> str:
    return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()


def _hash(path: Path) -> str | None:
    try:
        return hashlib.sha256(_regular(path)).hexdigest()
    except OSError:
        return None


def _regular(path: Path) -> bytes:
    """Return the content of a file.

    :raises OSError: it cannot be read, or is not a regular file: reading a FIFO may never end.
    """

    def without_waiting(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)  # opening a FIFO would wait for its writer

    with open(path, "rb", opener=without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read()


def _in_archive(place: str) -> str:
    return f"is in the zip file {place}, whose files cannot be checked; install a wheel"


def _intruders(dist: Any, files: Iterable[str]) -> Iterator[str]:
    """Yield what Python would import in place of the package's files, or beside them."""
    paths = {PurePosixPath(path) for path in files}
    modules = sorted(path for path in paths if path.name.endswith(_SUFFIXES))
    yield from _shadows(dist, modules)
    folders = {parent for path in paths for parent in path.parents}
    for folder in sorted({path.parent for path in modules if path.parent.parts}):
        where = Path(dist.locate_file(str(folder)))
        for entry in sorted(where.iterdir()) if where.is_dir() else ():
            path = folder / entry.name
            if entry.is_dir():
                strange = path not in folders and _is_importable(entry)
            else:
                strange = path not in paths and entry.name.endswith(_SUFFIXES)
            if strange:
                yield f"{path} does not belong to the package"


def _is_importable(folder: Path) -> bool:
    """Return whether a folder has a module; those that Python compiles into __pycache__ do not count."""
    if folder.name == "__pycache__" or not folder.name.isidentifier():
        return False
    return any(
        path.name.endswith(_SUFFIXES) and path.parent.name != "__pycache__"
        for path in folder.rglob("*")
    )


def _shadows(dist: Any, modules: Iterable[PurePosixPath]) -> Iterator[str]:
    """Yield the modules that Python would import from other files than the package's."""
    ours: dict[str, list[Path]] = {}  # by module
    for module in modules:
        parts = [*module.parent.parts, module.name.partition(".")[0]]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        ours.setdefault(name, []).append(Path(dist.locate_file(str(module))))
    specs: dict[str, Any] = {}
    for name in ours:
        parts = name.split(".")
        path = None
        for part in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            if part not in specs:
                spec = specs[part] = _spec(part, path)
                if spec and spec.has_location and not _is_one(spec.origin, ours.get(part, [])):
                    yield (
                        f"Python imports {part} from {spec.origin}, which does not belong to the package"
                    )
            spec = specs[part]
            if spec is None or spec.has_location:
                break  # a missing file fails the check of hashes; a package's parts are in its own folder
            path = spec.submodule_search_locations  # a namespace package: look inside


def _is_one(origin: str, files: Iterable[Path]) -> bool:
    place = Path(origin)
    return place.exists() and any(file.exists() and file.samefile(place) for file in files)


def _spec(name: str, path: Any) -> Any:
    """Return the spec of a module that was not imported; unlike `find_spec`, import no parent."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


def _editable(dist: Any) -> str | None:
    """Return the folder that a distribution is installed from in editable mode; None if it is not."""
    try:
        origin = json.loads(dist.read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    directory = origin.get("dir_info") if isinstance(origin, dict) else None
    if isinstance(directory, dict) and directory.get("editable"):
        return unquote(urlsplit(str(origin.get("url", ""))).path)
    record = dist.read_text("RECORD") or ""
    return "an unknown folder" if "__editable__" in record else None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _listed(texts: list[str]) -> str:
    more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return "; ".join([*texts[:_SHOWN], *more])
