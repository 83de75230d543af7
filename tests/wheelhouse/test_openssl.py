"""The OpenSSL that the wheels of ZEROMQ and UCX are linked to."""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from wheelhouse import openssl

#: Makes what a compilation of OpenSSL makes, from its own arguments.
CONFIGURE = r"""
open(my $makefile, '>', 'Makefile');
print $makefile <<'END';
build_libs:
	echo '@define OPENSSL_FULL_VERSION_STR "3.5.99"' | tr @ '\#' > built.h
install_dev:
	mkdir -p $(DESTDIR)/usr/local/include/openssl
	cp built.h $(DESTDIR)/usr/local/include/openssl/opensslv.h
	cp options.txt $(DESTDIR)/usr/local/include/options.txt
END
open(my $options, '>', 'options.txt');
print $options "@ARGV";
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return a source archive that is configured and made as OpenSSL is, in no time."""
    folder = tmp_path / "openssl-3.5.99"
    folder.mkdir()
    (folder / "VERSION.dat").write_text("MAJOR=3\n")
    (folder / "Configure").write_text(CONFIGURE)
    path = tmp_path / "openssl-3.5.99.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def test_openssl_is_compiled_once_from_its_sources(archive: Path, tmp_path: Path) -> None:
    said: list[str] = []

    first = openssl.from_source(archive, tmp_path / "kept", said.append)
    second = openssl.from_source(archive, tmp_path / "kept", said.append)

    assert first == second
    assert first.version == "3.5.99"
    assert said == ["compiled OpenSSL from openssl-3.5.99.tar.gz"]
    options = Path(first.variables["OPENSSL_ROOT_DIR"], "include/options.txt").read_text()
    assert "no-shared" in options.split()


def test_another_archive_is_another_openssl(archive: Path, tmp_path: Path) -> None:
    first = openssl.from_source(archive, tmp_path / "kept", print)
    (tmp_path / "openssl-3.5.99/VERSION.dat").write_text("MAJOR=4\n")
    with tarfile.open(archive, "w:gz") as changed:
        changed.add(tmp_path / "openssl-3.5.99", "openssl-3.5.99")

    second = openssl.from_source(archive, tmp_path / "kept", print)

    assert first.identity != second.identity
    assert first.variables != second.variables


def test_a_file_that_is_no_source_archive_is_named(tmp_path: Path) -> None:
    file = tmp_path / "openssl.tar.gz"
    with pytest.raises(RuntimeError, match=r"cannot be read: .*openssl\.tar\.gz"):
        openssl.from_source(file, tmp_path, print)
    file.write_text("")
    with pytest.raises(RuntimeError, match=r"openssl\.tar\.gz is no source archive of OpenSSL"):
        openssl.from_source(file, tmp_path, print)


def test_a_failed_compilation_shows_its_output(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "openssl-3.5.99/Configure").write_text('print "no such target"; exit 1;\n')
    with tarfile.open(archive, "w:gz") as changed:
        changed.add(tmp_path / "openssl-3.5.99", "openssl-3.5.99")

    with pytest.raises(
        RuntimeError, match=r"cannot be compiled: perl Configure .*\nno such target"
    ):
        openssl.from_source(archive, tmp_path / "kept", print)
    assert list((tmp_path / "kept/openssl").iterdir()) == []


def test_the_openssl_of_the_system_is_identified_by_its_version() -> None:
    assert re.fullmatch(r"system 3\.\d+\.\d+", openssl.of_system().identity)


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (b"\0OpenSSL 3.5.9 29 Sep 2026\0", "3.5.9"),
        (b"\0OpenSSL 4.0.0-beta1 1 Mar 2026\0", "4.0.0-beta1"),
        (b"\0libssl.so.3\0", None),
    ],
)
def test_the_version_of_openssl_is_read_from_a_wheel(
    content: bytes, version: str | None, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("a/__init__.py", "OpenSSL 1.1.1 1 Jan 2020")
        archive.writestr("a/_native.so", content)

    assert openssl.version_in(tmp_path / "a.whl") == version
