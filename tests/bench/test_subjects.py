"""Subjects on the command line and in a file are parsed and put in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backends_bench.subjects import Subject, SubjectError, arrange, find, parse, read


def labels(*given: str, vs: str | None = None, plugins: tuple[str, ...] = ()) -> list[str]:
    reference = None if vs is None else parse(vs)
    return [
        subject.label
        for subject in arrange([parse(subject) for subject in given], reference, plugins)
    ]


def test_options_are_json_or_text_and_may_hold_commas() -> None:
    subject = parse('MINE:threads=4,where=here,maps={"a": 1, "b": 2},fast=true')

    assert subject.name == "MINE"
    assert subject.options == {
        "threads": 4,
        "where": "here",
        "maps": {"a": 1, "b": 2},
        "fast": True,
    }


def test_at_torch_means_the_builtin_backend() -> None:
    assert parse("TENSORPIPE@torch:num_worker_threads=8") == Subject(
        "TENSORPIPE@torch:num_worker_threads=8", "TENSORPIPE", {"num_worker_threads": 8}, own=True
    )


@pytest.mark.parametrize("text", ["MINE:threads", "MINE:=4", ":a=1", "@torch"])
def test_a_malformed_subject_is_rejected(text: str) -> None:
    with pytest.raises(SubjectError, match="NAME:key=value"):
        parse(text)


def test_a_file_has_a_table_for_each_subject(tmp_path: Path) -> None:
    file = tmp_path / "backends.toml"
    file.write_text('[MINE]\nthreads = 4\n["few threads"]\nbackend = "MINE@torch"\nthreads = 1\n')

    assert read(file) == [
        Subject("MINE", "MINE", {"threads": 4}),
        Subject("few threads", "MINE", {"threads": 1}, own=True),
    ]


def test_the_reference_can_be_a_table_of_the_file() -> None:
    table = Subject("few threads", "MINE", {"threads": 1})

    assert find("few threads", [table]) is table
    assert find("MINE", [table]) == parse("MINE")


@pytest.mark.parametrize("text", ["threads = 4", "["])
def test_a_malformed_file_is_rejected(tmp_path: Path, text: str) -> None:
    file = tmp_path / "backends.toml"
    file.write_text(text)

    with pytest.raises(SubjectError, match=r"backends\.toml"):
        read(file)


def test_the_reference_is_last_and_measured_once() -> None:
    assert labels("A") == ["A", "TENSORPIPE"]
    assert labels("A", "TENSORPIPE", "B") == ["A", "B", "TENSORPIPE"]
    assert labels("A", "B") == ["B", "A"]
    assert labels("A", "B", vs="B") == ["A", "B"]
    assert labels("A", vs="C") == ["A", "C"]
    assert labels("TENSORPIPE", plugins=("TENSORPIPE",)) == ["TENSORPIPE", "TENSORPIPE@torch"]


def test_a_backend_compared_with_itself_gets_a_number() -> None:
    assert labels("A", vs="A") == ["A", "A (2)"]


def test_a_single_backend_is_rejected() -> None:
    with pytest.raises(SubjectError, match="--vs"):
        labels("TENSORPIPE")
    with pytest.raises(SubjectError, match="rpc-backends list"):
        labels()
