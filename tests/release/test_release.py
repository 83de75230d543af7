"""The check of a release: one version everywhere, and files that are those of the commit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from release import contents, versions

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
    ("packed", "line"),
    [
        (SOURCES - {"a/py.typed"}, "a/py.typed is missing"),
        (SOURCES | {"tests/test_a.py"}, "tests/test_a.py is not a file of the commit"),
        (SOURCES | {"a/secret.pem"}, "a/secret.pem is not a file of the commit"),
    ],
)
def test_a_wheel_with_other_files_is_refused(packed: set[str], line: str) -> None:
    assert contents.wheel_deviations(packed, FILES) == [line]


def test_an_sdist_may_have_tests_and_must_have_sources() -> None:
    assert contents.sdist_deviations(FILES | {"PKG-INFO"}, FILES) == []
    packed = FILES - {"src/a/py.typed"} | {"notes.txt"}
    assert contents.sdist_deviations(packed, FILES) == [
        "src/a/py.typed is missing",
        "notes.txt is not a file of the commit",
    ]


@pytest.mark.parametrize(
    ("source", "wrong"), [("csrc/a.cpp", ["CMakeLists.txt is missing"]), ("src/b.py", [])]
)
def test_only_an_sdist_with_cpp_needs_its_cmake_file(source: str, wrong: list[str]) -> None:
    files = FILES | {source, "CMakeLists.txt"}
    assert contents.sdist_deviations(FILES | {source}, files) == wrong


def test_a_file_that_differs_between_two_builds_is_listed(tmp_path: Path) -> None:
    for folder, content in (("first", b"1"), ("second", b"2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a-1.tar.gz").write_bytes(content)
        (tmp_path / folder / "b-1.tar.gz").write_bytes(b"equal")

    assert contents.differences(tmp_path / "first", tmp_path / "second") == (2, ["a-1.tar.gz"])
