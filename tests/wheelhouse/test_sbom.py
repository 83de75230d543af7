"""The bill of materials that each wheel gets."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from pathlib import Path

from wheelhouse import sbom


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


def test_a_wheel_does_not_depend_on_the_umask_of_its_sources(tmp_path: Path) -> None:
    built = []
    for mode in (0o100644, 0o100664):
        folder = tmp_path / oct(mode)
        folder.mkdir()
        wheel = make_wheel(folder)
        source = zipfile.ZipInfo("b.py")
        source.external_attr = mode << 16
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr(source, "")

        sbom.add(wheel, [])

        with zipfile.ZipFile(wheel) as archive:
            built.append(archive.getinfo("b.py").external_attr >> 16)
    assert built == [0o100644, 0o100644]
