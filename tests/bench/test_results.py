"""Results survive writing and reading; other files are rejected."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.kit import OURS, REFERENCE, made_up
from rpc_backends_bench import command
from rpc_backends_bench.results import FormatError, Problem, Results
from rpc_backends_bench.writing import write


def test_results_survive_a_round_trip_through_json(tmp_path: Path) -> None:
    before = made_up({"latency.noop": 0.5})
    before.problems.append(Problem(OURS, "cpu", "it fell over", "at the third step"))
    (tmp_path / "results.json").write_text(json.dumps(before.to_json()))

    after = Results.read(tmp_path / "results.json")

    assert json.dumps(after.to_json()) == json.dumps(before.to_json())
    assert after.labels == [OURS, REFERENCE]
    assert after.ratio("latency.noop", None, OURS) == before.ratio("latency.noop", None, OURS)


def test_the_file_has_machine_versions_and_rounds() -> None:
    data = made_up(rounds=8).to_json()

    assert data["format"] == 1
    assert {"cpu", "cores", "memory", "started", "ended", "busy_before"} <= data["machine"].keys()
    assert {"python", "torch", "rpc-backends-core"} <= data["machine"]["versions"].keys()
    row = next(row for row in data["rows"] if row["id"] == "latency.noop")
    assert row["unit"] == "s"
    assert len(row["results"][OURS]["points"]) == 8
    assert row["results"][OURS]["percentiles"].keys() == {"50", "90", "99"}
    assert row["results"][OURS]["calls"] == 800


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no JSON", "cannot be read"),
        ("[]", "no results of this version"),
        ('{"format": 99}', "format 99, expected 1"),
        ('{"format": 1, "rows": []}', "missing"),
    ],
)
def test_other_files_are_refused_with_their_name(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "old.json").write_text(text)

    with pytest.raises(FormatError, match=expected) as caught:
        Results.read(tmp_path / "old.json")

    assert str(tmp_path / "old.json") in str(caught.value)


@pytest.mark.parametrize(("option", "shown"), [((), "no-op in Python"), (("--json",), '"rows": [')])
def test_results_are_shown_if_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], shown: str
) -> None:
    monkeypatch.setattr(command, "_subjects", lambda *_: [])
    monkeypatch.setattr(command, "measure_plan", lambda *_, **__: (made_up(), False))
    for name in command._ENVIRON:
        monkeypatch.setenv(name, "")
    (tmp_path / "results.json").symlink_to("/dev/full")
    ended = CliRunner().invoke(command.command, ["TENSORPIPE", "--out", str(tmp_path), *option])

    assert ended.exit_code == 1
    assert shown in ended.output
    assert f"the files of the run cannot be written to {tmp_path}: " in ended.output
    assert "No space left on device" in ended.output


def test_the_page_is_in_utf_8_whatever_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "text_encoding", lambda encoding, _level=2: encoding or "ascii")
    write(made_up(), None, tmp_path)

    assert not (tmp_path / "index.html").read_text(encoding="utf-8").isascii()
