"""The workflows of GitHub name versions that are supported, and targets that the Makefile has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

import stages
from matrix import pairs

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: path for path in (ROOT / ".github/workflows").glob("*.yml")}


def jobs(name: str) -> dict[str, Any]:
    all_jobs: dict[str, Any] = yaml.safe_load(WORKFLOWS[name].read_text())["jobs"]
    return all_jobs


def test_the_matrix_has_every_supported_version() -> None:
    matrix = jobs("matrix")["pair"]["strategy"]["matrix"]
    torches = list(map(Version, matrix["torch"]))
    (lowest,) = (Version(bound.version) for bound in pairs.supported_torch())
    assert torches == [
        Version(f"2.{minor}") for minor in range(lowest.minor, torches[-1].minor + 1)
    ]
    assert list(map(Version, matrix["python"])) == pairs.supported_pythons()


def test_a_release_has_wheels_for_every_supported_python() -> None:
    release = jobs("release")
    (command,) = (
        step["run"] for step in release["build"]["steps"] if "make wheels" in step.get("run", "")
    )
    (built,) = re.findall(r'PYTHONS="(.*?)"', command)
    assert list(map(Version, built.split())) == pairs.supported_pythons()
    checked = release["check"]["strategy"]["matrix"]["python"]
    assert list(map(Version, checked)) == pairs.supported_pythons()


def test_a_release_contains_the_openssl_whose_hash_is_pinned() -> None:
    workflow = yaml.safe_load(WORKFLOWS["release"].read_text())
    steps = [step.get("run", "") for step in workflow["jobs"]["build"]["steps"]]
    fetch, build = (text for text in steps if "openssl.tar.gz" in text)
    assert "openssl-$OPENSSL.tar.gz" in fetch
    assert '"$OPENSSL_SHA256  openssl.tar.gz" | sha256sum -c' in fetch
    assert build.endswith("OPENSSL_SOURCE=openssl.tar.gz")
    assert Version(workflow["env"]["OPENSSL"]) >= Version("3.5")
    assert re.fullmatch("[0-9a-f]{64}", workflow["env"]["OPENSSL_SHA256"])


def test_workflows_run_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = "".join(path.read_text() for path in WORKFLOWS.values())
    lines = re.findall(r"\bmake ((?:[a-z-]+ ?)+)", text)
    assert lines
    assert set(" ".join(lines).split()) <= set(targets)


def test_workflows_use_actions_that_exist() -> None:
    used = re.findall(r"uses: (\./\S+)", "".join(path.read_text() for path in WORKFLOWS.values()))
    assert used
    assert all((ROOT / action / "action.yml").exists() for action in used)


def test_a_job_that_runs_make_installs_what_cpp_is_built_with() -> None:
    for name in WORKFLOWS:
        for job, settings in jobs(name).items():
            steps = [step.get("uses", step.get("run", "")) for step in settings["steps"]]
            if "container" not in settings and any(step.startswith("make ") for step in steps):
                assert "./.github/actions/set-up" in steps, f"{name}: {job}"
    needed = re.findall(r"needed\+=\((\S+)\)", (ROOT / ".ci/run").read_text())
    action = (ROOT / ".github/actions/set-up/action.yml").read_text()
    assert {"g++", *re.findall(r"\blib(?!clang)\S+-dev\b", action)} == set(needed)


def test_ci_tests_and_fuzzes_the_cpp() -> None:
    text = WORKFLOWS["ci"].read_text()
    assert re.findall(r"make (test-cpp.*|fuzz.*)", text) == ["test-cpp test-cpp-sanitized", "fuzz"]


def test_the_jobs_of_ci_run_all_stages() -> None:
    chosen = jobs("ci")["test"]["strategy"]["matrix"]["include"]
    assert sorted(" ".join(job["stages"] for job in chosen).split()) == sorted(
        stage.name for stage in stages.STAGES
    )


def test_only_publishing_jobs_may_write() -> None:
    for name, path in WORKFLOWS.items():
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        writing = {job for job, settings in jobs(name).items() if "permissions" in settings}
        assert writing <= {"publish"}
