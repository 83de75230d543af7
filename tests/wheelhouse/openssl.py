"""The OpenSSL in the wheels of ZEROMQ and UCX: the system's, or one that is compiled from sources.

It is linked statically. From sources, only what TLS 1.3 on a stream needs is compiled, without the
protocols in which most vulnerabilities of OpenSSL are found (QUIC, DTLS, CMS, CMP, OCSP).
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.environments import unpack

#: How OpenSSL is configured. Nothing is read from the folders: the engine reads no configuration file.
_OPTIONS = (
    *("--prefix=/usr/local", "--libdir=lib", "--openssldir=/etc/ssl", "-fPIC"),
    *("no-shared", "no-module", "no-dso", "no-engine", "no-legacy", "no-comp", "no-zlib"),
    *("no-apps", "no-docs", "no-tests"),
    *("no-ssl3", "no-tls1", "no-tls1_1", "no-tls1_2", "no-dtls", "no-quic", "no-srp"),
    *("no-cmp", "no-cms", "no-ct", "no-ocsp", "no-ts", "no-gost"),
)
_VERSION = re.compile(rb"OpenSSL (\d+\.\d+\.\d+[\w-]*) \d+ \w{3} \d{4}")


@dataclass(frozen=True)
class OpenSSL:
    """What a wheel is linked to.

    :ivar identity: changes if the wheel must be built again.
    :ivar version: what the wheel must contain; None for that of the system, which it may be linked to.
    :ivar variables: environment variables of the build.
    """

    identity: str
    version: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def of_system() -> OpenSSL:
    """Return the OpenSSL whose headers the compiler finds."""
    source = "#include <openssl/opensslv.h>\nOPENSSL_FULL_VERSION_STR\n"
    command = [os.environ.get("CXX") or "c++", "-E", "-P", "-x", "c++", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    match = re.search(r'^"(.+)"$', done.stdout, re.MULTILINE)
    return OpenSSL(
        f"system {match[1] if match else ''}"
    )  # CMake says what to install if there is none


def from_source(archive: Path, kept: Path, say: Callable[[str], None]) -> OpenSSL:
    """Compile OpenSSL from a source archive, or return it if it is kept.

    :param archive: a release of OpenSSL, ``openssl-3.5.9.tar.gz``.
    :param kept: the folder that keeps what is compiled.
    :param say: gets a line.
    :raises RuntimeError: the archive cannot be read, or OpenSSL cannot be compiled.
    """
    compiler = subprocess.check_output([os.environ.get("CC") or "cc", "--version"])
    flags = "\n".join((*_OPTIONS, os.environ.get("CFLAGS", "")))
    try:
        digest = hashlib.sha256(archive.read_bytes())
    except OSError as error:
        raise RuntimeError(f"the sources of OpenSSL cannot be read: {error}") from error
    digest.update(compiler + flags.encode())
    identity = digest.hexdigest()[:16]
    folder = kept / "openssl" / identity
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            _compile(archive, Path(made))
            Path(made, "installed/usr/local").rename(folder)
        say(f"compiled OpenSSL from {archive.name}")
    header = (folder / "include/openssl/opensslv.h").read_text()
    match = re.search(r'OPENSSL_FULL_VERSION_STR "(.+)"', header)
    return OpenSSL(identity, match[1] if match else "", {"OPENSSL_ROOT_DIR": str(folder)})


def version_in(wheel: Path) -> str | None:
    """Return the version of the OpenSSL that is linked statically into a wheel; None if none is."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so") and (match := _VERSION.search(archive.read(name))):
                return match[1].decode()
    return None


def _compile(archive: Path, made: Path) -> None:
    try:
        unpack(archive, made)
    except (OSError, tarfile.TarError) as error:
        raise RuntimeError(f"{archive} is no source archive of OpenSSL: {error}") from error
    folders = [path.parent for path in made.glob("*/VERSION.dat")]
    if len(folders) != 1:
        raise RuntimeError(f"{archive} is no source archive of OpenSSL: it has no VERSION.dat")
    jobs = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
    for command in (
        ["perl", "Configure", *_OPTIONS],
        ["make", f"-j{jobs}", "build_libs"],
        ["make", "install_dev", f"DESTDIR={made / 'installed'}"],
    ):
        _run(command, folders[0])


def _run(command: list[str], folder: Path) -> None:
    # OpenSSL contains the date of its compilation. A fixed one makes two builds equal.
    environ = {**os.environ, "MAKEFLAGS": "", "SOURCE_DATE_EPOCH": "1577836800"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise RuntimeError(f"OpenSSL cannot be compiled without {command[0]}: {error}") from error
    if done.returncode:
        raise RuntimeError(
            f"OpenSSL cannot be compiled: {' '.join(command)}:\n{done.stdout[-4000:]}"
        )
