"""Results survive writing and reading; other files are rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.kit import OURS, REFERENCE, made_up
from rpc_backends_bench.results import FormatError, Problem, Results


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
