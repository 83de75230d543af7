"""The suite passes for the project's backends and torch's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_testing import SUITE_VERSION, manifest
from support.command import run_module
from support.environments import clean_environ

pytestmark = [pytest.mark.slow, pytest.mark.whole_suite]

Run = Callable[..., dict[str, Any]]

#: Use torch's own TENSORPIPE, because the project's is denied.
TORCHS_OWN = {"RPC_BACKENDS_DENY": "TENSORPIPE"}


def _assert_none_failed(report: dict[str, Any]) -> None:
    failed = [result for result in report["results"] if result["outcome"] == "failed"]
    shown = [f"{r['id']}: {r['call']}: {r['expected']}; {r['got']}\n{r['detail']}" for r in failed]
    assert not failed, "\n".join(shown)
    assert report["status"] == 0
    broken = [name for name, word in report["capabilities"].items() if word == "broken"]
    assert not broken


def _assert_conforms(report: dict[str, Any]) -> None:
    _assert_none_failed(report)
    # A machine without accelerators cannot test them.
    assert set(report["not_tested"]) <= {"devices", "device-maps"}
    assert report["verdict"].partition(";")[0] == "conforms"


#: What torch alone does in TENSORPIPE; its own suites test RRefs and autograd there.
TORCHS = ("data", "rrefs", "autograd")


def test_tensorpipe_passes_the_chapters_of_what_it_adds(run_suite: Run) -> None:
    """All chapters run on ZEROMQ, and in `make test-all` on TENSORPIPE too."""
    others = [f"--ignore-glob=/*/chapters/test_{chapter}.py" for chapter in TORCHS]
    report = run_suite("TENSORPIPE", *others)
    _assert_none_failed(report)
    assert report["backend"]["distribution"] == "rpc-backend-tensorpipe"
    ran = {result["id"]: result["since"] for result in report["results"]}
    listed = manifest.requirements()
    assert ran == {n: since for n, since in listed.items() if n.partition(".")[0] not in TORCHS}


def test_the_published_list_has_every_requirement(tmp_path: Path) -> None:
    """For new requirements run `python -m rpc_backends_testing.manifest REPORT`."""
    chapters = "rpc_backends_testing.chapters"
    arguments = ("--collect-only", "-q", "--rpc-backend", "TENSORPIPE", "--pyargs", chapters)
    done = run_module("pytest", *arguments, env=clean_environ(), cwd=tmp_path)
    tests = re.findall(r"^(?:\S*/)?test_(\w+)\.py::(?:\w+::)*test_(.+)$", done.stdout, re.MULTILINE)
    assert {f"{chapter}.{name}" for chapter, name in tests} == manifest.requirements().keys()


@pytest.mark.thorough
def test_tensorpipe_conforms_to_all_listed_requirements(run_suite: Run) -> None:
    report = run_suite("TENSORPIPE")
    _assert_conforms(report)
    ran = {result["id"]: result["since"] for result in report["results"]}
    assert ran == manifest.requirements()
    assert max(ran.values()) <= SUITE_VERSION


@pytest.mark.thorough
def test_torchs_own_tensorpipe_conforms(run_suite: Run) -> None:
    report = run_suite("TENSORPIPE", env=TORCHS_OWN)
    _assert_conforms(report)
    assert report["backend"]["distribution"] == "torch"


@pytest.mark.thorough
def test_faulty_tensorpipe_without_faults_conforms(run_suite: Run) -> None:
    report = run_suite("FAULTY_TENSORPIPE")
    _assert_conforms(report)
    assert report["capabilities"]["dynamic-groups"] == "not declared"


def outcomes(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the outcome of each requirement, and its reason."""
    return {result["id"]: (result["outcome"], result["reason"]) for result in report["results"]}


def test_the_transport_of_an_init_handler_is_tested_without_a_declaration(run_suite: Run) -> None:
    report = run_suite("UNDECLARED", "-k", "test_one_message or test_close_twice")
    assert outcomes(report) == {
        "transport.one_message": ("passed", ""),
        "transport.close_twice": ("passed", ""),
    }


def test_a_transport_that_is_not_found_was_not_tested(run_suite: Run) -> None:
    report = run_suite("HIDDEN", "-k", "test_one_message or test_names_and_ids")
    outcome, reason = outcomes(report)["transport.one_message"]
    assert outcome == "not run"
    assert "the transport was not found: the init handler called no start_agent" in reason
    assert "declare Backend(make_transport=...)" in reason
    assert report["not_tested"] == {"transport": {"not run": 1, "of": 1}}


def test_the_chapter_transport_does_not_apply_to_other_agents(run_suite: Run) -> None:
    report = run_suite("FAULTY_TENSORPIPE", "-k", "test_one_message")
    assert outcomes(report) == {
        "transport.one_message": (
            "does not apply",
            "the backend does not run on the agent of rpc-backends-agents",
        )
    }


def test_torchs_suites_run_for_any_backend(run_suite: Run) -> None:
    some = "torch_tier and (test_builtin_remote or test_rref_forward_chain)"
    report = run_suite("FAULTY_TENSORPIPE", "--tier", "torch", "-k", some)
    assert {result["outcome"] for result in report["results"]} == {"passed"}
    assert {result["chapter"] for result in report["results"]} == {"torch"}
    assert report["verdict"] == "partial"
