"""The check of a release: one version everywhere, and files that are those of the commit."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from release import contents, sbom, versions

ROOT = Path(__file__).parents[2]
FILES = {"pyproject.toml", "README.md", "src/a/__init__.py", "src/a/py.typed", "tests/test_a.py"}
SOURCES = {"a/__init__.py", "a/py.typed"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with copies of the files that have the version."""
    for file in {*(file for file, _ in versions.places(ROOT)), ROOT / "CHANGELOG.md"}:
        target = tmp_path / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    return tmp_path


def test_every_place_has_the_same_version() -> None:
    assert versions.deviations(ROOT) == []


def test_another_version_is_reported_with_its_place(copy: Path) -> None:
    place = copy / "plugins/zeromq/pyproject.toml"
    place.write_text(place.read_text().replace('\nversion = "', '\nversion = "9'))
    here = versions.version(ROOT)
    assert versions.deviations(copy) == [
        f"plugins/zeromq/pyproject.toml has 9{here}, and pyproject.toml has {here}"
    ]


def test_a_version_is_set_in_every_place(copy: Path) -> None:
    versions.set_version(copy, "7.8.9")
    assert versions.version(copy) == "7.8.9"
    assert versions.deviations(copy) == []


def test_a_wheel_with_the_sources_is_accepted() -> None:
    built = {"a/_native.cpython-311-x86_64-linux-gnu.so", "a-1.dist-info/RECORD"}
    built |= {"a/builds/torch-2.6-old-strings/_C.cpython-311-x86_64-linux-gnu.so"}
    assert contents.wheel_deviations(SOURCES | built, FILES) == []


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (SOURCES - {"a/py.typed"}, "a/py.typed is missing"),
        (SOURCES | {"tests/test_a.py"}, "tests/test_a.py is not a file of the commit"),
        (SOURCES | {"a/secret.pem"}, "a/secret.pem is not a file of the commit"),
    ],
)
def test_a_wheel_with_other_files_is_refused(found: set[str], line: str) -> None:
    assert contents.wheel_deviations(found, FILES) == [line]


def test_an_sdist_may_have_tests_and_must_have_sources() -> None:
    assert contents.sdist_deviations(FILES | {"PKG-INFO"}, FILES) == []
    found = FILES - {"src/a/py.typed"} | {"notes.txt"}
    assert contents.sdist_deviations(found, FILES) == [
        "src/a/py.typed is missing",
        "notes.txt is not a file of the commit",
    ]


def make_wheel(folder: Path) -> Path:
    """Write a wheel with one module."""
    wheel = folder / "a-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a.py", "")
        archive.writestr(
            "a-1.0.dist-info/METADATA",
            "Metadata-Version: 2.4\nName: a\nVersion: 1.0\nLicense-Expression: BSD-3-Clause\n",
        )
        archive.writestr("a-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr("a-1.0.dist-info/RECORD", "a.py,,\na-1.0.dist-info/RECORD,,\n")
    return wheel


def test_a_bill_of_materials_names_what_is_inside(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)

    sbom.add(wheel, [sbom.Component("pybind11", "3.0.1", "BSD-3-Clause")])

    with zipfile.ZipFile(wheel) as archive:
        bill = json.loads(archive.read("a-1.0.dist-info/sboms/a.cdx.json"))
    assert bill["metadata"]["component"]["name"] == "a"
    assert [entry["purl"] for entry in bill["components"]] == ["pkg:pypi/pybind11@3.0.1"]


def test_the_record_of_a_wheel_has_the_hash_of_the_bill(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    sbom.add(wheel, [])
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read("a-1.0.dist-info/sboms/a.cdx.json")
        lines = archive.read("a-1.0.dist-info/RECORD").decode().splitlines()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    assert f"a-1.0.dist-info/sboms/a.cdx.json,sha256={digest},{len(content)}" in lines
    assert lines[-1] == "a-1.0.dist-info/RECORD,,"


def test_a_bill_written_twice_leaves_the_wheel_the_same(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    sbom.add(wheel, [])
    once = wheel.read_bytes()

    sbom.add(wheel, [])

    assert wheel.read_bytes() == once
