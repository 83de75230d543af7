"""The suite passes for the project's backends and torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rpc_backends_testing import SUITE_VERSION, manifest

pytestmark = [pytest.mark.slow, pytest.mark.whole_suite]

Run = Callable[..., dict[str, Any]]

#: Use torch's own TENSORPIPE, because the project's is denied.
TORCHS_OWN = {"RPC_BACKENDS_DENY": "TENSORPIPE"}


def _assert_conforms(report: dict[str, Any]) -> None:
    failed = [result for result in report["results"] if result["outcome"] == "failed"]
    shown = [f"{r['id']}: {r['call']}: {r['expected']}; {r['got']}\n{r['detail']}" for r in failed]
    assert not failed, "\n".join(shown)
    assert report["verdict"] == "conforms"
    assert report["status"] == 0
    broken = [name for name, word in report["capabilities"].items() if word == "broken"]
    assert not broken


def test_tensorpipe_conforms_to_all_listed_requirements(run_suite: Run) -> None:
    report = run_suite("TENSORPIPE")
    _assert_conforms(report)
    assert report["backend"]["distribution"] == "rpc-backend-tensorpipe"
    ran = {result["id"]: result["since"] for result in report["results"]}
    assert ran == manifest.requirements(), (
        "the suite and its published list differ; for new requirements run `python -m "
        "rpc_backends_testing.manifest REPORT`"
    )
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


def test_torchs_suites_run_for_any_backend(run_suite: Run) -> None:
    some = "torch_tier and (test_builtin_remote or test_rref_forward_chain)"
    report = run_suite("FAULTY_TENSORPIPE", "--tier", "torch", "-k", some)
    assert {result["outcome"] for result in report["results"]} == {"passed"}
    assert {result["chapter"] for result in report["results"]} == {"torch"}
    assert report["verdict"] == "partial"
