"""The command that tries other versions: which pairs it chooses, what it counts, and its page."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from matrix import pairs, results
from matrix.__main__ import still_valid
from matrix.pairs import Pair, choose, newest_of_each_minor
from matrix.results import Outcome, Row
from matrix.stages import counts_of

TORCHES = [Version("2.9.1"), Version("2.10.0")]
PYTHONS = [Version("3.11"), Version("3.12")]


def test_the_newest_supported_version_of_each_minor_is_taken() -> None:
    published = map(Version, ["2.10.0", "2.5.1", "2.9.0", "2.9.1", "3.0.0"])
    assert newest_of_each_minor(published, SpecifierSet(">=2.6,<3")) == TORCHES


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        ("", [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ("2.10", [(1, 0), (1, 1)]),
        ("py3.12", [(0, 1), (1, 1)]),
        ("2.9.1 py3.11", [(0, 0)]),
    ],
)
def test_the_option_only_chooses_the_versions_it_names(
    only: str, chosen: list[tuple[int, int]]
) -> None:
    expected = [Pair(TORCHES[torch], PYTHONS[python]) for torch, python in chosen]
    assert choose(dict.fromkeys(PYTHONS, TORCHES), only) == expected


def test_only_published_pairs_are_chosen() -> None:
    published = {PYTHONS[0]: TORCHES, PYTHONS[1]: TORCHES[1:]}
    assert choose(published, "2.9 2.10 py3.12") == [Pair(TORCHES[1], PYTHONS[1])]
    with pytest.raises(ValueError, match=r"no torch of '2\.9 py3\.12' was published"):
        choose(published, "2.9 py3.12")


@pytest.mark.parametrize("word", ["2.1", "py3.9", "newest"])
def test_an_unknown_version_is_refused_with_the_supported_ones(word: str) -> None:
    with pytest.raises(ValueError, match=rf"'{word}' is no supported .*2\.9, 2\.10 .*py3\.11"):
        choose(dict.fromkeys(PYTHONS, TORCHES), word)


def test_a_report_of_pytest_is_counted(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/></testsuites>'
    )
    assert counts_of(report) == (3, 3, 3)


def test_a_failure_stands_in_its_row() -> None:
    outcomes = {
        "import": Outcome("passed", 1),
        "core": Outcome("failed", 9, 7, 2, 0),
    }
    row = Row("2.9.1+cu128", "3.12", "abc1234", "2026-01-01", outcomes)
    page = results.page([row])
    assert "| 2.9.1+cu128 | 3.12 | yes |  | **2 failed**, 7 |" in page


def test_the_wheels_have_a_table_with_a_column_for_each_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "FILE", tmp_path / "compatibility.json")
    monkeypatch.setattr(results, "PAGE", tmp_path / "compatibility.md")
    passed, failed = Outcome("passed", 90, first_call=7.6), Outcome("failed", 4)
    for torch, python, outcome in (
        ("2.9.1+cu128", "3.13", failed),
        ("2.10.0", "3.13", passed),
        ("2.9.1+cpu", "3.12", failed),
        ("2.9.1+cu128", "3.12", passed),  # in the place of the one before
    ):
        results.write_installation(
            results.Installation(torch, python, "abc1234", "2026-01-01", outcome)
        )

    page = results.PAGE.read_text()
    assert "| torch | Python 3.12 | Python 3.13 | commit |" in page
    assert "| 2.9.1 | 8 s | **failed** | `abc1234` |\n| 2.10.0 |  | 8 s | `abc1234` |" in page


def test_a_missing_private_name_stands_below_the_table() -> None:
    lost = {"torch.distributed.rpc._secret": "init_rpc fails"}
    row = Row("2.9.1+cu128", "3.12", "abc1234", "2026-01-01", {}, lost)
    line = "- torch 2.9.1 has no `torch.distributed.rpc._secret`: init_rpc fails."
    assert line in results.page([row])


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ("docs/index.md", []),
        ("plugins/ucx/tests/test_groups.py", []),
        ("plugins/ucx/csrc/links.cpp", ["UCX"]),
        ("packages/agents/csrc/agent/core.cpp", ["TENSORPIPE", "UCX"]),
    ],
)
def test_a_stage_is_run_again_if_a_file_has_changed_that_it_depends_on(
    changed: str, again: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        command = ["git", *identity, *arguments]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    monkeypatch.setattr(pairs, "ROOT", tmp_path)
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "tested")
    tested = git("rev-parse", "HEAD")
    path = tmp_path / changed
    path.parent.mkdir(parents=True)
    path.write_text("changed")
    git("add", ".")
    git("commit", "-q", "-m", "changed")
    stages = ("TENSORPIPE", "UCX")
    row = Row("2.9.1", "3.12", tested, "2026-01-01", dict.fromkeys(stages, Outcome("passed", 1)))
    valid = dict(still_valid(row, git("rev-parse", "HEAD")))
    assert [stage for stage in stages if stage not in valid] == again
    assert all(outcome.commit == tested for outcome in valid.values())


def test_a_stage_that_failed_is_run_again() -> None:
    commit = "HEAD"
    row = Row("2.9.1", "3.12", commit, "2026-01-01", {"UCX": Outcome("failed", 1)})
    assert not dict(still_valid(row, commit))
